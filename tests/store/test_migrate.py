"""`migrate` brings a database to the library's version: once, from many processes, and never backwards."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.support.machine import KNOWN, M
from tests.support.pauses import record_pauses

from gen_durable.errors import ConfigError, DatabaseRefused, SchemaMissing, SchemaTooNew
from gen_durable.pg import migrate as migrate_module
from gen_durable.pg.installed_schema import InstalledSchema, read_installed_schema
from gen_durable.pg.migrate import check_schema_version, library_schema_version, make_migration_script, migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.starts import Start
from gen_durable.store import sql_files
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement, StatementBuilder

PROGRAM = """
import asyncio, sys
from gen_durable.pg.persistent_connection import PersistentConnection, ConnectionTarget
from gen_durable.pg.migrate import migrate
from gen_durable.store.schema import Schema

async def main():
    link = PersistentConnection(ConnectionTarget(sys.argv[1]))
    print(await migrate(link, Schema(sys.argv[2])))
    await link.close()

asyncio.run(main())
"""


async def test_migrate_is_idempotent(dsn: str, bare_schema: str) -> None:
    """The first call applies every version, the second none, and the data stays."""
    schema, link = Schema(bare_schema), PersistentConnection(ConnectionTarget(dsn))
    try:
        assert await read_installed_schema(link, schema) == InstalledSchema()
        with pytest.raises(SchemaMissing, match="migrate"):
            await check_schema_version(link, schema)
        assert await migrate(link, schema) == [library_schema_version(schema)]
        await check_schema_version(link, schema)
        await link.run(StatementBuilder(schema).insert([Start(M.s, {})], "raise"))
        assert await migrate(link, schema) == []
        assert len((await link.run(StatementBuilder(schema).pick("w", {"default": 5}, KNOWN, 60))).claims) == 1
    finally:
        await link.close()


async def test_eight_processes_at_once(dsn: str, bare_schema: str) -> None:
    """Eight processes migrate one fresh database: one applies it, the others have nothing to do, none fails."""
    arguments = [sys.executable, "-c", PROGRAM, dsn, bare_schema]
    pipe = asyncio.subprocess.PIPE
    started = [await asyncio.create_subprocess_exec(*arguments, stdout=pipe, stderr=pipe) for _ in range(8)]
    ended = [await process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 8, [err.decode() for _, err in ended]
    applied = str([library_schema_version(Schema(bare_schema))])
    assert sorted(out.decode().strip() for out, _ in ended) == sorted([applied] + ["[]"] * 7)


async def test_a_first_migration_that_commits_while_the_schema_is_read(dsn: str, bare_schema: str) -> None:
    """Its objects are not taken for foreign ones: the second session sees none of them, or all."""
    schema, other = Schema(bare_schema), PersistentConnection(ConnectionTarget(dsn))

    class Interrupted(PersistentConnection):
        """Lets the other session migrate after its first statement."""

        async def run(self, statement: Statement[Any]) -> Any:
            found = await super().run(statement)
            await migrate(other, schema)
            return found

    link = Interrupted(ConnectionTarget(dsn))
    try:
        assert await read_installed_schema(link, schema) == InstalledSchema()
        assert (await read_installed_schema(other, schema)).version == library_schema_version(schema)
    finally:
        await link.close()
        await other.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time; a lock that is not granted is given up soon."""
    monkeypatch.setattr(migrate_module, "LOCK_TRIES", 3)
    monkeypatch.setattr(migrate_module, "SETTINGS", migrate_module.SETTINGS.replace("'5s'", "'50ms'"))
    return record_pauses(monkeypatch, longest=0)


