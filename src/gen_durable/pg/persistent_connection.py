"""A connection that reconnects by itself.

It connects at first use and after every loss. After anything but a plain SQL error the driver's connection is
terminated and never used again. A connection opened before a fork is left alone in the child process: it belongs to
the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import asyncpg

from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.connector import ConnectionTarget, HostConnection, connect_to_first_usable_host
from gen_durable.pg.dead_server_watchdog import DeadServerWatchdog
from gen_durable.pg.dsn import may_password_be_in_other_parts
from gen_durable.pg.error_classifier import ConnectionLost, FaultKind, classify_error, to_connection_lost

if TYPE_CHECKING:
    from gen_durable.pg.dsn import Host
    from gen_durable.store.statements import Statement

__all__ = ["ConnectionTarget", "PersistentConnection", "RunStatement"]

T = TypeVar("T")
U = TypeVar("U")
log = get_escaping_logger("gen_durable.pg")


class RunStatement(Protocol):
    """Runs a statement inside a transaction."""

    async def __call__(self, statement: Statement[U]) -> U: ...


class PersistentConnection:
    """A connection that reconnects, used by one task at a time; other tasks wait."""

    __slots__ = ("_closed", "_current", "_lock", "_pid", "_silent_host", "target")

    def __init__(self, target: ConnectionTarget) -> None:
        self.target = target
        self._current: HostConnection | None = None
        self._silent_host: Host | None = None  # the host that the watchdog last found unresponsive: tried last
        self._pid = 0
        self._lock = asyncio.Lock()
        self._closed = False

    async def run(self, statement: Statement[T], *, timeout: float | None = None) -> T:
        """Run a statement. Raises `ConnectionLost`, or the server's own error."""
        async with self._lock:
            driver_connection = await self._get_or_open_connection()
            try:
                with self.watch_server():
                    rows = await driver_connection.fetch(statement.text, *statement.args, timeout=timeout)
            except BaseException as error:
                self._drop_if_unusable(error)
                if isinstance(error, Exception) and classify_error(error) is FaultKind.GONE:
                    raise to_connection_lost(error) from error
                raise
        return statement.read(rows)

    async def run_in_transaction(self, work: Callable[[RunStatement], Awaitable[T]]) -> T:
        """Run several statements in one transaction. If one fails, the connection is dropped."""
        async with self._lock:
            driver_connection = await self._get_or_open_connection()

            async def run(statement: Statement[U]) -> U:
                with _convert_lost_connection_errors():
                    rows = await driver_connection.fetch(statement.text, *statement.args)
                return statement.read(rows)

            try:
                with self.watch_server():
                    with _convert_lost_connection_errors():
                        await driver_connection.execute("begin isolation level read committed")
                    result = await work(run)  # an error of its own is no lost connection, and is raised as it is
                    with _convert_lost_connection_errors():
                        await driver_connection.execute("commit")
            except BaseException:
                self.drop()
                raise
        return result

    async def run_script(self, sql: str) -> None:
        """Run several statements without parameters in one implicit transaction."""
        async with self._lock:
            driver_connection = await self._get_or_open_connection()
            try:
                with self.watch_server():
                    await driver_connection.execute(sql)
            except BaseException as error:
                self._drop_if_unusable(error)
                if isinstance(error, Exception) and classify_error(error) is FaultKind.GONE:
                    raise to_connection_lost(error) from error
                raise

    async def connect(self) -> asyncpg.Connection[Any]:
        """Connect if needed, and return the driver's connection: for LISTEN and for transactions."""
        async with self._lock:
            return await self._get_or_open_connection()

    def watch_server(self) -> AbstractContextManager[None]:
        """`with connection.watch_server():` around a driver's statement: cuts the connection if its server is dead."""
        if self._current is None:
            return nullcontext()
        return DeadServerWatchdog(self._current, self.target, self._remember_silent_host)

    def _remember_silent_host(self, cut: HostConnection) -> None:
        self._silent_host = cut.host

    @property
    def settings_script(self) -> str:
        """The script that restores the engine's settings inside a transaction, after a `reset all`."""
        return "" if self._current is None else self._current.settings_script

    @property
    def is_closed(self) -> bool:
        """Whether this connection was closed for good."""
        return self._closed

    async def close(self) -> None:
        """Close for good: wait up to two seconds for the server, then terminate."""
        self._closed = True
        current, self._current = self._current, None
        if current is None or self._pid != os.getpid():
            return
        try:
            await asyncio.shield(current.driver_connection.close(timeout=2))
        except asyncio.CancelledError:
            current.driver_connection.terminate()
            raise
        except Exception as error:  # the driver has terminated it
            log.debug("a connection did not close in time (%s) and was terminated", type(error).__name__)

    def terminate(self) -> None:
        """Close for good without waiting for the server."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Terminate the driver's connection; the next statement opens a new one."""
        current, self._current = self._current, None
        if current is not None and self._pid == os.getpid():
            with contextlib.suppress(Exception):
                current.driver_connection.terminate()

    def _drop_if_unusable(self, error: BaseException) -> None:
        # A cancelled statement leaves the protocol in the middle of a result, so its connection is dropped, too.
        if not isinstance(error, Exception) or classify_error(error) is FaultKind.GONE:
            self.drop()

    async def _get_or_open_connection(self) -> asyncpg.Connection[Any]:
        current = self._current
        if current is not None and self._pid == os.getpid() and _is_open_and_writable(current):
            return current.driver_connection
        if self._closed:
            raise ConnectionLost(RuntimeError("this Durable is closed"), sent=False)
        self.drop()
        try:
            current = await connect_to_first_usable_host(self.target, self._silent_host)
        except Exception as error:
            lost = ConnectionLost(error, sent=False, hides_cause=may_password_be_in_other_parts(self.target.dsn))
            raise lost from (None if lost.hides_cause else error)
        if self.is_closed:  # closed while it connected
            current.driver_connection.terminate()
            raise ConnectionLost(RuntimeError("this Durable is closed"), sent=False)
        self.target = replace(self.target, pooled=current.pooled)
        self._current = current
        self._pid = os.getpid()
        return current.driver_connection


@contextlib.contextmanager
def _convert_lost_connection_errors() -> Generator[None]:
    """Raise `ConnectionLost` for an error of the driver after which the connection is useless."""
    try:
        yield
    except Exception as error:
        if classify_error(error) is FaultKind.GONE:
            raise to_connection_lost(error) from error
        raise


def _is_open_and_writable(current: HostConnection) -> bool:
    driver_connection = current.driver_connection
    if driver_connection.is_closed() or has_unread_input(driver_connection):
        return False
    return not (current.other_hosts and _is_read_only(driver_connection))


def has_unread_input(driver_connection: asyncpg.Connection[Any]) -> bool:
    """Whether an idle connection has input to read, most likely the server's FATAL.

    A statement sent on such a connection would fail and leave open whether it was executed.
    """
    transport = getattr(driver_connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or (number := sock.fileno()) < 0:
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


def _is_read_only(driver_connection: asyncpg.Connection[Any]) -> bool:
    """Whether the server has reported that it is read-only. Callers that only read would never get an error."""
    settings = driver_connection.get_settings()
    return "on" in (
        getattr(settings, "default_transaction_read_only", "off"),
        getattr(settings, "in_hot_standby", "off"),
    )
