"""A server that owes an answer and says nothing.

In: a connection on which a statement is under way. Out: nothing while its server is the one to wait for; else the
connection is cut, and the statement ends as lost.

A frozen server keeps its sockets open, so neither keepalives nor TCP_USER_TIMEOUT notice it; and one that was replaced
behind its back waits for ever for its synchronous standby. But a statement may take long for good reasons too, so it is
never cancelled for being slow: cancelling the wait for a standby would make the server answer for what is not
replicated. Who is silent is asked on another connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import asyncpg

from gen_durable.pg.connect import Line, Target, dial
from gen_durable.pg.dsn import Host

log = logging.getLogger("gen_durable.pg")
PATIENCE: Final = 5.0
PROBE_TIMEOUT: Final = 3.0
# The timeline goes up with every promotion. A standby, or a pooler's console, does not tell it.
_TIMELINE: Final = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)"


class Silence:
    """`with Silence(...):` around a statement; `on_cut` is told when its connection was cut."""

    __slots__ = ("_alarm", "_line", "_looking", "_loop", "_on_cut", "_target")

    def __init__(self, line: Line, target: Target, on_cut: Callable[[Line], None]) -> None:
        self._line = line
        self._target = target
        self._on_cut = on_cut
        self._looking: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._alarm = self._loop.call_later(PATIENCE, self._look_soon)

    def __exit__(self, *_: object) -> None:
        self._alarm.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _look_soon(self) -> None:
        self._looking = self._loop.create_task(self._look(), name="gen_durable probe")

    async def _look(self) -> None:
        reason = await why_not_wait(self._line, self._target)
        if reason is None:
            self._alarm = self._loop.call_later(PATIENCE, self._look_soon)
            return
        log.warning("%s does not answer, and %s: its connection is cut", self._line.host.name, reason)
        self._on_cut(self._line)
        self._line.connection.terminate()


async def why_not_wait(line: Line, target: Target) -> str | None:
    """Why an answer on a connection is not worth waiting for; None: it is."""
    probe = replace(target, application_name="gen_durable probe")
    ours, *others = await asyncio.gather(*(_timeline(host, probe) for host in (line.host, *line.others)))
    if ours is None:
        return "speaks to nobody"
    if ours and any(other is not None and other > ours for other in others):
        return "another host was promoted"
    return None


async def _timeline(host: Host, probe: Target) -> str | None:
    """The timeline that a server writes; empty if it answers, but does not tell; None if it does not answer."""
    try:
        connection = await dial(host, probe, PROBE_TIMEOUT)
    except asyncpg.PostgresError:
        return ""  # a refusal is an answer too
    except Exception:
        return None
    try:
        return str(await connection.fetchval(_TIMELINE, timeout=PROBE_TIMEOUT))
    except asyncpg.PostgresError:
        return ""
    except Exception:
        return None
    finally:
        connection.terminate()
