"""The world outside of the database, made of one file: a line for all that happens, in the order it happened.

In: what worker processes do and notice. Out: notes, for the one who tells the story. Each note is one write to a file
opened for appending, so those of several processes do not mix, and a killed process has written what it has done.
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

NOTES: Final = "GEN_DURABLE_DEMO_NOTES"
PACE: Final = "GEN_DURABLE_DEMO_PACE"

Kind = Literal["ready", "began", "committed", "reaped"]


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened in a worker process."""

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


async def act(ctx: Context, subject: str, *, seconds: float) -> None:
    """Do something that no transaction takes back: note it first, then take time."""
    write(began(ctx, subject))
    await asyncio.sleep(seconds * float(os.environ[PACE]))


def began(ctx: Context, subject: str) -> Note:
    """The note of an execution of a step."""
    return Note(
        "began", time.time(), os.getpid(), ctx.worker, ctx.id, machine=ctx.machine, step=ctx.step, subject=subject
    )


def write(note: Note) -> None:
    """Append a note to the file that the environment names."""
    line = msgspec.json.encode(note) + b"\n"
    file = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


class Reader:
    """Reads a file of notes while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def fresh(self) -> Iterator[Note]:
        """The notes that came since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._offset += len(line)
                yield msgspec.json.decode(line, type=Note)