@asynccontextmanager
async def holding(dsn: str, lock: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Another session that holds a lock in a transaction."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(lock)
            yield connection
    finally:
        await connection.close()


MIGRATION_LOCK = "lock table {}.migrations in share row exclusive mode"


async def test_a_schema_that_is_being_migrated_is_tried_again(dsn: str, schema: str, pauses: list[float]) -> None:
    """With growing pauses, and then the error names the session that holds the lock, and says what to do."""
    link = PersistentConnection(ConnectionTarget(dsn))
    try:
        async with holding(dsn, MIGRATION_LOCK.format(schema)) as other:
            await other.execute("set application_name = 'it\x1b[31m'")
            pid = other.get_server_pid()
            with pytest.raises(DatabaseRefused, match="55P03") as caught:
                await migrate(link, Schema(schema))
            assert f"It is locked by pid {pid} (login " in str(caught.value)
            assert "transaction since 20" in str(caught.value)
            assert f"_terminate_backend({pid})" in str(caught.value)
            assert "\x1b" not in str(caught.value)
        assert pauses == pytest.approx([0.2, 0.4])
        assert await migrate(link, Schema(schema)) == []
    finally:
        await link.close()


async def test_a_table_that_is_locked_is_tried_again(
    dsn: str, schema: str, later_version: int, pauses: list[float]
) -> None:
    """Meanwhile its lock is given up. In the end the error names the statement."""
    file = sql_files._SQL.joinpath(f"migrations/{later_version:04}_later.sql")
    file.write_text("alter table @schema.instances add column later int;\n")  # type: ignore[attr-defined]
    link = PersistentConnection(ConnectionTarget(dsn))
    try:
        async with holding(dsn, f"lock table {schema}.instances in access share mode") as other:
            with pytest.raises(DatabaseRefused, match=r"SQLSTATE 55P03, at statement 1 of ") as caught:
                await migrate(link, Schema(schema))
            assert f"locked by pid {other.get_server_pid()} (login " in str(caught.value)
            assert isinstance(caught.value.__cause__, asyncpg.LockNotAvailableError)
        assert pauses == pytest.approx([0.2, 0.4])
        assert await migrate(link, Schema(schema)) == [later_version]
    finally:
        await link.run_script(f"alter table {schema}.instances drop column if exists later")
        await link.close()


async def test_a_newer_database_is_refused(dsn: str, bare_schema: str) -> None:
    """A schema that a newer library has migrated is not touched by an older one; using it is fine."""
    schema, link = Schema(bare_schema), PersistentConnection(ConnectionTarget(dsn))
    try:
        await migrate(link, schema)
        await link.run_script(schema.render("insert into @schema.migrations (version) values (999)"))
        with pytest.raises(SchemaTooNew, match="999"):
            await migrate(link, schema)
        await check_schema_version(link, schema)
    finally:
        await link.close()


@pytest.mark.usefixtures("later_version")
async def test_an_older_schema_is_brought_along(dsn: str, schema: str, later_version: int) -> None:
    """Only the missing version is applied, all functions are installed again, and the rows stay."""
    checked, link = Schema(schema), PersistentConnection(ConnectionTarget(dsn))
    try:
        await link.run(StatementBuilder(checked).insert([Start(M.s, {})], "raise"))
        with pytest.raises(
            SchemaMissing, match=f"is at schema version {later_version - 1}, this library needs {later_version}"
        ):
            await check_schema_version(link, checked)
        await link.run_script(checked.render("drop function @schema.heartbeat cascade"))
        assert await migrate(link, checked) == [later_version]
        await check_schema_version(link, checked)
        (claim,) = (await link.run(StatementBuilder(checked).pick("w", {"default": 5}, KNOWN, 60))).claims
        assert await link.run(StatementBuilder(checked).heartbeat([(claim.id, claim.epoch)], 60)) == []
    finally:
        await link.close()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Upper",
        "with space",
        'x"; drop schema public; --',
        "x" * 49,
        "pg_temp",
        "1st",
        "schön",
        "a.b",
        "a-b",
        None,
        7,
    ],
)
def test_bad_schema_names_are_refused(name: object) -> None:
    """A name that would need care in SQL is refused before it gets there."""
    with pytest.raises(ConfigError, match="schema"):
        Schema(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "_x", "select", "x" * 48, "a1_2"])
def test_good_schema_names_are_taken(name: str) -> None:
    """Plain names are fine, SQL's own words too: they are quoted."""
    assert Schema(name).render("@schema.t") == f'"{name}".t'


