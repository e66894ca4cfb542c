"""Migrated schemas for tests: emptied and lent again instead of made anew, which would cost more than most tests.

A schema is lent again only if a test has left it as a migration makes it: the same functions, tables, indexes, rights
and statistics, and no session that still works on it. Everything else is dropped.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import psycopg

from gen_durable.errors import DatabaseUnavailable
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import checks

Problems = dict[str, list[tuple[int, str]]]

SMALL = 65_536  # bytes of a table up to which deleting its rows is faster than a truncate, which makes files
PATIENCE = 0.1  # how long the sessions of a test may take to end
KEPT = ("migrations", "installation")  # tables with rows that a migration has put there
LOCKS = "gate_locks"  # its rows are never written, and are too many to compare
TABLES = """
select c.relname, pg_relation_size(c.oid) from pg_class c
where c.relnamespace = %s::regnamespace and c.relkind = 'r' order by 1
"""
SEQUENCES = """
select setval(s.seqrelid::regclass, s.seqstart, false)
from pg_sequence s join pg_class c on c.oid = s.seqrelid where c.relnamespace = %s::regnamespace
"""
SESSIONS = """
select count(*) from pg_stat_activity
where pid not in (pg_backend_pid(), %s) and position(%s in query) > 0 and (state <> 'idle' or not %s)
"""
FINGERPRINT = """
with relations as (select * from pg_class where relnamespace = %(schema)s::regnamespace)
select md5(string_agg(part, ' ' order by part)) from (
  select format('namespace %%s %%s %%s', nspacl, nspowner, obj_description(oid, 'pg_namespace')) as part
  from pg_namespace where oid = %(schema)s::regnamespace
  union all select format('function %%s %%s %%s', oid, xmin, proacl) from pg_proc
  where pronamespace = %(schema)s::regnamespace
  union all select format('relation %%s %%s %%s %%s %%s', oid, relname, relacl, relowner, reloptions) from relations
  union all select format('column %%s %%s %%s %%s %%s', attrelid, attname, atttypid, attnotnull, attacl)
  from pg_attribute where attrelid in (select oid from relations where relkind = 'r') and attnum > 0
  union all select format('constraint %%s %%s', oid, conname) from pg_constraint
  where connamespace = %(schema)s::regnamespace
  union all select format('trigger %%s %%s', oid, tgenabled) from pg_trigger
  where tgrelid in (select oid from relations)
  union all select format('statistics %%s', count(*)) from pg_statistic where starelid in (select oid from relations)
) as parts
"""


async def create_migrated(dsn: str) -> str:
    """Create and migrate a schema. Returns its name."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    await migrated(dsn, name)
    return name


class Schemas:
    """The schemas of one test process. `create` makes one, and returns its name."""

    def __init__(self, dsn: str, create: Callable[[str], Coroutine[Any, Any, str]] = create_migrated) -> None:
        self._dsn = dsn
        self._create = create
        self._connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=sys.maxsize)  # only on request
        # Another one, because session_replication_role throws away all plans of its session.
        self._emptying = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        self._free: list[str] = []
        self._fingerprints: dict[str, str] = {}

    def take(self) -> str:
        """A migrated and empty schema."""
        if self._free:
            return self._free.pop()
        name = asyncio.run(self._create(self._dsn))
        self._fingerprints[name] = self._fingerprint(name)
        return name

    def diagnose(self, name: str) -> Problems:
        """Every broken invariant, by the name of its check; one statement asks for all of them.

        It is prepared for small tables only: such a plan takes minutes on a large one.
        """
        parts = [
            f"(select '{check}', found.id, found.problem from ({sql.rstrip().rstrip(';')}) as found)"
            for check, sql in checks(Schema(name))
        ]
        problems: Problems = {}
        is_small = all(size <= SMALL for table, size in self._sizes(name) if table != LOCKS)
        for check, instance, problem in self._connection.execute(" union all ".join(parts), prepare=is_small):
            problems.setdefault(check, []).append((instance, problem))
        return problems

    def give_back(self, name: str) -> None:
        """Lend a schema again if it can be emptied and is as it was; drop it otherwise."""
        fingerprint = self._fingerprints.pop(name)
        try:
            reusable = self._is_left_alone(name) and self._empty(name) and self._fingerprint(name) == fingerprint
        except psycopg.Error:
            reusable = False
        if reusable:
            self._fingerprints[name] = fingerprint
            self._free.append(name)
        else:
            self.drop(name)

    def drop(self, name: str) -> None:
        self._connection.execute(f'drop schema if exists "{name}" cascade')

    def close(self) -> None:
        for name in self._free:
            self.drop(name)
        self._connection.close()
        self._emptying.close()

    def _is_left_alone(self, name: str) -> bool:
        """Whether no session works on the schema any more. The sessions of a pooler stay, and are idle."""
        parameters = [self._emptying.info.backend_pid, name, "GEN_DURABLE_TEST_POOLED" in os.environ]
        deadline = time.monotonic() + PATIENCE
        while self._value(SESSIONS, parameters):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def _empty(self, name: str) -> bool:
        """Empty the tables that have rows, and start the sequences anew."""
        used = [(table, size) for table, size in self._sizes(name) if size and table not in (*KEPT, LOCKS)]
        tables = [f'"{name}"."{table}"' for table, _ in used]
        script = ["set local lock_timeout = '200ms'", SEQUENCES.replace("%s", f"'{name}'")]
        if any(size > SMALL for _, size in used):
            script.append(f"truncate {', '.join(tables)} cascade")
        elif tables:
            script.append("set local session_replication_role = replica")  # no triggers
            script += [f"delete from {table}" for table in tables]
        self._emptying.execute("; ".join(script))  # one transaction
        return True

    def _sizes(self, name: str) -> list[tuple[str, int]]:
        """The tables of a schema, each with its size in bytes."""
        return self._connection.execute(TABLES, [name], prepare=True).fetchall()

    def _fingerprint(self, name: str) -> str:
        """What a migration has made, in one word; and the rows that it has put there."""
        rows = [str(self._connection.execute(f'select * from "{name}"."{table}"').fetchall()) for table in KEPT]
        return " ".join([str(self._value(FINGERPRINT, {"schema": name})), *rows])

    def _value(self, sql: str, parameters: Any) -> Any:
        row = self._connection.execute(sql, parameters, prepare=True).fetchone()
        assert row is not None
        return row[0]


async def migrated(dsn: str, name: str) -> None:
    """Make a schema and migrate it. Tries twice: another test may have killed the session that PgBouncer gives us."""
    connection = PersistentConnection(ConnectionTarget(dsn))
    try:
        try:
            await migrate(connection, Schema(name))
        except DatabaseUnavailable:
            await migrate(connection, Schema(name))
    finally:
        await connection.close()


async def diagnose(dsn: str, schema: str) -> Problems:
    """Every broken invariant, by the name of its check."""
    connection = await asyncpg.connect(dsn)
    try:
        found: Problems = {}
        for name, sql in checks(Schema(schema)):
            rows = await connection.fetch(sql)
            if rows:
                found[name] = [(row["id"], row["problem"]) for row in rows]
        return found
    finally:
        await connection.close()
