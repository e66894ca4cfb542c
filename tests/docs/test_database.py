"""docs/reference/database.md lists the tables, the columns of instances and the functions that users may call."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

ROOT = Path(__file__).parents[2]
SQL = ROOT / "src/gen_durable/sql"
PAGE = (ROOT / "docs/reference/database.md").read_text()


def section(heading: str) -> str:
    """The text below one heading."""
    return PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(heading: str) -> set[str]:
    """The names in the first column of a section's tables."""
    rows = re.findall(r"^\| ([^|]*) \|", section(heading), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def migrations() -> str:
    """The text of all migrations."""
    return "\n".join(path.read_text() for path in sorted((SQL / "migrations").glob("*.sql")))


def test_all_tables_are_listed() -> None:
    """Each table that a migration creates, and the table of migrations itself."""
    tables = set(re.findall(r"create table @schema\.(\w+)", migrations())) | {"migrations"}
    assert first_cells("Tables") == tables


def test_all_columns_of_the_view_are_listed(dsn: str, schema: str) -> None:
    """Each column of step_status."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0", [f"{schema}.step_status"]
        ).fetchall()
    assert first_cells("The view step_status") == {name for (name,) in rows}


def test_all_columns_of_instances_are_listed() -> None:
    """Each column of the instances table, also those that a later migration adds."""
    body = re.search(r"create table @schema\.instances \(\n(.*?)\n\)", migrations(), re.DOTALL)
    assert body is not None
    columns = set(
        re.findall(
            r"^  (\w+) +(?:bigint|int|timestamptz|text|oid|smallint|boolean|jsonb|bytea|float8|@)", body[1], re.M
        )
    )
    columns |= set(re.findall(r"alter table @schema\.instances add column (?:if not exists )?(\w+)", migrations()))
    assert first_cells("Columns of instances") == columns


def test_all_functions_for_users_are_listed() -> None:
    """Each function that the roles of users are granted."""
    roles = (SQL / "roles.sql").read_text()
    arrays = re.findall(
        r"(producer|client|reader|viewer|admin) constant text\[\] := (?:[\w |]*\|\| )?array\[(.*?)\]", roles, re.DOTALL
    )
    assert {name for name, _ in arrays} == {"producer", "client", "reader", "viewer", "admin"}
    functions = {word for _, names in arrays for word in re.findall(r"'(\w+)'", names)}
    assert first_cells("Functions you may call") == functions
