"""Rows of two logins, with canaries in every column that carries text, and what a call does to them.

Each owner has the same rows at its own base id; the base of `ABSENT` has none. What a call returns for the rows of
another login is compared with what it returns for rows that do not exist: a difference reveals that they do.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

OWN, OTHERS, ABSENT = 71_000_000, 72_000_000, 73_000_000
PAYLOAD = "PAYLOAD-CANARY"
PLAIN = "PLAIN-CANARY"  # in keys, metadata and names, which are no payloads
_SECRET = '{"s": "PAYLOAD-CANARY"}'
_LIVE = "{runnable,executing,awaiting_signal,awaiting_children}"
_TABLES = {
    "instances": "id",
    "signals": "target_id",
    "cascades": "origin",
    "transitions": "instance_id",
    "activities": "instance_id",
    "checkpoints": "instance_id",
    "progress": "instance_id",
}
# waiting 1, failed 2, debounced 3, executing 4, a cancelled parent 5 whose child 6 a cascade has yet to cancel
_ROWS = """
insert into @.instances (id, fsm, step, status, awaits, seen, claims, seq, visit, unique_key, unique_scope, metadata,
  state, has_signals, has_journal, inserted_by, last_error, finished_at, error_type, last_traceback, result,
  eligible_at, lease_expires_at, locked_by, parent_id, parent_round, round, queue)
overriding system value
select {base} + n, 'm', 's', status::@.durable_status, awaits::text[], seen::bigint[], claims, claims, 0,
  case when key is not null then convert_to(key || '{base}', 'UTF8') end, coalesce(scope, '{{}}')::@.durable_status[],
  '{{"m": "PLAIN-CANARY"}}', '{secret}', signals, journal, case when n <> 6 then {owner}::oid end, error,
  case when status in ('failed', 'cancelled') then now() end,
  case when error is not null then 'E' end, error, case when error is not null then '{secret}'::jsonb end,
  now() + interval '1 hour', case when status = 'executing' then now() + interval '1 hour' end,
  case when status = 'executing' then 'w' end, case when n = 6 then {base} + 5 end, case when n = 6 then 1 end,
  (n = 5)::int, 'PLAIN-CANARY'
from (values
  (1, 'awaiting_signal', '{{go}}', '{{}}', 1, 'key-', '{live}', true, true, null),
  (2, 'failed', null, null, 1, 'ended-', null, false, false, 'PAYLOAD-CANARY'),
  (3, 'runnable', null, null, 0, 'debounced-', '{{runnable}}', false, false, null),
  (4, 'executing', null, null, 1, 'running-', '{live}', false, false, null),
  (5, 'cancelled', null, null, 1, null, null, false, false, 'PAYLOAD-CANARY'),
  (6, 'runnable', null, null, 0, null, null, false, false, null)
) as given (n, status, awaits, seen, claims, key, scope, signals, journal, error);
insert into @.signals (id, target_id, name, payload, dedup_key, consumed, rejection) overriding system value values
  ({base} + 1, {base} + 1, 'other', '{secret}', 'dedup-{base}', false, null),
  ({base} + 2, {base} + 1, 'go', '{secret}', null, true, 'no'),
  ({base} + 3, {base} + 2, 'go', null, 'ended-{base}', true, null);
insert into @.cascades (parent_id, first_round, last_round, origin, reason)
  values ({base} + 5, 0, 1, {base} + 5, 'PLAIN-CANARY');
insert into @.transitions (instance_id, started_at, duration, seq, attempt, step, outcome, next_step, worker, error,
  error_type, traceback, state) values
  ({base} + 1, now(), 1, 1, 0, 's', 'Next', 's', 'w', 'PAYLOAD-CANARY', 'E', 'PAYLOAD-CANARY', '{secret}');
insert into @.activities values
  ({base} + 1, now(), 1, 0, 1, 0, 's', 'PLAIN-CANARY', '{secret}', '{secret}', 'PAYLOAD-CANARY');
