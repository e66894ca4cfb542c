"""`migrate` and `check_schema_version` refuse schemas of others and of unreleased versions, and leave them alone."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from tests.support.old_layout import old_layout

from gen_durable import Durable
from gen_durable.errors import DatabaseRefused, SchemaConflict, SchemaMissing
from gen_durable.pg.migrate import check_schema_version, migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store import sql_files
from gen_durable.store.schema import Schema

CATALOG = """
select coalesce(string_agg(pg_describe_object(classid, objid, objsubid), ',' order by classid, objid), '')
from pg_depend where refclassid = 'pg_namespace'::regclass and refobjid = $1::text::regnamespace
"""


@asynccontextmanager
async def connected(dsn: str) -> AsyncGenerator[PersistentConnection]:
    connection = PersistentConnection(ConnectionTarget(dsn))
    try:
        yield connection
    finally:
        await connection.close()


async def objects(connection: PersistentConnection, schema: str) -> str:
    return str(await (await connection.connect()).fetchval(CATALOG, schema))


FOREIGN = {
    "table": "create table {0}.customers (id int)",
    "view": "create view {0}.v as select 1",
    "sequence": "create sequence {0}.s",
    "function": "create function {0}.f() returns int language sql as 'select 1'",
    "type": "create type {0}.mood as enum ('good')",
    "domain": "create domain {0}.d as int",
    "operator": "create operator {0}.=== (leftarg = int, rightarg = int, function = int4eq)",
    "collation": 'create collation {0}.c from "C"',
    "migrations-of-another-tool": "create table {0}.migrations (id int, name text)",
    "migrations-without-a-row": "create table {0}.migrations (version int, applied_at timestamptz)",
}


@pytest.mark.parametrize("sql", FOREIGN.values(), ids=FOREIGN)
async def test_foreign_objects_are_refused(dsn: str, bare_schema: str, sql: str) -> None:
    """Whatever their kind; also a table that is called migrations but is not gen_durable's."""
    async with connected(dsn) as connection:
        await connection.run_script(f"create schema {bare_schema}; {sql.format(bare_schema)}")
        before = await objects(connection, bare_schema)
        for refuses in (migrate, check_schema_version):
            with pytest.raises(
                SchemaConflict, match=r"already holds objects .*\. Nothing was changed\. Use another schema"
            ):
                await refuses(connection, Schema(bare_schema))
        assert await objects(connection, bare_schema) == before


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, ", ...")])
async def test_some_foreign_objects_are_named(dsn: str, bare_schema: str, count: int, more: str) -> None:
    """Three of them; of more than three it says that there are more."""
    async with connected(dsn) as connection:
        tables = "".join(f"create table {bare_schema}.t{n} (id int);" for n in range(count))
        await connection.run_script(f"create schema {bare_schema}; {tables}")
        named = ", ".join(f"table {bare_schema}.t{n}" for n in range(3))
        with pytest.raises(SchemaConflict, match=re.escape(f"({named}{more})")):
            await migrate(connection, Schema(bare_schema))


async def test_an_empty_schema_is_used(dsn: str, bare_schema: str) -> None:
    """An administrator may have created it, with default privileges."""
    async with connected(dsn) as connection:
        await connection.run_script(
            f"create schema {bare_schema}; "
            f"alter default privileges in schema {bare_schema} grant select on tables to public"
        )
        with pytest.raises(SchemaMissing, match=r"the database has no gen_durable schema .* run `gen-durable migrate`"):
            await check_schema_version(connection, Schema(bare_schema))
        assert len(await migrate(connection, Schema(bare_schema))) == 1
        await check_schema_version(connection, Schema(bare_schema))


async def test_objects_added_after_the_migration_are_fine(dsn: str, schema: str) -> None:
    """A user's own tables in the schema, even one that is called gen_durable, disturb neither check nor migrate."""
    async with connected(dsn) as connection:
        await connection.run_script(f"create table {schema}.gen_durable (id int)")
        assert await migrate(connection, Schema(schema)) == []
        await check_schema_version(connection, Schema(schema))


OLD = {
    "whole": "",
    "without-migrations": "drop table {0}.migrations",
    "with-renamed-tables": "alter table {0}.gen_durable rename to instances",
    "version-1": "delete from {0}.migrations where version > 1",
    "and-a-later-version": "insert into {0}.migrations (version) values (4)",
}


@pytest.mark.parametrize("sql", OLD.values(), ids=OLD)
async def test_an_unreleased_layout_is_refused(dsn: str, bare_schema: str, sql: str) -> None:
    """By migrate and by opening a Durable, with and without migrate=True; it says what to do."""
    async with connected(dsn) as connection:
        await connection.run_script(old_layout(bare_schema) + sql.format(bare_schema))
        before = await objects(connection, bare_schema)
        message = (
            rf"unreleased version.*Nothing was changed\. Use another schema .*drop schema \"{bare_schema}\" cascade"
        )
        with pytest.raises(SchemaConflict, match=message):
            await migrate(connection, Schema(bare_schema))
        for automatic in (True, False):
            with pytest.raises(SchemaConflict, match=message):
                await Durable(dsn, schema=bare_schema, migrate=automatic).open()
        assert await objects(connection, bare_schema) == before


async def test_an_error_names_file_and_statement(dsn: str, schema: str, later_version: int) -> None:
    """A later migration whose second statement fails leaves nothing behind."""
    async with connected(dsn) as connection:
        file = sql_files._SQL.joinpath(f"migrations/{later_version:04}_later.sql")
        sql = "create table @schema.later (id int);\n\n-- Why.\ncreate index i\n  on @schema.missing (id);\n"
        file.write_text(sql)  # type: ignore[attr-defined]
        with pytest.raises(DatabaseRefused) as caught:
            await migrate(connection, Schema(schema))
        assert str(caught.value) == (
            f"cannot migrate schema '{schema}': relation \"{schema}.missing\" does not exist "
            f"(UndefinedTableError, SQLSTATE 42P01), "
            f"at statement 2 of migrations/{later_version:04}_later.sql (create index i). Nothing was changed"
        )
        assert f"table {schema}.later" not in await objects(connection, schema)


async def test_an_error_repeats_no_value(dsn: str, schema: str, later_version: int) -> None:
    """The server's message may quote data of a row; then only its type and SQLSTATE are shown."""
    async with connected(dsn) as connection:
        file = sql_files._SQL.joinpath(f"migrations/{later_version:04}_later.sql")
        file.write_text("select fsm::int from @schema.instances;\n")  # type: ignore[attr-defined]
        await connection.run_script(f"insert into {schema}.instances (fsm, step) values ('canary', 's')")
        with pytest.raises(DatabaseRefused, match="22P02") as caught:
            await migrate(connection, Schema(schema))
        assert "canary" not in str(caught.value)


async def test_statements_are_sent_one_at_a_time(dsn: str, bare_schema: str) -> None:
    """No message to the server holds two statements: it would report them as one query."""
    async with connected(dsn) as connection:
        sent: list[str] = []
        driver_connection = await connection.connect()

        def record(query: asyncpg.LoggedQuery) -> None:  # type: ignore[name-defined]
            sent.append(query.query)

        driver_connection.add_query_logger(record)  # type: ignore[attr-defined]
        await migrate(connection, Schema(bare_schema))
        assert len(sent) > 200
        assert max(text.count("create or replace function") for text in sent) == 1
        assert max(text.count("create table") for text in sent) == 1
