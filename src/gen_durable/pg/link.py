"""One connection that heals.

In: a `Call`. Out: its answer, or `ConnectionLost`, or the server's own error. Connects at first use and after every
loss; a connection that raised anything but a plain SQL error is terminated and never used again. A connection made
before a fork is left alone in the child: it belongs to the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import asyncpg

from gen_durable.pg.faults import ConnectionLost, Fault, classify

if TYPE_CHECKING:
    from gen_durable.store.calls import Call

T = TypeVar("T")
U = TypeVar("U")
log = logging.getLogger("gen_durable.pg")


class Ask(Protocol):
    """Runs a call inside a transaction."""

    async def __call__(self, call: Call[U]) -> U: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and whether a transaction pooler is in between (no named prepared statements then)."""

    dsn: str
    pooled: bool = False
    application_name: str = "gen_durable"
    connect_timeout: float = 10.0

    def __repr__(self) -> str:
        return "Target(...)"  # a DSN holds a password


class Link:
    """A self-healing connection, used by one task at a time (others wait their turn)."""

    __slots__ = ("_closed", "_connection", "_lock", "_pid", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self._connection: asyncpg.Connection[Any] | None = None
        self._pid = 0
        self._lock = asyncio.Lock()
        self._closed = False

    async def run(self, call: Call[T], *, timeout: float | None = None) -> T:
        """Run a call on this connection, connecting first if need be."""
        async with self._lock:
            connection = await self._connected()
            try:
                rows = await connection.fetch(call.text, *call.args, timeout=timeout)
            except BaseException as error:
                self._after(error)
                if isinstance(error, Exception) and classify(error) is Fault.GONE:
                    raise ConnectionLost(error, sent=True) from error
                raise
        return call.read(rows)

    async def transact(self, work: Callable[[Ask], Awaitable[T]]) -> T:
        """Run several calls in one transaction. One that fails takes its connection with it."""
        async with self._lock:
            connection = await self._connected()

            async def ask(call: Call[U]) -> U:
                return call.read(await connection.fetch(call.text, *call.args))

            try:
                await connection.execute("begin")
                answer = await work(ask)
                await connection.execute("commit")
            except BaseException as error:
                self.drop()
                if isinstance(error, Exception) and classify(error) is Fault.GONE:
                    raise ConnectionLost(error, sent=True) from error
                raise
        return answer

    async def script(self, sql: str) -> None:
        """Run statements without parameters in one implicit transaction (migrations)."""
        async with self._lock:
            connection = await self._connected()
            try:
                await connection.execute(sql)
            except BaseException as error:
                self._after(error)
                if isinstance(error, Exception) and classify(error) is Fault.GONE:
                    raise ConnectionLost(error, sent=True) from error
                raise

    async def raw(self) -> asyncpg.Connection[Any]:
        """The connection itself, for LISTEN and for transactions of several statements."""
        async with self._lock:
            return await self._connected()

    @property
    def closed(self) -> bool:
        """Whether this link was closed for good."""
        return self._closed

    async def close(self) -> None:
        """Close politely, or not at all if that does not work at once."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is None or self._pid != os.getpid():
            return
        try:
            await asyncio.shield(connection.close(timeout=2))
        except (Exception, asyncio.CancelledError):
            connection.terminate()
            raise

    def close_soon(self) -> None:
        """Close without waiting: the server is told, its answer is not heard."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Throw the connection away; the next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            with contextlib.suppress(Exception):
                connection.terminate()

    def _after(self, error: BaseException) -> None:
        # A cancelled statement leaves the protocol in the middle of an answer, so that connection goes too.
        if not isinstance(error, Exception) or classify(error) is Fault.GONE:
            self.drop()

    async def _connected(self) -> asyncpg.Connection[Any]:
        connection = self._connection
        if (
            connection is not None
            and self._pid == os.getpid()
            and not connection.is_closed()
            and not _has_news(connection)
        ):
            return connection
        if self._closed:
            raise ConnectionLost(RuntimeError("this Durable is closed"), sent=False)
        self.drop()
        try:
            connection = await connect(self.target)
        except Exception as error:
            raise ConnectionLost(error, sent=False) from error
        if self.closed:  # meanwhile
            connection.terminate()
            raise ConnectionLost(RuntimeError("this Durable is closed"), sent=False)
        self._connection = connection
        self._pid = os.getpid()
        return connection


async def connect(target: Target) -> asyncpg.Connection[Any]:
    """A new connection; dead peers are noticed by the socket itself."""
    connecting = asyncio.ensure_future(
        asyncpg.connect(
            target.dsn,
            statement_cache_size=0 if target.pooled else 100,
            server_settings={"application_name": target.application_name},
        )
    )
    try:
        async with asyncio.timeout(target.connect_timeout):
            connection: asyncpg.Connection[Any] = await asyncio.shield(connecting)
    except BaseException:
        # Cancelled in the very moment in which it succeeds, a connection would belong to nobody.
        connecting.add_done_callback(_terminate)
        connecting.cancel()
        raise
    _watch_socket(connection)
    return connection


def _terminate(connecting: asyncio.Future[asyncpg.Connection[Any]]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


def _has_news(connection: asyncpg.Connection[Any]) -> bool:
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


def _watch_socket(connection: asyncpg.Connection[Any]) -> None:
    """asyncpg sets no keepalive: without it a link that was cut is waited on for ever."""
    transport = getattr(connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000)):
        number = getattr(socket, option, None)
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