async def test_two_schemas_do_not_meet(dsn: str, bare_schema: str) -> None:
    """Two schemas in one database are two engines: rows of one are not seen in the other."""
    link = PersistentConnection(ConnectionTarget(dsn))
    one, two = Schema(bare_schema), Schema(f"{bare_schema}_too")
    try:
        await migrate(link, one)
        await migrate(link, two)
        await link.run(StatementBuilder(one).insert([Start(M.s, {})], "raise"))
        assert (await link.run(StatementBuilder(two).pick("w", {"default": 5}, KNOWN, 60))).claims == []
    finally:
        await link.run_script(two.render("drop schema if exists @schema cascade"))
        await link.close()


async def test_the_script_runs_as_it_is_printed(dsn: str, bare_schema: str) -> None:
    """What `migrate --sql` prints can be run by any client, and leaves nothing for migrate to do."""
    schema, link = Schema(bare_schema), PersistentConnection(ConnectionTarget(dsn))
    sql = make_migration_script(schema, 0)
    assert "@schema" not in sql
    try:
        await link.run_script(sql)
        assert await migrate(link, schema) == []
        assert make_migration_script(schema, library_schema_version(schema)) == ""
    finally:
        await link.close()


HOSTILE = """
create schema "{trap}";
create function "{trap}".now() returns timestamptz language sql as $$ select 'epoch'::timestamptz $$;
create function "{trap}".make_interval(secs float8) returns interval language sql as $$ select interval '100 years' $$;
create function "{trap}".unnest(bigint[]) returns setof bigint language sql as $$ select 1 / 0 $$;
create function "{trap}".pg_try_advisory_xact_lock(bigint) returns boolean language sql as $$ select false $$;
create function "{trap}".eq(int, int) returns boolean language sql as $$ select false $$;
create operator "{trap}".= (leftarg = int, rightarg = int, function = "{trap}".eq);
create table "{trap}".instances (id bigint);
create table "{trap}".signals (id bigint);
"""


async def test_a_hostile_search_path_does_not_matter(dsn: str, schema: str) -> None:
    """Functions, operators and tables that a caller's search_path puts first are never used."""
    trap = f"{schema}_trap"
    connection = await asyncpg.connect(dsn)
    calls = StatementBuilder(Schema(schema))
    try:
        await connection.execute(HOSTILE.format(trap=trap))
        await connection.execute(f'set search_path = "{trap}", pg_catalog, public')
        for call in (
            calls.insert([Start(M.s, {}, partition_key="k")], "raise"),
            calls.pick("w", {"default": 1}, KNOWN, 60),
        ):
            answer = call.read(await connection.fetch(call.text, *call.args))
        assert [claim.machine for claim in answer.claims] == ["m"]  # type: ignore[union-attr]
        beat = calls.heartbeat([(answer.claims[0].id, 1)], 60)  # type: ignore[union-attr]
        assert beat.read(await connection.fetch(beat.text, *beat.args)) == []
        row = await connection.fetchrow(f'select * from "{schema}".instances')
        assert row is not None
        assert row["lease_expires_at"].year < 2090
        assert row["eligible_at"].year > 1970
        await connection.execute("set search_path = pg_catalog")
    finally:
        await connection.execute(f'drop schema if exists "{trap}" cascade')
        await connection.close()


async def test_every_function_pins_its_search_path(dsn: str, schema: str) -> None:
    """No function leaves the search_path to its caller, and none runs with its owner's rights.

    A body in the SQL standard's form (`return ...`) needs no setting: its names are resolved when it is created.
    """
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "select proname, proconfig, prosecdef, prosqlbody is not null as is_bound from pg_proc "
            "where pronamespace = $1::regnamespace",
            schema,
        )
    finally:
        await connection.close()
    assert len(rows) > 15
    for row in rows:
        assert row["is_bound"] or "search_path=pg_catalog, pg_temp" in (row["proconfig"] or []), row["proname"]
        assert not row["prosecdef"], row["proname"]
