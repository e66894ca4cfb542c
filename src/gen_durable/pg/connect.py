"""Making a connection: to a host that can be used, whatever the others do, and knowing what is in between.

In: a `Target`. Out: a connection, and the target with what was found out about it. The driver's own way with several
hosts stops at errors that are no `OSError`, and lets one host that does not answer use up the time of all. Here every
host has its own time; one that is silent is not waited for: the next is asked beside it. As long as any has not
answered, those that could not be used are asked again, so a standby that is promoted meanwhile is found.

A pooler in between is told by the number of the server process: a pooler makes up its own for the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass, replace
from typing import Any, Final

import asyncpg

from gen_durable.pg.dsn import Host, hosts_of

log = logging.getLogger("gen_durable.pg")
STAGGER: Final = 0.5
AGAIN: Final = 0.2
HOST_TIMEOUT: Final = 3.0
GRACE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and whether a pooler is in between (no named prepared statements then). None: not known."""

    dsn: str
    pooled: bool | None = None
    application_name: str = "gen_durable"
    connect_timeout: float = 10.0

    def __repr__(self) -> str:
        return "Target(...)"  # a DSN holds a password


@dataclass(frozen=True, slots=True)
class Line:
    """A connection, the host that it leads to, the other hosts of its DSN, and whether a pooler is in between."""

    connection: asyncpg.Connection[Any]
    host: Host
    others: tuple[Host, ...]
    pooled: bool


async def connect(target: Target, last: Host | None = None) -> Line:
    """A new connection; dead peers are noticed by the socket itself. The host `last` is only asked after all others."""
    hosts = hosts_of(target.dsn)
    each = tuple(sorted(hosts.each, key=lambda host: host == last))
    if len(each) == 1:
        host = each[0]
        connection = await dial(host, target, hosts.timeout or target.connect_timeout)
    else:
        host, connection = await _Round(each, target, hosts.timeout or HOST_TIMEOUT).first()
    others = tuple(other for other in each if other is not host)
    _watch_socket(connection)
    if target.pooled is not None:
        return Line(connection, host, others, target.pooled)
    try:
        pooled = await _is_pooled(connection)
    except BaseException:
        connection.terminate()
        raise
    if not pooled:
        return Line(connection, host, others, pooled)
    # This one would prepare statements on one server process and run them on another.
    connection.terminate()
    return await connect(replace(target, pooled=True), last)


class _Round:
    """One round of asking several hosts. It ends with the first that can be used, or when each has failed."""

    def __init__(self, hosts: tuple[Host, ...], target: Target, timeout: float) -> None:
        self._hosts = hosts
        self._target = target
        self._timeout = timeout
        self._turns = [asyncio.Event() for _ in hosts]
        self._errors: dict[int, Exception] = {}
        self._over = False

    async def first(self) -> tuple[Host, asyncpg.Connection[Any]]:
        tasks = [asyncio.ensure_future(self._ask(n)) for n in range(len(self._hosts))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for host, task in zip(self._hosts, tasks, strict=True):
                if task.done() and task.exception() is None:
                    tasks.remove(task)
                    return host, task.result()
        finally:
            # The others end by themselves, soon: a driver that is cancelled while it connects complains in the log.
            self._over = True
            for task in tasks:
                task.add_done_callback(_terminate)
        raise ConnectionError(self._told())

    async def _ask(self, n: int) -> asyncpg.Connection[Any]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(n * STAGGER):
                await self._turns[n].wait()
        while not self._over:
            try:
                return await dial(self._hosts[n], self._target, self._timeout)
            except Exception as error:
                self._errors[n] = error
                if len(self._errors) == len(self._hosts):
                    raise
            if n + 1 < len(self._turns):
                self._turns[n + 1].set()
            await asyncio.sleep(AGAIN)
        raise ConnectionError("another host was found")

    def _told(self) -> str:
        each = (f"{self._hosts[n].name}: {_reason(error)}" for n, error in sorted(self._errors.items()))
        return f"no host can be used: {'; '.join(each)}"


def _reason(error: Exception) -> str:
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "not to be written to"
    if isinstance(error, TimeoutError):
        return "no answer"
    return f"{type(error).__name__}: {error}"


async def dial(host: Host, target: Target, timeout: float) -> asyncpg.Connection[Any]:
    """A connection to one host."""
    connecting = asyncio.ensure_future(
        asyncpg.connect(
            host.dsn,
            statement_cache_size=0 if target.pooled else 100,
            server_settings={"application_name": target.application_name},
        )
    )
    try:
        done, _ = await asyncio.wait({connecting}, timeout=timeout)
        if not done:
            raise TimeoutError(f"no connection within {timeout:g} s")
        return connecting.result()
    except BaseException:
        # Cancelled in the very moment in which it succeeds, a connection would belong to nobody.
        connecting.add_done_callback(_terminate)
        # Cancelled in the turn of the loop in which its socket connects, the driver leaves a future that complains in
        # the log. A timeout and a socket that are ready in the same turn are what a frozen process finds as it thaws.
        asyncio.get_running_loop().call_later(GRACE, connecting.cancel)
        raise


def _terminate(connecting: asyncio.Future[asyncpg.Connection[Any]]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


async def _is_pooled(connection: asyncpg.Connection[Any]) -> bool:
    # Without parameters, so without a prepared statement; the number of rows comes back in the command's tag.
    tag = await connection.execute(
        f"select 1 where pg_catalog.pg_backend_pid() operator(pg_catalog.<>) {connection.get_server_pid()}"
    )
    return tag != "SELECT 0"


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
