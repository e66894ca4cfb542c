"""One connection that heals.

In: a `Statement`. Out: its answer, or `ConnectionLost`, or the server's own error. Connects at first use and after
every
loss; a connection that raised anything but a plain SQL error is terminated and never used again. A connection made
before a fork is left alone in the child: it belongs to the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import asyncpg

from gen_durable.pg.connect import Line, Target, connect
from gen_durable.pg.faults import ConnectionLost, Fault, classify, lost
from gen_durable.pg.watchdog import Silence

if TYPE_CHECKING:
    from gen_durable.pg.dsn import Host
    from gen_durable.store.statements import Statement

__all__ = ["PersistentConnection", "RunStatement", "Target"]

T = TypeVar("T")
U = TypeVar("U")
log = logging.getLogger("gen_durable.pg")


class RunStatement(Protocol):
    """Runs a call inside a transaction."""

    async def __call__(self, call: Statement[U]) -> U: ...


class PersistentConnection:
    """A self-healing connection, used by one task at a time (others wait their turn)."""

    __slots__ = ("_closed", "_left", "_line", "_lock", "_pid", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self._line: Line | None = None
        self._left: Host | None = None  # the host that was last found not to answer
        self._pid = 0
        self._lock = asyncio.Lock()
        self._closed = False

    async def run(self, call: Statement[T], *, timeout: float | None = None) -> T:
        """Run a call on this connection, connecting first if need be."""
        async with self._lock:
            connection = await self._connected()
            try:
                with self.watched():
                    rows = await connection.fetch(call.text, *call.args, timeout=timeout)
            except BaseException as error:
                self._after(error)
                if isinstance(error, Exception) and classify(error) is Fault.GONE:
                    raise lost(error) from error
                raise
        return call.read(rows)

    async def transact(self, work: Callable[[RunStatement], Awaitable[T]]) -> T:
        """Run several calls in one transaction. One that fails takes its connection with it."""
        async with self._lock:
            connection = await self._connected()

            async def ask(call: Statement[U]) -> U:
                return call.read(await connection.fetch(call.text, *call.args))

            try:
                with self.watched():
                    await connection.execute("begin")
                    answer = await work(ask)
                    await connection.execute("commit")
            except BaseException as error:
                self.drop()
                if isinstance(error, Exception) and classify(error) is Fault.GONE:
                    raise lost(error) from error
                raise
        return answer

    async def script(self, sql: str) -> None:
        """Run statements without parameters in one implicit transaction (migrations)."""
        async with self._lock:
            connection = await self._connected()
            try:
                with self.watched():
                    await connection.execute(sql)
            except BaseException as error:
                self._after(error)
                if isinstance(error, Exception) and classify(error) is Fault.GONE:
                    raise lost(error) from error
                raise

    async def raw(self) -> asyncpg.Connection[Any]:
        """The connection itself, for LISTEN and for transactions of several statements."""
        async with self._lock:
            return await self._connected()

    def watched(self) -> AbstractContextManager[None]:
        """`with link.watched():` around a statement on `raw`: if its server does not live the connection is cut."""
        return Silence(self._line, self.target, self._leave) if self._line is not None else nullcontext()

    def _leave(self, line: Line) -> None:
        self._left = line.host

    @property
    def closed(self) -> bool:
        """Whether this link was closed for good."""
        return self._closed

    async def close(self) -> None:
        """Close politely, or not at all if that does not work at once."""
        self._closed = True
        line, self._line = self._line, None
        if line is None or self._pid != os.getpid():
            return
        try:
            await asyncio.shield(line.connection.close(timeout=2))
        except asyncio.CancelledError:
            line.connection.terminate()
            raise
        except Exception as error:
            log.debug("a connection did not end politely: %s", type(error).__name__)
            line.connection.terminate()

    def close_soon(self) -> None:
        """Close without waiting: the server is told, its answer is not heard."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Throw the connection away; the next call makes a new one."""
        line, self._line = self._line, None
        if line is not None and self._pid == os.getpid():
            with contextlib.suppress(Exception):
                line.connection.terminate()

    def _after(self, error: BaseException) -> None:
        # A cancelled statement leaves the protocol in the middle of an answer, so that connection goes too.
        if not isinstance(error, Exception) or classify(error) is Fault.GONE:
            self.drop()

    async def _connected(self) -> asyncpg.Connection[Any]:
        line = self._line
        if line is not None and self._pid == os.getpid() and _is_usable(line):
            return line.connection
        if self._closed:
            raise ConnectionLost(RuntimeError("this Durable is closed"), sent=False)
        self.drop()
        try:
            line = await connect(self.target, self._left)
        except ValueError as error:
            raise ConnectionLost(error, sent=False) from None
        except Exception as error:
            raise ConnectionLost(error, sent=False) from error
        if self.closed:  # meanwhile
            line.connection.terminate()
            raise ConnectionLost(RuntimeError("this Durable is closed"), sent=False)
        self.target = replace(self.target, pooled=line.pooled)
        self._line = line
        self._pid = os.getpid()
        return line.connection


def _is_usable(line: Line) -> bool:
    connection = line.connection
    return not connection.is_closed() and not has_news(connection) and not (line.others and _is_read_only(connection))


def has_news(connection: asyncpg.Connection[Any]) -> bool:
    """Whether there is something to read on an idle connection: most likely the server's FATAL, so it is not used.

    A statement that is sent on it would fail, and leave open whether it was done.
    """
    transport = getattr(connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or (number := sock.fileno()) < 0:
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


def _is_read_only(connection: asyncpg.Connection[Any]) -> bool:
    """Whether the server has told that it takes no writes any more. Who only looks would never be refused."""
    settings = connection.get_settings()
    return "on" in (
        getattr(settings, "default_transaction_read_only", "off"),
        getattr(settings, "in_hot_standby", "off"),
    )
