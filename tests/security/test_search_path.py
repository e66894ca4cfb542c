"""Whatever stands in the caller's search_path, our statements and functions mean Postgres' own names.

asyncpg asks the catalog about types in words of its own, which a hostile search_path does reach. So the engine is run
with traps that asyncpg does not step into, and all of them are set for calls by psycopg.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import asyncpg
import psycopg
import pytest
from tests.support.canaries import CANARY, Patient, Secret, Vault, Waiter, burn, echo, told
from tests.support.engine import BRIEF, opened
from tests.support.roles import PASSWORD, login_dsn

from gen_durable import Cancelled, Durable, Finished, SyncDurable
from gen_durable.invariant_checker import diagnose
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema

TRAPS = [
    ("now()", "timestamptz"),
    ("unnest(anyarray)", "setof anyelement"),
    ("pg_notify(text, text)", "void"),
    ("to_regclass(text)", "regclass"),
    ("nextval(regclass)", "bigint"),
    ("hashtextextended(text, bigint)", "bigint"),
    ("pg_advisory_xact_lock(bigint)", "void"),
    ("has_column_privilege(name, oid, text, text)", "boolean"),
    ("jsonb_array_elements_text(jsonb)", "setof text"),
    ("make_interval(int, int, int, int, int, int, double precision)", "interval"),
    ("starts_with(text, text)", "boolean"),
    ("format(text, text)", "text"),
    ("gen_random_uuid()", "uuid"),
]
ALL_TRAPS = [*TRAPS, ("set_config(text, text, boolean)", "text")]
OPERATORS = [
    *(
        (sign, type_, type_, "boolean")
        for sign in ("=", "<>", "<", ">")
        for type_ in ("bigint", "int", "text", "bytea")
    ),
    *((sign, "timestamptz", "timestamptz", "boolean") for sign in ("<", ">", "<=", ">=")),
    ("=", "bigint", "int", "boolean"),
    ("+", "int", "int", "int"),
    ("+", "timestamptz", "interval", "timestamptz"),
    ("||", "text", "text", "text"),
    ("->>", "jsonb", "text", "text"),
    ("->", "jsonb", "text", "jsonb"),
    ("?", "jsonb", "text", "boolean"),
]


@pytest.fixture
def trapped(dsn: str, bare_schema: str) -> Iterator[str]:
    """A login with traps that are functions."""
    with traps_before(dsn, bare_schema, TRAPS, []) as found:
        yield found


@pytest.fixture
def trapped_all(dsn: str, bare_schema: str) -> Iterator[str]:
    """A login with all traps."""
    with traps_before(dsn, bare_schema, ALL_TRAPS, OPERATORS) as found:
        yield found


@contextmanager
def traps_before(
    dsn: str, bare_schema: str, functions: list[tuple[str, str]], operators: list[tuple[str, str, str, str]]
) -> Iterator[str]:
    """The DSN of a login whose search_path begins with a schema of traps: whoever steps into one is told."""
    traps, login = f"{bare_schema}_traps", f"{bare_schema}_login"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create schema {traps}")
        connection.execute(f"create role {login} superuser login password '{PASSWORD}'")
        for signature, returns in functions:
            connection.execute(
                f"create function {traps}.{signature} returns {returns} language plpgsql as "
                f"$$ begin raise exception 'trapped by {signature}'; end $$"
            )
        for n, (sign, left, right, returns) in enumerate(operators):
            connection.execute(
                f"create function {traps}.o{n}({left}, {right}) returns {returns} language plpgsql as "
                f"$$ begin raise exception 'trapped by {left} {sign} {right}'; end $$"
            )
            connection.execute(
                f"create operator {traps}.{sign} (leftarg = {left}, rightarg = {right}, function = {traps}.o{n})"
            )
        for type_ in ("text", "bytea", "jsonb", "int4", "int8") if operators else ():
            connection.execute(f"create domain {traps}.{type_} as pg_catalog.{type_} check (false)")
        connection.execute(f"alter role {login} set search_path = {traps}, pg_catalog, public")
        yield login_dsn(dsn, login)
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [login])
        connection.execute(f'drop schema if exists "{bare_schema}" cascade')
        connection.execute(f"drop schema {traps} cascade")
        connection.execute(f"drop owned by {login}")
        connection.execute(f"drop role {login}")


async def test_traps_are_never_stepped_into(trapped: str, bare_schema: str) -> None:
    """Migrating, working, waiting, cancelling, callers' transactions and the doctor, all in a hostile session."""
    connection = await asyncpg.connect(trapped)
    with pytest.raises(asyncpg.PostgresError, match="trapped by now"):
        await connection.fetch("select now()")
    await connection.close()
    async with Durable(trapped, schema=bare_schema, migrate=True):
        pass
    async with opened(trapped, bare_schema) as e, e.worker(Vault(), Waiter(), Patient(), echo, burn, **BRIEF):
        handle = await e.app.insert(Vault.start, Secret(CANARY), unique_key="vault")
        await e.rows.until(handle, status="awaiting_signal")
        await e.app.signal("vault", told, Secret(CANARY, 7), dedup_key="once")
        assert await e.end(handle) == Finished(handle.id, Secret(CANARY, 99))
        waiting = await e.app.insert(Patient.wait, Secret("x"))
        await e.rows.until(waiting, status="executing")
        await e.app.cancel(waiting.id)
        assert isinstance(await e.end(waiting), Cancelled)
        assert len([i async for i in e.app.list_all(queue="default")]) >= 6
        assert (await e.app.count(status=["done"])).exact
        await e.app.history(handle.id)
        connection = await asyncpg.connect(trapped)
        async with connection.transaction():
            mine = await e.app.insert(Waiter.wait, Secret("s"), unique_key="k", connection=connection)
            await e.app.signal("k", told, Secret("t"), connection=connection)
        await connection.close()
        assert await e.end(mine) == Finished(mine.id, "t/s")
    link = PersistentConnection(ConnectionTarget(trapped))
    assert all(finding.is_clean for finding in await diagnose(link, Schema(bare_schema)))
    await link.close()


