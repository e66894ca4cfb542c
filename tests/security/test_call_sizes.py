"""Every function that a role may call refuses arrays and lists that are larger than any call of the library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.roles import logins

MOST = 100_000
ARRAYS = """
select p.proname, p.oid::regprocedure::text, p.oid, array(
  select format_type(kind, null) from unnest(p.proargtypes) with ordinality as given (kind, place) order by place
)
from pg_proc p
where p.pronamespace = %s::regnamespace and exists (
  select from unnest(p.proargtypes) as kind join pg_type t on t.oid = kind where t.typelem <> 0 and t.typlen = -1
)
order by 2
"""
# The lists inside of a JSON value, by the call that brings one with %s elements.
LISTS = {
    "list": """@.list(jsonb_build_object('status', jsonb_agg('done'::text)), null, 10) from generate_series(1, %s)""",
    "count": """@.count(jsonb_build_object('status', jsonb_agg('done'::text)), 10) from generate_series(1, %s)""",
    "insert": "@.insert('m', 's', limits => jsonb_agg('x'::text)) from generate_series(1, %s)",
    "signal_or_start": "@.signal_or_start('k', 'x', 'null', jsonb_build_object('fsm', 'm', 'step', 's', 'signals', "
    'jsonb_agg(\'{"name": "x"}\'::jsonb))) from generate_series(1, %s)',
    "debounce": "@.debounce('k', jsonb_build_object('fsm', 'm', 'step', 's', 'limits', jsonb_agg(array['x', null, '1'])"
    ")) from generate_series(1, %s)",
    "replace_payloads": "@.replace_payloads('instances', 'state', jsonb_agg(1), null, null, null) "
    "from generate_series(1, %s)",
    "insert_instances_of_outcomes": "@.insert_instances_of_outcomes('{1}', '{1}', '{1}', '{done}', "
    "array[jsonb_build_object('spawn', jsonb_agg('{}'::jsonb))]) from generate_series(1, %s)",
    **{
        f"flush, {field}": f"@.flush('{{1}}', '{{1}}', '{{1}}', '{{done}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', "
        f"array[jsonb_build_object('{field}', jsonb_agg(null::int))]) from generate_series(1, %s)"
        for field in ("awaits", "seen", "consumed", "left")
    },
}


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found


def is_refused(connection: psycopg.Connection[Any], statement: str) -> str | None:
    """Whether a call is refused for its size: None, or what happened instead."""
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        primary = str(error.diag.message_primary)
        is_ours = error.sqlstate == "22023" and "elements go in one call, got" in primary
        return None if is_ours else f"{error.sqlstate} {primary}"
    finally:
        connection.rollback()
    return "it ran"


def test_every_array_of_every_function_has_a_bound(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Each array alone, with one element too many, by every role that may call the function."""
    with psycopg.connect(dsn) as owner:
        functions = owner.execute(ARRAYS, [f'"{schema}"']).fetchall()
    wrong: list[str] = []
    calls = 0
    for login, login_dsn in dsns.items():
        with psycopg.connect(login_dsn) as connection:
            connection.execute("set statement_timeout = '10s'")
            may_call = "select has_function_privilege(%s::oid, 'execute')"
            connection.commit()
            for name, signature, oid, kinds in functions:
                if connection.execute(may_call, [oid]).fetchone() != (True,):
                    connection.rollback()
                    continue
                for place, kind in enumerate(kinds):
                    if not kind.endswith("[]"):
                        continue
                    values = [f"null::{other}" for other in kinds]
                    values[place] = f"array_fill(null::{kind[:-2]}, array[{MOST + 1}])"
                    if name == "insert":  # its first check
                        values[kinds.index("text", 0)] = "'raise'"
                    problem = is_refused(connection, f'select "{schema}".{name}({", ".join(values)})')
                    calls += 1
                    if problem is not None:
                        wrong.append(f"{login}: {signature}, {kind} at {place}: {problem}")
    assert wrong == []
    assert calls > 150


def test_lists_in_json_have_bounds(schema: str, dsns: dict[str, str]) -> None:
    for name, call in LISTS.items():
        login = {
            "replace_payloads": "admin",
            "list": "viewer",
            "count": "viewer",
            "insert_instances_of_outcomes": "worker",
        }
        login |= {name: "worker" for name in LISTS if name.startswith("flush")}
        with psycopg.connect(dsns[login.get(name, "producer")]) as connection:
            statement = f"select {call.replace('@', chr(34) + schema + chr(34)) % (MOST + 1)}"
            assert is_refused(connection, statement) is None, name
