"""Functions that users may call carry a comment, which `\\df+` shows."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

import gen_durable

ROLES = (Path(gen_durable.__file__).parent / "sql/roles.sql").read_text()
UNCOMMENTED = """
select p.oid::regprocedure::text from pg_proc p
where p.pronamespace = %s::regnamespace and p.proname = any (%s) and obj_description(p.oid, 'pg_proc') is null
"""


def callable_names() -> set[str]:
    """The functions that roles.sql grants to users."""
    arrays = re.findall(
        r"(producer|client|reader|viewer|admin) constant text\[\] := (?:[\w |]*\|\| )?array\[(.*?)\]", ROLES, re.DOTALL
    )
    assert {role for role, _ in arrays} == {"producer", "client", "reader", "viewer", "admin"}
    return {name for _, names in arrays for name in re.findall(r"'(\w+)'", names)}


def test_each_function_for_users_has_a_comment(dsn: str, schema: str) -> None:
    """Each overload: a function without one is not explained in psql."""
    with psycopg.connect(dsn) as connection:
        missing = connection.execute(UNCOMMENTED, [f'"{schema}"', sorted(callable_names())]).fetchall()
    assert missing == []
