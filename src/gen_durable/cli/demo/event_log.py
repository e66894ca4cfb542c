"""A file that records what worker processes do, one line per event, outside of the database.

It knows nothing of transactions, so a step that ran twice is in it twice. Each entry is one write to a file opened for
appending: entries of several processes do not mix, and a killed process has recorded everything it began.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from gen_durable.context import Context

EVENT_LOG: Final = "GEN_DURABLE_DEMO_EVENT_LOG"
PACE: Final = "GEN_DURABLE_DEMO_PACE"

Kind = Literal["ready", "started", "committed", "reaped"]


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event in a worker process."""

    kind: Kind
    at: float
    pid: int
    worker: str = ""
    id: int = 0
    machine: str = ""
    step: str = ""
    subject: str = ""
    outcome: str = ""
    ids: tuple[int, ...] = ()


async def record_side_effect_and_sleep(ctx: Context, subject: str, *, seconds: float) -> None:
    """Stand for an effect that no rollback undoes: record it, then take some time."""
    append_entry(make_start_entry(ctx, subject))
    await asyncio.sleep(seconds * float(os.environ[PACE]))


def make_start_entry(ctx: Context, subject: str) -> LogEntry:
    """The entry for the start of a step."""
    return LogEntry(
        "started", time.time(), os.getpid(), ctx.worker, ctx.id, machine=ctx.machine, step=ctx.step, subject=subject
    )


def append_entry(entry: LogEntry) -> None:
    """Append an entry to the file that the environment variable names."""
    line = msgspec.json.encode(entry) + b"\n"
    file = os.open(os.environ[EVENT_LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


class EventLogReader:
    """Reads the file while processes write to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new_entries(self) -> Iterator[LogEntry]:
        """The entries since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._offset += len(line)
                yield msgspec.json.decode(line, type=LogEntry)
