"""The mutations that no test can notice, each with its reason: `excuses.toml`.

An entry names the file, the function and the text of the line, so that it stays right when lines move.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.mutants.python.mutations import Mutation, find_mutations

EXCUSES: Final = Path(__file__).with_name("excuses.toml")


@dataclass(frozen=True, slots=True)
class Excuse:
    """A mutation, or without `becomes` all mutations of a line, and why no test notices."""

    file: str
    function: str
    line: str
    becomes: str | None
    reason: str

    def covers(self, file: str, mutation: Mutation) -> bool:
        return (
            (file, mutation.function, mutation.text) == (self.file, self.function, self.line)
            and (self.becomes is None or self.becomes == mutation.changed)
        )  # fmt: skip


def load(path: Path = EXCUSES) -> list[Excuse]:
    entries = tomllib.loads(path.read_text("utf-8")).get("excuse", [])
    return [Excuse(e["file"], e["function"], e["line"], e.get("becomes"), e["reason"]) for e in entries]


def find_excuse(excuses: list[Excuse], file: str, mutation: Mutation) -> Excuse | None:
    return next((excuse for excuse in excuses if excuse.covers(file, mutation)), None)


def problems(excuses: list[Excuse], package: Path) -> Iterator[str]:
    """Excuses for lines that are not there any more."""
    for excuse in excuses:
        path = package / excuse.file
        mutations = find_mutations(path.read_text("utf-8")) if path.is_file() else []
        if not excuse.reason:
            yield f"{excuse.file}: no reason is given for {excuse.line!r}"
        if not any(excuse.covers(excuse.file, mutation) for mutation in mutations):
            yield f"{excuse.file}: {excuse.function} has no such mutation: {excuse.line!r} -> {excuse.becomes!r}"
