"""Cut a connection whose server owes a result and is dead or replaced.

A frozen server keeps its sockets open, so neither keepalives nor TCP_USER_TIMEOUT notice it; and a primary that was
replaced waits forever for its synchronous standby. But a statement may also be slow for good reasons, so slowness alone
never cancels it: cancelling the wait for a standby would make the server acknowledge a commit that is not replicated.
The watchdog probes a silent server on a second connection, and cuts the first one only if the probe finds the server
dead or superseded. The statement then ends with `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import asyncpg

from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.connector import ConnectionTarget, HostConnection, connect_to_host
from gen_durable.pg.dsn import Host

log = get_escaping_logger("gen_durable.pg")
PROBE_AFTER: Final = 5.0
PROBE_TIMEOUT: Final = 3.0
# The timeline goes up with every promotion. A standby, or a pooler's console, cannot report it.
_TIMELINE: Final = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)"


class DeadServerWatchdog:
    """`with DeadServerWatchdog(...):` around a statement; calls `on_cut` when it cuts the statement's connection."""

    __slots__ = ("_loop", "_on_cut", "_probe", "_target", "_timer", "_watched")

    def __init__(
        self, watched: HostConnection, target: ConnectionTarget, on_cut: Callable[[HostConnection], None]
    ) -> None:
        self._watched = watched
        self._target = target
        self._on_cut = on_cut
        self._probe: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(PROBE_AFTER, self._start_probe_in_background)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._probe is not None:
            self._probe.cancel()

    def _start_probe_in_background(self) -> None:
        self._probe = self._loop.create_task(self._probe_and_cut_if_dead(), name="gen_durable probe")

    async def _probe_and_cut_if_dead(self) -> None:
        problem = await find_server_problem(self._watched, self._target)
        if problem is None:
            self._timer = self._loop.call_later(PROBE_AFTER, self._start_probe_in_background)
            return
        log.warning(
            "%s has not answered for %g s and %s: cutting its connection", self._watched.host.name, PROBE_AFTER, problem
        )
        self._on_cut(self._watched)
        self._watched.driver_connection.terminate()


async def find_server_problem(watched: HostConnection, target: ConnectionTarget) -> str | None:
    """Why a result on this connection is not worth waiting for, or None if the server is alive."""
    probe = replace(target, application_name="gen_durable probe")
    ours, *others = await asyncio.gather(
        *(_probe_timeline(host, probe) for host in (watched.host, *watched.other_hosts))
    )
    if ours is None:
        return "accepts no new connection"
    if ours and any(other is not None and other > ours for other in others):
        return "another host was promoted"
    return None


async def _probe_timeline(host: Host, probe: ConnectionTarget) -> str | None:
    """The timeline that a server writes. Empty if the server is alive but cannot report it, None if it is dead."""
    try:
        driver_connection = await connect_to_host(host, probe, PROBE_TIMEOUT)
    except asyncpg.PostgresError:
        return ""  # the server rejected the login, so it is alive
    except Exception:
        return None
    try:
        return str(await driver_connection.fetchval(_TIMELINE, timeout=PROBE_TIMEOUT))
    except asyncpg.PostgresError:
        return ""
    except Exception:
        return None
    finally:
        driver_connection.terminate()
