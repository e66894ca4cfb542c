"""Open a connection to the first usable host of a DSN, and detect a connection pooler in between.

asyncpg's own handling of several hosts stops at errors other than `OSError`, and one host that does not answer uses up
the time of all. Here each host has a timeout of its own, and hosts are tried in parallel with staggered starts. While
any host has not answered, the failed ones are tried again, so a standby that is promoted meanwhile is found.

A pooler is detected by the backend pid: a pooler reports a made-up one to its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass, replace
from typing import Any, Final

import asyncpg

from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.dsn import VERIFY_FULL, Host, are_all_hosts_local, split_dsn_by_host
from gen_durable.pg.session_settings import (
    ALLOW_WRITES,
    IS_READ_ONLY_ROLE,
    session_settings_script,
    transaction_settings_script,
)

log = get_escaping_logger("gen_durable.pg")
STAGGER: Final = 0.5
RETRY_PAUSE: Final = 0.2
HOST_TIMEOUT: Final = 3.0
CANCEL_DELAY: Final = 0.3


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """Where to connect. `pooled` says whether a pooler is in between, `None` means unknown.

    Behind a pooler no named prepared statements are used. With `requires_tls` a host that is not on this machine gets
    no byte of a login before its certificate is verified, whatever the DSN and the environment say.
    """

    dsn: str
    pooled: bool | None = None
    application_name: str = "gen_durable"
    connect_timeout: float = 10.0
    requires_tls: bool = False

    def __repr__(self) -> str:
        return "ConnectionTarget(...)"  # a DSN holds a password


@dataclass(frozen=True, slots=True)
class HostConnection:
    """A driver connection, its host, the other hosts of its DSN, and whether a pooler is in between.

    `settings_script` is the script that restores the engine's settings inside a transaction, after a `reset all`.
    """

    driver_connection: asyncpg.Connection[Any]
    host: Host
    other_hosts: tuple[Host, ...]
    pooled: bool
    settings_script: str = ""


async def connect_to_first_usable_host(target: ConnectionTarget, avoid: Host | None = None) -> HostConnection:
    """Connect, with TCP keepalives and the engine's settings. The host `avoid` is tried after all others."""
    dsn_hosts = split_dsn_by_host(target.dsn)
    hosts = tuple(sorted(dsn_hosts.hosts, key=lambda host: host == avoid))
    if len(hosts) == 1:
        host = hosts[0]
        driver_connection = await connect_to_host(host, target, dsn_hosts.timeout or target.connect_timeout)
    else:
        host, driver_connection = await _HostRace(hosts, target, dsn_hosts.timeout or HOST_TIMEOUT).connect_first()
    other_hosts = tuple(other for other in hosts if other is not host)
    _enable_tcp_keepalive(driver_connection)
    pooled = target.pooled
    settings_script = transaction_settings_script(driver_connection.get_server_version().major)
    try:
        if pooled is None:
            pooled = await _is_behind_pooler(driver_connection, target.connect_timeout)
        if not pooled:
            settings_script = await _apply_session_settings(driver_connection, target.connect_timeout)
    except BaseException:
        driver_connection.terminate()
        raise
    if pooled == bool(target.pooled):
        return HostConnection(driver_connection, host, other_hosts, pooled, settings_script)
    # This connection was opened with a statement cache: behind a pooler it would prepare a statement on one server
    # process and run it on another.
    driver_connection.terminate()
    return await connect_to_first_usable_host(replace(target, pooled=True), avoid)


