"""Reading: what is in the database, for people who look at it.

In: a link and a schema. Out: typed rows, for the command line and for whoever else shows them. Reads only, one
statement at a time: each answer is of one snapshot.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gen_durable.instances import Status
from gen_durable.pg.connection import PersistentConnection, RunStatement
from gen_durable.store.schema import Schema, checks
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row


@dataclass(frozen=True, slots=True)
class Violation:
    """A row that breaks an invariant."""

    id: int
    problem: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of the doctor found: how many rows in all, and the first of them."""

    check: str
    meaning: str
    count: int
    first: tuple[Violation, ...]

    @property
    def clean(self) -> bool:
        """Whether the invariant holds."""
        return self.count == 0


@dataclass(frozen=True, slots=True)
class Tally:
    """How many instances of a machine are at a step in a status."""

    machine: str
    step: str
    status: Status
    count: int


async def diagnose(link: PersistentConnection, schema: Schema, *, show: int = 20) -> list[Finding]:
    """Run every check of the doctor. An invariant holds when its check returns no row; a busy database is no excuse."""
    findings: list[Finding] = []
    for name, sql in checks(schema):
        rows = await link.run_in_transaction(
            functools.partial(_asked, call=Statement(_FIRST.replace("@check", sql), (show,), _rows))
        )
        first = tuple(Violation(row[0], row[1]) for row in rows)
        findings.append(Finding(name, _leading_comment(sql), rows[0][2] if rows else 0, first))
    return findings


async def census(link: PersistentConnection, schema: Schema) -> list[Tally]:
    """All instances, counted by machine, step and status. Reads the whole table: for small ones."""
    return await link.run(
        Statement(schema.render(_CENSUS), (), lambda rows: [Tally(r[0], r[1], Status(r[2]), r[3]) for r in rows])
    )


async def _asked(ask: RunStatement, *, call: Statement[Sequence[Row]]) -> Sequence[Row]:
    # Checks say now() and mean Postgres' own, wherever the caller's search_path leads.
    await ask(Statement("set local search_path = pg_catalog, pg_temp", (), _rows))
    return await ask(call)


def _rows(rows: Sequence[Row]) -> Sequence[Row]:
    return rows


def _leading_comment(sql: str) -> str:
    lines: list[str] = []
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return " ".join(lines)


# The check begins with a comment line, so it begins on a line of its own.
_FIRST: Final = """select v.id, v.problem, count(*) over () from (
@check
) as v order by v.id limit $1"""
_CENSUS: Final = (
    "select fsm, step, status::text, count(*) from @schema.instances group by fsm, step, status order by 1, 2, 3"
)