insert into @.checkpoints values ({base} + 1, now(), 0, 1, 1, '{secret}');
insert into @.progress values ({base} + 1, now(), 0.5, 's', '', 'PAYLOAD-CANARY', '{secret}');
"""


class World:
    """The rows of an actor and of another login, seen and made by a superuser."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.schema = schema
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._made: tuple[int, int, dict[int, str]] | None = None
        self._locking = psycopg.connect(dsn)

    def close(self) -> None:
        self._connection.close()
        self._locking.close()

    def sql(self, text: str) -> str:
        return text.replace("@.", f'"{self.schema}".')

    def oid(self, login: str) -> int:
        found = self._connection.execute(b"select oid::bigint from pg_roles where rolname = %s", [login]).fetchone()
        assert found is not None
        return int(found[0])

    def make(self, actor: int, other: int) -> None:
        """Make all rows anew, unless they are as they were made."""
        if self._made == (actor, other, self.state()):
            return
        self._connection.execute(
            self.sql(
                "set session_replication_role = replica;"
                "select setval('@.instances_id_seq', 80000000);"
                + "".join(f"delete from @.{table};" for table in _TABLES)
                + "".join(
                    _ROWS.format(base=base, owner=owner, secret=_SECRET, live=_LIVE)
                    for base, owner in ((OWN, actor), (OTHERS, other))
                )
            ).encode()
        )
        self._made = (actor, other, self.state())

    def empty(self) -> None:
        """Leave nothing for the doctor: these rows break invariants."""
        self._connection.execute(self.sql("".join(f"delete from @.{table};" for table in _TABLES)).encode())

    def state(self) -> dict[int, str]:
        """A digest of all rows of each owner, in all tables; 0 stands for the rows of none."""
        rows = " union all ".join(
            f"select {column} as place, row_.*::text as row_ from @.{table} as row_"
            for table, column in _TABLES.items()
        )
        query = (
            "select case when place / 100 in (710000, 720000) then place / 100 * 100 else 0 end, "
            f"md5(string_agg(row_, ' ' order by row_)) from ({rows}) as every group by 1"
        )
        return dict(self._connection.execute(self.sql(query).encode(), prepare=True).fetchall())

    @contextmanager
    def locked(self, base: int) -> Iterator[None]:
        """While another session has locked the rows of an owner."""
        place = [base, base + 99]
        for table, column in (("instances", "id"), ("signals", "target_id"), ("cascades", "origin")):
            query = self.sql(f"select from @.{table} where {column} between %s and %s for update")
            self._locking.execute(query.encode(), place)
        try:
            yield
        finally:
            self._locking.rollback()


def answer(connection: psycopg.Connection[Any], statement: str, *, keep: bool) -> str:
    """What a login gets for a statement: its rows or its error. The ids of owners are made equal."""
    try:
        with connection.transaction(force_rollback=not keep):
            connection.execute("set local lock_timeout = '25ms'")
            cursor = connection.execute(statement.encode())
            text = repr(cursor.fetchall()) if cursor.description else "nothing"
    except psycopg.Error as error:
        text = f"{error.sqlstate} {error.diag.message_primary} {error.diag.message_detail} {error.diag.message_hint}"
    return text


def neutral(text: str) -> str:
    """The text without the ids and keys of owners, as numbers, as text and as hexadecimal."""
    for base in (OWN, OTHERS, ABSENT):
        digits = str(base)[:2]
        text = re.sub(rf"{digits}0000(\d\d)", r"#\1", text)
        text = text.replace(str(base)[:6].encode().hex(), "#")
    return text


def effect(
    world: World, connection: psycopg.Connection[Any], statement: str, base: int, logins: tuple[int, int]
) -> str:
    """Letters for what a statement does to rows: x refused, p shows payloads, m other texts, e tells from absent rows,
    c changes them, w waits for them; `-` for nothing."""
    world.make(*logins)
    before = world.state()[base]
    found = answer(connection, statement.replace("{base}", str(base)), keep=True)
    if found.startswith("42501"):
        return "x"
    has_changed = world.state().get(base) != before
    letters = "p" * (PAYLOAD in found) + "m" * (PLAIN in found)
    world.make(*logins)
    absent = answer(connection, statement.replace("{base}", str(ABSENT)), keep=False)
    letters += "e" * (neutral(found) != neutral(absent)) + "c" * has_changed
    with world.locked(base):
        waited = answer(connection, statement.replace("{base}", str(base)), keep=False)
    return letters + "w" * waited.startswith("55P03") or "-"


@contextmanager
def pooled(dsns: dict[str, str]) -> Iterator[dict[str, str]]:
    """The same logins through a PgBouncer in transaction mode each, if the tests run with a pooler."""
    if "GEN_DURABLE_TEST_POOLED" not in os.environ:
        yield dsns
        return
    script = Path(__file__).parents[2] / "scripts" / "pgbouncer"
    with ExitStack() as stack:
        started = {
            login: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(script), dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for login, dsn in dsns.items()
        }
        try:
            yield {login: _first_line(process) for login, process in started.items()}
        finally:
            for process in started.values():
                assert process.stdin is not None
                process.stdin.close()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = process.stdout.readline().strip()
    assert found, "scripts/pgbouncer did not start; its words are above"
    return found
