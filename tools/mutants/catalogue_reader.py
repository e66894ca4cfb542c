"""The catalogue: one file per SQL file, with the mutants of it and the excuses for what has none.

In: `catalogue/NAME.toml`. Out: mutants and excuses, each with its place in the SQL. A text that does not occur exactly
once is refused, so that the catalogue cannot rot while the SQL moves on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.guards import Site, sites

ROOT = Path(__file__).parents[2]
SQL = Path("src/gen_durable/sql")
CATALOGUE = Path(__file__).parent / "catalogue"


class CatalogueError(Exception):
    """An entry that does not fit the SQL."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A piece of SQL, what stands there instead, what that breaks, and the tests that must notice."""

    file: Path
    number: int
    take: str
    leave: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.file.stem}/{self.number}"

    def apply(self, sql: str) -> str:
        start, _ = _place(self.file, sql, self.take)
        return sql[:start] + self.leave + sql[start + len(self.take) :]

    def changed(self, sql: str) -> tuple[int, int]:
        """From where to where the text differs: what both have in the beginning and in the end does not count."""
        start, end = _place(self.file, sql, self.take)
        before = _common(self.take, self.leave)
        old, new = self.take[before:], self.leave[before:]
        after = _common(old[::-1], new[::-1])
        return start + before, end - after


@dataclass(frozen=True, slots=True)
class Excuse:
    """A piece of SQL that no test can miss, and why."""

    file: Path
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All there is."""

    mutants: tuple[Mutant, ...]
    excuses: tuple[Excuse, ...]


def load() -> Catalogue:
    """Read every file of the catalogue."""
    mutants: list[Mutant] = []
    excuses: list[Excuse] = []
    for path in sorted(CATALOGUE.glob("*.toml")):
        file = _sql_file(path.stem)
        entries = tomllib.loads(path.read_text("utf-8"))
        for number, entry in enumerate(entries.get("mutant", []), 1):
            tests = tuple(entry["tests"])
            mutants.append(Mutant(file, number, entry["take"], entry.get("leave", ""), entry["breaks"], tests))
        excuses += [Excuse(file, entry["text"], entry["reason"]) for entry in entries.get("excuse", [])]
    return Catalogue(tuple(mutants), tuple(excuses))


def problems(catalogue: Catalogue) -> Iterator[str]:
    """What is wrong with the catalogue: texts that do not occur, tests that are not there, guards that nobody names."""
    for path in sorted((ROOT / SQL).glob("*/*.sql")):
        if path.parent.name in ("checks", "views"):  # they only read
            continue
        file, sql = path.relative_to(ROOT), path.read_text("utf-8")
        spans: list[tuple[int, int]] = []
        for mutant in catalogue.mutants:
            if mutant.file == file:
                try:
                    spans.append(mutant.changed(sql))
                except CatalogueError as error:
                    yield f"{mutant.name}: {error}"
                if not mutant.tests:
                    yield f"{mutant.name}: no test is named"
                yield from (f"{mutant.name}: there is no test {test}" for test in mutant.tests if not _exists(test))
        for excuse in catalogue.excuses:
            if excuse.file == file:
                try:
                    spans.append(_place(file, sql, excuse.text))
                except CatalogueError as error:
                    yield f"{file.stem}, an excuse: {error}"
        for site in sites(sql):
            if not _covered(site, spans):
                yield f"{file}:{site.line}: no mutant and no excuse for this {site.kind}: {site.text}"


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _covered(site: Site, spans: list[tuple[int, int]]) -> bool:
    return any(
        (start < site.end and site.start < end) or (start == end and site.start <= start <= site.end)
        for start, end in spans
    )


def _exists(test: str) -> bool:
    path, _, name = test.partition("::")
    source = ROOT / path
    return source.is_file() and (not name or f"def {name.partition('[')[0]}(" in source.read_text("utf-8"))


def _place(file: Path, sql: str, text: str) -> tuple[int, int]:
    found = sql.count(text)
    if found != 1:
        raise CatalogueError(f"this occurs {found} times in {file.name}, not once: {text!r}")
    start = sql.index(text)
    return start, start + len(text)


def _sql_file(stem: str) -> Path:
    for folder in ("functions", "migrations"):
        if (ROOT / SQL / folder / f"{stem}.sql").is_file():
            return SQL / folder / f"{stem}.sql"
    raise CatalogueError(f"catalogue/{stem}.toml: there is no {stem}.sql")
