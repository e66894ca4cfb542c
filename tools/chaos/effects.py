"""Effects: the record of executions outside of the database.

A step writes a line before its work and one after it, in one write each to a file of its process that is only appended
to: what was written stays, whatever becomes of the process. Times are CLOCK_MONOTONIC, which all processes of a
machine share and no process can set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gen_durable import Context


class Effects:
    """The file of one worker process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def begin(self, ctx: Context) -> None:
        """One execution of a step whose end is not recorded."""
        self.write(f"begin {ctx.id} {ctx.claim} {ctx.seq} {ctx.attempt} {ctx.machine}.{ctx.step}")

    @contextmanager
    def of(self, ctx: Context) -> Generator[None]:
        """One execution of a step, from its beginning to its end, however it ends."""
        words = f"{ctx.id} {ctx.claim} {ctx.seq} {ctx.attempt} {ctx.machine}.{ctx.step}"
        self.write(f"begin {words}")
        try:
            yield
        finally:
            self.write(f"end {words}")

    def write(self, words: str) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {words}\n".encode())


@dataclass(slots=True)
class Execution:
    """One execution, as its process recorded it. `ended` is None if its process died before."""

    worker: str
    id: int
    claim: int
    seq: int
    attempt: int
    step: str
    began: int
    ended: int | None = None


class Reader:
    """Reads the files of all workers as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[Path, int] = {}
        self._open: dict[tuple[str, int, int, int], Execution] = {}
        self.executions: list[Execution] = []
        self.notes: dict[str, int] = {}  # other events, by name

    def read(self) -> list[Execution]:
        """The executions that began since the last call. An incomplete line is left for the next call."""
        fresh: list[Execution] = []
        for path in sorted(self._directory.iterdir()):
            with path.open("rb") as file:
                file.seek(self._places.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._places[path] = self._places.get(path, 0) + len(whole)
            for line in whole.decode().splitlines():
                self._take(path.name, line.split(" "), fresh)
        self.executions += fresh
        return fresh

    def _take(self, worker: str, words: list[str], fresh: list[Execution]) -> None:
        match words:
            case [at, "begin", instance, claim, seq, attempt, step]:
                begun = Execution(worker, int(instance), int(claim), int(seq), int(attempt), step, int(at))
                self._open[worker, begun.id, begun.claim, begun.seq] = begun
                fresh.append(begun)
            case [at, "end", instance, claim, seq, _, _]:
                ended = self._open.pop((worker, int(instance), int(claim), int(seq)), None)
                if ended is not None:
                    ended.ended = int(at)
            case [_, "note", name, *_]:
                self.notes[name] = self.notes.get(name, 0) + 1
            case _:
                raise ValueError(f"{worker} wrote an unknown line: {words}")
