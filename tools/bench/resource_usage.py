"""Reading what a run costs: CPU of the server from /proc, WAL, HOT updates, memory of a process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds and WAL bytes of the server so far."""

    cpu: float
    wal: int

    def __sub__(self, other: Reading) -> Reading:
        return Reading(self.cpu - other.cpu, self.wal - other.wal)


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of rows of a schema, and how many of them touched no index."""

    all: int
    hot: int


async def read_server(connection: asyncpg.Connection[Any], postmaster: int) -> Reading:
    """Read the CPU time and the WAL position of the server."""
    wal = await connection.fetchval("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
    return Reading(server_cpu(postmaster), wal)


async def postmaster_of(connection: asyncpg.Connection[Any]) -> int:
    """The process that is the parent of all server processes; 0 if the server is not on this machine."""
    backend = await connection.fetchval("select pg_backend_pid()")
    try:
        status = _status(backend)
    except OSError:
        return 0
    return int(status["PPid"]) if "postgres" in status["Name"] else 0


async def read_updates(connection: asyncpg.Connection[Any], schema: str) -> Updates:
    """Updates in a schema since its creation. Backends may report only at their exit: read it after the workers."""
    row = await connection.fetchrow(
        "select coalesce(sum(n_tup_upd), 0)::bigint, coalesce(sum(n_tup_hot_upd), 0)::bigint"
        " from pg_stat_user_tables where schemaname = $1",
        schema,
    )
    return Updates(*(row or (0, 0)))


def server_cpu(postmaster: int) -> float:
    """Seconds of CPU of all processes of a server, those that have ended included."""
    if not postmaster:
        return 0.0
    children = [int(pid) for pid in (PROC / f"{postmaster}/task/{postmaster}/children").read_text().split()]
    return sum(_cpu(pid) for pid in (postmaster, *children))


def memory(pid: int) -> tuple[float, float]:
    """Resident memory of a process in MB: now, and at its highest."""
    status = _status(pid)
    return int(status["VmRSS"].split()[0]) / 1024, int(status["VmHWM"].split()[0]) / 1024


def _cpu(pid: int) -> float:
    try:
        # After the name in parentheses: state, ..., utime, stime, cutime, cstime as the fields 14 to 17 of the line.
        fields = (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has just ended, and its parent counts it
    return sum(int(ticks) for ticks in fields[11:15]) / TICK


def _status(pid: int) -> dict[str, str]:
    lines = (PROC / f"{pid}/status").read_text().splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}