def test_callers_that_block(trapped_all: str, dsn: str, bare_schema: str) -> None:
    """All calls of ours on a connection that is trapped; and the functions, as psql would call them."""
    with (
        SyncDurable(dsn, schema=bare_schema, migrate=True) as app,
        psycopg.connect(trapped_all) as connection,
    ):
        handle = app.insert(Waiter.wait, Secret("s"), unique_key="k", connection=connection)
        app.signal("k", told, Secret("t"), connection=connection)
        connection.commit()
        for call in (
            "signal(%(id)s::bigint, 'told', '{}'::pg_catalog.jsonb)",
            "get(%(id)s)",
            "history_of(%(id)s)",
            "ends_of(array[%(id)s::bigint])",
            "list('{}', null, 10)",
            "count('{}', 10)",
            "pick('w', '{default}', '{1}', '{Waiter/1/wait}', 60)",
            "reap(10)",
            "unblock_missed_rows(null, 10)",
            "delete_tickets_of_dead_claims()",
            "gc(1, 1, 1, 10)",
        ):
            connection.execute(f'select "{bare_schema}".{call}', {"id": handle.id})
            connection.rollback()
        app.cancel(handle.id)
        assert isinstance(handle.wait(timedelta(seconds=1)), Cancelled)


async def test_defaults_are_postgres_own(trapped: str, bare_schema: str, dsn: str) -> None:
    """What a migration in a hostile session leaves behind names nothing of the traps."""
    async with Durable(trapped, schema=bare_schema, migrate=True):
        pass
    connection = await asyncpg.connect(dsn)
    try:
        named = await connection.fetch(
            "select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d join pg_class c on c.oid = d.adrelid "
            "where c.relnamespace = $1::text::regnamespace and pg_get_expr(d.adbin, d.adrelid) like '%traps%'",
            f'"{bare_schema}"',
        )
        columns = await connection.fetch(
            "select table_name, column_name from information_schema.columns "
            "where table_schema = $1 and (domain_schema like '%traps' or udt_schema like '%traps')",
            bare_schema,
        )
    finally:
        await connection.close()
    assert (named, columns) == ([], [])