class _HostRace:
    """Tries several hosts. Ends with the first usable one, or when each has failed at least once."""

    def __init__(self, hosts: tuple[Host, ...], target: ConnectionTarget, timeout: float) -> None:
        self._hosts = hosts
        self._target = target
        self._timeout = timeout
        self._may_start = [asyncio.Event() for _ in hosts]
        self._errors: dict[int, Exception] = {}
        self._is_over = False

    async def connect_first(self) -> tuple[Host, asyncpg.Connection[Any]]:
        tasks = [asyncio.ensure_future(self._try_host(n)) for n in range(len(self._hosts))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for host, task in zip(self._hosts, tasks, strict=True):
                if task.done() and task.exception() is None:
                    tasks.remove(task)
                    return host, task.result()
        finally:
            # The other attempts end soon by themselves. Cancelling asyncpg while it connects would log an error.
            self._is_over = True
            for task in tasks:
                task.add_done_callback(_terminate_late_connection)
        raise ConnectionError(self._summarize_errors())

    async def _try_host(self, n: int) -> asyncpg.Connection[Any]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(n * STAGGER):
                await self._may_start[n].wait()
        while not self._is_over:
            try:
                return await connect_to_host(self._hosts[n], self._target, self._timeout)
            except Exception as error:
                self._errors[n] = error
                if len(self._errors) == len(self._hosts):
                    raise
            if n + 1 < len(self._may_start):
                self._may_start[n + 1].set()
            await asyncio.sleep(RETRY_PAUSE)
        raise ConnectionError("another host was found")

    def _summarize_errors(self) -> str:
        causes = (
            f"{self._hosts[n].name}: {_describe_connect_error(error)}" for n, error in sorted(self._errors.items())
        )
        return f"no usable host: {'; '.join(causes)}"


def _describe_connect_error(error: Exception) -> str:
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "the server is read-only"
    if isinstance(error, TimeoutError):
        return "no answer"
    return f"{type(error).__name__}: {error}"


async def connect_to_host(host: Host, target: ConnectionTarget, timeout: float) -> asyncpg.Connection[Any]:
    """Connect to one host. Raises `TimeoutError` if it does not answer in time."""
    connecting = asyncio.ensure_future(
        asyncpg.connect(
            host.dsn,
            statement_cache_size=0 if target.pooled else 100,
            server_settings={"application_name": target.application_name},
            ssl=VERIFY_FULL if target.requires_tls and not are_all_hosts_local(host.dsn, os.environ) else None,
        )
    )
    try:
        done, _ = await asyncio.wait({connecting}, timeout=timeout)
        if not done:
            raise TimeoutError(f"no connection within {timeout:g} s")
        return connecting.result()
    except BaseException:
        # The connection may succeed in the moment of the cancel: without this callback it would leak.
        connecting.add_done_callback(_terminate_late_connection)
        # If asyncpg is cancelled in the same loop iteration in which its socket connects, it leaves a future whose
        # error is logged at garbage collection. A process that thaws finds timeout and socket ready in the same
        # iteration, so the cancel is delayed. Guarded by test_given_up_at_any_moment.
        asyncio.get_running_loop().call_later(CANCEL_DELAY, connecting.cancel)
        raise


def _terminate_late_connection(connecting: asyncio.Future[asyncpg.Connection[Any]]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


async def _apply_session_settings(driver_connection: asyncpg.Connection[Any], timeout: float) -> str:
    """Set what the engine relies on. Returns the script that does it."""
    settings_script = session_settings_script(driver_connection.get_server_version().major)
    # Postgres 14 and later report the setting, so only a session that is read-only costs a question.
    if getattr(driver_connection.get_settings(), "default_transaction_read_only", "on") == "on":
        tag = await driver_connection.execute(IS_READ_ONLY_ROLE, timeout=timeout)
        if tag != "SELECT 0":
            settings_script = f"{settings_script};{ALLOW_WRITES}"
    await driver_connection.execute(settings_script, timeout=timeout)
    return settings_script


async def _is_behind_pooler(driver_connection: asyncpg.Connection[Any], timeout: float) -> bool:
    # Without parameters asyncpg prepares no statement; the command tag carries the row count.
    tag = await driver_connection.execute(
        f"select 1 where pg_catalog.pg_backend_pid() operator(pg_catalog.<>) {driver_connection.get_server_pid()}",
        timeout=timeout,
    )
    return tag != "SELECT 0"


def _enable_tcp_keepalive(driver_connection: asyncpg.Connection[Any]) -> None:
    """Set TCP keepalives: asyncpg sets none, and would wait forever on a connection that was cut."""
    transport = getattr(driver_connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000)):
        number = getattr(socket, option, None)
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
