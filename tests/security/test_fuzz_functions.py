"""Random values into every SQL function, by every role: no error but ours and those of input, and no harm.

`make test-long` calls each function 25 times as often, with a random seed, which a failure shows (FUZZ_SEED=7).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.engine import opened, seconds
from tests.support.fuzz_values import Values
from tests.support.length import short_or_long
from tests.support.machine import M
from tests.support.roles import logins
from tests.support.rows_of_others import COMPARED, RowsOfOthers
from tools.hostile.rows_of_others import CHANGED_BY_CLIENTS

pytestmark = pytest.mark.scaled
CALLS = int(os.environ.get("FUZZ_CALLS") or short_or_long(8, 40))  # of each function, by each role
FUNCTIONS = """
select p.oid::regprocedure::text, p.proname, array(select format_type(t, null) from unnest(p.proargtypes) as t)
from pg_proc p where p.pronamespace = %s::regnamespace and p.prorettype <> 'trigger'::regtype order by 1
"""
# Ours; bad input: 22; too much of it: 54; no right: 42501; a call that reads a lot: 57014; a key that changes: 40001.
GOOD = ("GD", "22", "54", "42501", "57014", "40001")
# The bounds of limits and retentions are constraints of their tables; a worker or admin declares them, each name once.
GOOD_FOR_TRUSTED = (*GOOD, "21000", "23502", "23514")
# A function that stumbles over a null says so: these come from its code, not from the input.
INTERNAL = ("dimension values", "FOR loop", "SQL identifier", "case not found", "cache lookup", "null array")


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found


class Fuzz:
    """Calls of functions with random values, and what went wrong."""

    def __init__(self, dsn: str, schema: str, dsns: dict[str, str]) -> None:
        self.schema = schema
        self.seed = int(os.environ.get("FUZZ_SEED") or short_or_long(1, 2))
        self._dsns = dsns
        self._chance = random.Random(self.seed)
        with psycopg.connect(dsns["client2"], autocommit=True) as client:
            start = f"select \"{schema}\".insert('m', 's', '{{}}', unique_key => %s, delay => '1 hour')"
            self.ids = [self._fetch(client, start, [f"key-{n}"]) for n in (1, 2, 3)]
        with psycopg.connect(dsn, autocommit=True) as admin:
            self.functions = admin.execute(FUNCTIONS, [f'"{schema}"']).fetchall()
            self.may = {
                (role, signature)
                for role in ("producer", "client", "reader", "viewer", "worker", "admin")
                for signature, _, _ in self.functions
                if self._fetch(
                    admin, "select has_function_privilege(%s, %s, 'execute')", [f"{schema}_{role}", signature]
                )
            }

    @staticmethod
    def _fetch(connection: psycopg.Connection[Any], statement: str, values: list[Any]) -> Any:
        row = connection.execute(statement.encode(), values).fetchone()
        assert row is not None
        return row[0]

    def call(self, login: str, calls: int, *, keep: bool, good: tuple[str, ...]) -> list[str]:
        """Call each function as this login. Returns the errors that no caller should see."""
        wrong: list[str] = []
        values = Values(self._chance, self.ids)
        with psycopg.connect(self._dsns[login], autocommit=True, prepare_threshold=None) as connection:
            connection.execute("set statement_timeout = '2s'")
            for signature, name, types in self.functions:
                is_allowed = (login, signature) in self.may
                holes = ", ".join(f"%s::{one}" for one in types)
                statement = f'select * from "{self.schema}".{name}({holes})'
                for _ in range(calls if is_allowed else 1):
                    given = values.row(types)
                    try:
                        with connection.transaction(force_rollback=not keep):
                            connection.execute(statement.encode(), given)
                        state, message = "allowed", ""
                    except psycopg.Error as error:
                        state, message = error.sqlstate or "lost", error.diag.message_primary or str(error)
                    if (is_allowed and state == "allowed") or (
                        state.startswith(good) and not any(i in message for i in INTERNAL)
                    ):
                        continue
                    wrong.append(f"{login}: {name}: {state} {message[:100]} {[g and g[:80] for g in given]}")
        return wrong


def test_limited_roles(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """What they write stays: rows of others do not change in any table, and the doctor finds nothing."""
    fuzz = Fuzz(dsn, schema, dsns)
    with psycopg.connect(dsn, autocommit=True) as admin:
        others = RowsOfOthers(admin, schema, f"{schema}_l_client2")
        others.make()
        before = others.digests()
        for login in ("stranger", "producer", "reader", "viewer"):
            assert fuzz.call(login, CALLS, keep=True, good=GOOD) == [], f"seed {fuzz.seed}"
            assert others.digests() == before, (login, fuzz.seed)
        assert fuzz.call("client", CALLS, keep=True, good=GOOD) == [], f"seed {fuzz.seed}"
        after = others.digests()
        changed = {table for table in before if after[table] != before[table]}
        assert changed <= CHANGED_BY_CLIENTS, f"seed {fuzz.seed}"
        others.remove_unfinished()


def test_rows_of_others_are_compared_in_every_table(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """A new table joins the comparison of this module and of `make hostile`."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        assert RowsOfOthers(admin, schema, f"{schema}_l_client2").tables() == COMPARED


def test_trusted_roles(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """A worker and an admin may change everything, so their calls are rolled back: only the errors count."""
    fuzz = Fuzz(dsn, schema, dsns)
    for login in ("worker", "admin"):
        assert fuzz.call(login, CALLS, keep=False, good=GOOD_FOR_TRUSTED) == [], f"seed {fuzz.seed}"


async def test_a_worker_drains_what_a_fuzzing_client_left(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Whatever rows the calls have made, a worker is not stopped by them."""
    fuzz = Fuzz(dsn, schema, dsns)
    for login in ("producer", "client"):
        assert fuzz.call(login, CALLS, keep=True, good=GOOD) == [], f"seed {fuzz.seed}"
    async with opened(dsns["worker"], schema) as e, e.worker(M(), queues={"default": 5, "q": 5}):
        last = await e.app.insert(M.s, {})
        assert await last.wait(seconds(20)) is not None, f"seed {fuzz.seed}"
