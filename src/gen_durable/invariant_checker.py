"""The doctor: checks the invariants of a schema, for the command line and tests.

Reads only, one statement at a time: each answer is of one snapshot.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gen_durable.pg.installed_schema import read_role_prefix
from gen_durable.pg.persistent_connection import PersistentConnection, RunStatement
from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import checks, owner_members_query, roles_check_query
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row


@dataclass(frozen=True, slots=True)
class Violation:
    """A row that breaks an invariant; without an id, an object of the schema that does."""

    id: int | None
    problem: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: how many rows break the invariant, and the first of them."""

    check: str
    meaning: str
    count: int
    first: tuple[Violation, ...]

    @property
    def is_clean(self) -> bool:
        """Whether the invariant holds."""
        return self.count == 0

    @property
    def violation_id_kind(self) -> str:
        """What the ids of the violations identify: an instance, a process, a lock or a queue."""
        return _VIOLATION_ID_KINDS.get(self.check, "instance")


@dataclass(frozen=True, slots=True)
class Advice:
    """What is allowed and may be a mistake: the doctor shows it, and still counts as clean."""

    about: str
    meaning: str
    lines: tuple[str, ...]


async def diagnose(connection: PersistentConnection, schema: Schema, *, show: int = 20) -> list[Finding]:
    """Run every check in `sql/checks`. An invariant holds if its check returns no row, also while workers run."""
    findings: list[Finding] = []
    for name, sql in checks(schema):
        rows = await connection.run_in_transaction(
            functools.partial(
                _run_with_fixed_search_path,
                statement=Statement(_FIRST.replace("@check", sql), (show,), _rows_unchanged),
            )
        )
        first = tuple(Violation(row[0], row[1]) for row in rows)
        findings.append(Finding(name, _leading_comment(sql), rows[0][2] if rows else 0, first))
    return findings


async def check_roles(connection: PersistentConnection, schema: Schema, *, show: int = 20) -> Finding | None:
    """Compare owners, rights and functions with those that `migrate --roles` makes. None if there are no roles."""
    prefix = await read_role_prefix(connection, schema)
    if prefix is None:
        return None
    statement = Statement(roles_check_query(schema, prefix), (), _rows_unchanged)
    rows = await connection.run_in_transaction(functools.partial(_run_with_fixed_search_path, statement=statement))
    meaning = (
        "Owners and rights are as `gen-durable migrate --roles` makes them. Drop what is not gen_durable's, then run "
        "`gen-durable migrate --roles`, which restores the others."
    )
    return Finding("roles", meaning, len(rows), tuple(Violation(None, row[0]) for row in rows[:show]))


async def find_owner_members(connection: PersistentConnection, schema: Schema, *, show: int = 20) -> Advice | None:
    """Other logins with the rights of the owner. None if there are none, or no roles."""
    prefix = await read_role_prefix(connection, schema)
    if prefix is None:
        return None
    statement = Statement(owner_members_query(schema, prefix), (), _rows_unchanged)
    rows = await connection.run_in_transaction(functools.partial(_run_with_fixed_search_path, statement=statement))
    meaning = (
        f"Only the login that migrates needs to be a member of {prefix}_owner, and no service should have that login. "
        f"Revoke other memberships: `revoke {prefix}_owner from LOGIN`."
    )
    return Advice("owner_members", meaning, tuple(row[0] for row in rows[:show])) if rows else None


async def _run_with_fixed_search_path(run: RunStatement, *, statement: Statement[Sequence[Row]]) -> Sequence[Row]:
    # Checks use unqualified names such as now(), whatever the caller's search_path is.
    await run(Statement("set local search_path = pg_catalog, pg_temp", (), _rows_unchanged))
    return await run(statement)


def _rows_unchanged(rows: Sequence[Row]) -> Sequence[Row]:
    return rows


def _leading_comment(sql: str) -> str:
    lines: list[str] = []
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return " ".join(lines)


_VIOLATION_ID_KINDS: Final = {
    "long_gate_lock_holder": "pid",
    "missing_gate_lock": "lock",
    "full_notification_queue": "queue",
}
# A check begins with a comment, so it needs a line of its own.
_FIRST: Final = """select v.id, v.problem, count(*) over () from (
@check
) as v order by v.id limit $1"""
