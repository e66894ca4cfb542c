"""Roles: each may do what it is for, and nothing else; and a whole engine runs with no more rights than that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.canaries import CANARY, Crowd, Patient, Secret, Vault, Waiter, burn, echo, leaf, told
from tests.support.engine import BRIEF, Engine, Rows, opened, seconds
from tests.support.roles import GROUPS, PASSWORD, login_dsn, logins, make_roles
from typer.testing import CliRunner

from gen_durable import (
    Cancelled,
    Concurrency,
    Context,
    Done,
    Durable,
    Finished,
    Machine,
    Next,
    Outcome,
    Rate,
    Retention,
    Start,
    SyncDurable,
    job,
    step,
)
from gen_durable.cli.app import app as cli
from gen_durable.contrib.aes import AesGcm
from gen_durable.errors import ConfigError, DatabaseRefused, Duplicate, InputError, NoTarget, NotFound
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import roles_script

LOGINS = (*GROUPS[1:], "stranger")
PAYLOADS = {
    "instances": {"state", "result", "last_error", "last_traceback"},
    "signals": {"payload"},
    "transitions": {"error", "traceback", "state"},
    "checkpoints": {"value"},
    "activities": {"parameters", "result", "error"},
    "progress": {"message", "detail"},
    "step_status": {"message", "detail", "error"},
}

VIEWS = {"packed_outcomes", "step_status"}  # not updatable, whatever the rights


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found


def allowed(connection: psycopg.Connection[Any], statement: str) -> bool:
    """Whether a statement is allowed: anything but 42501. What it does is rolled back."""
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return False
    except psycopg.Error:
        return True  # its arguments are no good, but it ran
    finally:
        connection.rollback()
    return True


def test_every_role_and_every_table(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Nobody writes a table but by functions; viewers read all but payloads, clients and workers nothing."""
    with psycopg.connect(dsn) as owner:
        columns = owner.execute(
            "select table_name, column_name, is_generated = 'ALWAYS' or is_identity = 'YES' "
            "from information_schema.columns where table_schema = %s",
            [schema],
        ).fetchall()
    wrong: list[str] = []

    def expect(connection: psycopg.Connection[Any], statement: str, may: bool) -> None:
        if allowed(connection, statement) is not may:
            wrong.append(f"{login}: {statement} should be {'allowed' if may else 'refused'}")

    for login in LOGINS:
        with psycopg.connect(dsns[login]) as connection:
            for table, column, made in columns:
                place = f'"{schema}".{table}'
                told_to_all = login in ("client", "producer") and table in ("migrations", "installation")
                sees = login in ("worker", "reader", "admin") or told_to_all
                hidden = column in PAYLOADS.get(table, set())
                expect(connection, f"select {column} from {place}", sees or (login == "viewer" and not hidden))
                if not made and table not in VIEWS:
                    expect(connection, f"update {place} set {column} = {column}", False)
            for table in {table for table, _, _ in columns} - VIEWS:
                place = f'"{schema}".{table}'
                for write in ("insert into {} default values", "delete from {}", "truncate {}", "drop table {}"):
                    expect(connection, write.format(place), False)
                expect(connection, f"select * from {place} for update", False)
            expect(connection, f'create table "{schema}".mine (n int)', False)
            expect(connection, f'create function "{schema}".now() returns int language sql as $$ select 1 $$', False)
            expect(connection, f"select nextval('\"{schema}\".instances_id_seq')", False)
            expect(connection, f"set role {schema}_owner", False)
            expect(connection, f'alter schema "{schema}" rename to other', False)
    assert wrong == []


def test_the_roles_themselves(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """No role of ours can log in or has any power beside its grants; all functions are the owner's, and pinned."""
    with psycopg.connect(dsn) as connection:
        powers = connection.execute(
            "select rolname from pg_roles where rolname = any (%s) and (rolcanlogin or rolsuper or rolcreaterole or "
            "rolcreatedb or rolreplication or rolbypassrls)",
            [[f"{schema}_{group}" for group in GROUPS]],
        ).fetchall()
        assert powers == []
        loose = connection.execute(
            "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = %s::regnamespace and not ("
            "(prosecdef or provolatile = 'i') and proowner = %s::regrole and "
            "(prosqlbody is not null or 'search_path=pg_catalog, pg_temp' = any (proconfig)) and "
            "not has_function_privilege('public', p.oid, 'execute'))",
            [f'"{schema}"', f"{schema}_owner"],
        ).fetchall()
        assert loose == []


class Errand(Machine):
    """What the other machines leave out: limits, transactions, partitions."""

    @step(limit="slots")
    async def start(self, secret: Secret, ctx: Context) -> Outcome[str]:
        async with ctx.limit("rate"):
            return Next(self.write, secret)

    @step(transactional=True)
    async def write(self, secret: Secret, ctx: Context) -> Outcome[str]:
        user = await ctx.connection.fetchval("select session_user || '/' || current_user")
        return Done(user)


@job
def blocking(text: str) -> str:
    return text


async def test_a_worker_with_the_rights_of_a_worker_runs_everything(dsns: dict[str, str], schema: str) -> None:
    """Chains, signals, children in thousands, limits, the journal, transactions, cancels, reaping and retention."""
    limits = {"slots": Concurrency(2), "rate": Rate(1000, per=timedelta(seconds=1))}
    async with role(dsns, schema, "worker") as e, role(dsns, schema, "client") as client:
        e.app.events.subscribe(e.seen)
        machines = (Vault(), Crowd(), Patient(), Errand(), echo, burn, leaf, blocking)
        retention = Retention(done=seconds(0), failed=None, cancelled=None)
        async with e.worker(*machines, limits=limits, queues={"default": 50}, gc_interval=seconds(60), **BRIEF):
            vault = await client.app.insert(Vault.start, Secret(CANARY), unique_key="vault")
            await e.rows.until(vault, status="awaiting_signal")
            assert await client.app.signal("vault", told, Secret(CANARY, 7), dedup_key="once")
            assert await client.end(vault) == Finished(vault.id, Secret(CANARY, 99))
            crowd = await client.app.insert(Crowd.spread, 1200)
            errand = await client.app.insert(Errand.start, Secret("x"), partition_key="p")
            user = f"{schema}_l_worker"
            assert await client.end(errand) == Finished(errand.id, f"{user}/{user}")
            assert await client.end(await client.app.insert(blocking, "x")) is not None
            patient = await client.app.insert(Patient.wait, Secret("p"))
            await e.rows.until(patient, status="executing")
            assert await client.app.cancel(patient.id, reason="enough")
            assert isinstance(await client.end(patient), Cancelled)
            async with asyncio.timeout(60):
                assert await crowd.wait() == Finished(crowd.id, 1200)
            history = await e.app.history(vault.id)
            assert [t for t in history if t.error and CANARY in t.error]
            assert (await e.app.get(vault.id)).result == {"text": CANARY, "count": 99}
        async with e.worker(echo, gc_interval=seconds(0.05), gc_retention=retention, **BRIEF):
            await e.rows.when(lambda: gone(e.rows))


async def gone(rows: Rows) -> bool:
    return await rows.count("status = 'done'") == 0


class role:
    """An engine that is logged in as one of the roles; its rows are read with the rights of a worker."""

    def __init__(self, dsns: dict[str, str], schema: str, login: str, **options: Any) -> None:
        self._opening = opened(dsns[login], schema, **options)
        self._rows = dsns["worker"]
        self._schema = schema

    async def __aenter__(self) -> Engine:
        engine = await self._opening.__aenter__()
        self._connection = await asyncpg.connect(self._rows)
        engine.rows = Rows(self._connection, self._schema)
        return engine

    async def __aexit__(self, *error: Any) -> None:
        await self._connection.close()
        await self._opening.__aexit__(*error)


async def test_a_producer_changes_its_own_and_nothing_of_others(dsn: str, dsns: dict[str, str], schema: str) -> None:
    """For signals, cancels and starts under a key, the instances of other logins do not exist for a producer."""
    async with (
        role(dsns, schema, "client") as owner,
        role(dsns, schema, "producer") as mine,
        role(dsns, schema, "producer2") as other,
    ):
        for engine in (owner, mine):
            held = await engine.app.insert(Waiter.wait, Secret("x"), unique_key=f"of {engine is mine}")
            for target in (held.id, f"of {engine is mine}"):
                with pytest.raises(NoTarget):
                    await other.app.signal(target, told, Secret("no"))
                with pytest.raises(NotFound):
                    await other.app.cancel(target, reason="no")
            key = f"of {engine is mine}"
            start = Start(Waiter.wait, Secret("y"), unique_key=key)
            with psycopg.connect(dsn) as locking:  # a producer does not wait for a row of another either
                locking.execute(f'select from "{schema}".instances for update'.encode())
                async with asyncio.timeout(5):
                    with pytest.raises(NoTarget):
                        await other.app.signal(key, told, Secret("no"), or_start=start)
                    with pytest.raises(Duplicate, match="held by an instance of another login"):
                        await other.app.debounce(Waiter.wait, Secret("y"), unique_key=key, delay=60)
            with psycopg.connect(dsns["producer2"]) as raw, psycopg.connect(dsns["client2"]) as client:
                query = f"select \"{schema}\".live_id_of_key('{key}')".encode()
                assert raw.execute(query).fetchone() == (None,)
                assert client.execute(query).fetchone() == (held.id,)
            assert await engine.rows.fetch(
                "select status::text, state->>'text' from @.instances where id = $1", held.id
            ) == [("runnable", "x")]
            assert await engine.rows.count("true") == await engine.rows.count("status = 'runnable'")
        assert await mine.app.signal(held.id, told, Secret("yes"))
        assert await mine.app.cancel(held.id, reason="mine")
        assert await owner.app.cancel("of False", reason="clients may")


async def test_a_login_keeps_its_instances_when_it_is_renamed(dsn: str, dsns: dict[str, str], schema: str) -> None:
    """And a new login with its old name does not get them: they belong to its oid."""
    async with role(dsns, schema, "producer") as mine:
        one = await mine.app.insert(echo, Secret(CANARY))
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"alter role {schema}_l_producer rename to {schema}_l_was".encode())
        admin.execute(f"alter role {schema}_l_producer2 rename to {schema}_l_producer".encode())
        admin.execute(f"alter role {schema}_l_producer password '{PASSWORD}'".encode())
        admin.execute(f"alter role {schema}_l_was password '{PASSWORD}'".encode())
        try:
            async with (
                opened(dsns["producer"], schema) as taker,
                opened(login_dsn(dsn, f"{schema}_l_was"), schema) as was,
            ):
                with pytest.raises(NotFound):
                    await taker.app.get(one.id)
                assert (await was.app.get(one.id)).state == {"text": CANARY, "count": 0}
        finally:
            admin.execute(f"alter role {schema}_l_producer rename to {schema}_l_producer2".encode())
            admin.execute(f"alter role {schema}_l_was rename to {schema}_l_producer".encode())


async def test_a_client_sees_its_own_and_nothing_of_others(dsns: dict[str, str], schema: str) -> None:
    """Results, errors, states and progress of instances that another login has started do not exist for a client."""
    async with (
        role(dsns, schema, "worker") as e,
        role(dsns, schema, "client") as mine,
        role(dsns, schema, "client2") as other,
    ):
        async with e.worker(echo, Waiter(), Vault(), burn):
            one = await mine.app.insert(echo, Secret(CANARY))
            assert await mine.end(one) == Finished(one.id, Secret(CANARY))
            assert (await one.get()).state == {"text": CANARY, "count": 0}
            with pytest.raises(NotFound):
                await other.app.get(one.id)
            with pytest.raises(NotFound):
                await other.app.handle(one.id, echo).wait(seconds(1))
            vault = await mine.app.insert(Vault.start, Secret(CANARY), unique_key="vault")
            await e.rows.until(vault, status="awaiting_signal")
            assert [p.message for p in await mine.app.progress(vault.id)] == [f"half of {CANARY}"]
            assert await other.app.progress(vault.id) == []
            assert await other.app.progress("vault") == []
            # By design a client may tell and stop what it can name, and learns whether a key is held.
            same = await other.app.insert(Vault.start, Secret("x"), unique_key="vault", on_conflict="existing")
            assert same.id == vault.id
            with pytest.raises(NotFound):
                await other.app.get("vault")
            assert await other.app.signal("vault", told, Secret(CANARY, 7))
            assert await mine.end(vault) == Finished(vault.id, Secret(CANARY, 99))
            # A key finds an ended instance of one's own, whatever others have inserted with it since.
            assert (await mine.app.get("vault")).id == vault.id
            theirs = await other.app.insert(echo, Secret("x"), unique_key="vault", unique="forever")
            assert await other.end(theirs) == Finished(theirs.id, Secret("x"))
            assert await mine.app.handle("vault", Vault.start).wait() == Finished(vault.id, Secret(CANARY, 99))
            assert (await other.app.get("vault")).id == theirs.id
            # What a worker has started, as a child or in a step, is nobody's.
            (child, *_) = await e.rows.fetch("select id from @.instances where parent_id = $1", vault.id)
            with pytest.raises(NotFound):
                await mine.app.get(child[0])
            by_worker = await e.app.insert(echo, Secret(CANARY))
            assert await e.end(by_worker) == Finished(by_worker.id, Secret(CANARY))
            with pytest.raises(NotFound):
                await mine.app.get(by_worker.id)
        for refused in (
            mine.app.list(),
            mine.app.count(),
            mine.app.history(one.id),
            mine.app.activities(one.id),
            mine.app.retry(one.id),
            mine.app.delete(one.id),
            mine.app.limits(),
            mine.app.set_limit("x", Concurrency(1)),
        ):
            with pytest.raises(DatabaseRefused, match=r"permission denied.*grant it the role"):
                await refused


async def test_clients_with_a_codec_and_with_connections_of_their_own(dsns: dict[str, str], schema: str) -> None:
    """Drawing ids, finding holders, and inserting in a caller's transaction need no more rights."""
    codec = AesGcm({"k": bytes(32)})
    async with role(dsns, schema, "worker", codec=codec) as e, role(dsns, schema, "client", codec=codec) as client:
        connection = await asyncpg.connect(dsns["client"])
        async with connection.transaction():
            one = await client.app.insert(Waiter.wait, Secret("s"), unique_key="k", connection=connection)
        await connection.close()
        await client.app.signal("k", told, Secret("t"))
        async with e.worker(Waiter()):
            assert await client.end(one) == Finished(one.id, "t/s")


def test_a_client_that_blocks(dsns: dict[str, str], schema: str) -> None:
    with SyncDurable(dsns["client"], schema=schema) as app:
        handle = app.insert(echo, Secret("s"))
        assert app.cancel(handle.id)
        assert isinstance(handle.wait(seconds(1)), Cancelled)


async def test_admins_repair(dsns: dict[str, str], schema: str) -> None:
    """What `gen-durable retry`, `rm`, `limits set` and `show --state` do."""
    async with role(dsns, schema, "worker") as e, role(dsns, schema, "admin") as admin:
        async with e.worker(burn, echo):
            one = await e.app.insert(burn, Secret(CANARY))
            await e.end(one)
            assert CANARY in ((await admin.app.get(one.id)).last_error or "")
            await admin.app.retry(one.id)
            await e.rows.until(one, status="failed")
        assert await admin.app.set_limit("x", Concurrency(1))
        assert [limit.name for limit in await admin.app.limits()] == ["x"]
        assert await admin.app.remove_limit("x")
        await admin.app.delete(one.id)


def test_viewers_look(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """`ls`, `count`, `show`, `history`, `limits` and `doctor` run, and show no payload."""

    async def given() -> int:
        async with opened(dsns["worker"], schema) as e:
            e.rows = Rows(await asyncpg.connect(dsn), schema)
            async with e.worker(burn):
                handle = await e.app.insert(burn, Secret(CANARY))
                await e.end(handle)
            await e.rows.connection.close()
            return handle.id

    instance = str(asyncio.run(given()))
    commands = (["ls"], ["count"], ["show", instance], ["show", instance, "--state"], ["history", instance])
    for words in (*commands, ["limits"], ["doctor"]):
        found = CliRunner().invoke(cli, [*words, "--dsn", dsns["viewer"], "--schema", schema])
        assert found.exit_code == 0, (words, found.output)
        assert CANARY not in found.output
    for words in (["retry", instance], ["cancel", instance], ["signal", instance, "x"], ["rm", instance]):
        found = CliRunner().invoke(cli, [*words, "--dsn", dsns["viewer"], "--schema", schema])
        assert found.exit_code == 2
        assert "permission denied: this login may not do that" in found.output


async def test_viewers_get_no_payloads(dsns: dict[str, str], schema: str) -> None:
    async with role(dsns, schema, "worker") as e, role(dsns, schema, "viewer") as viewer:
        one = await e.app.insert(echo, Secret(CANARY))
        listed = [i async for i in viewer.app.list_all(payloads=True)]
        assert [i.id for i in listed] == [one.id]
        with pytest.raises(InputError):
            _ = listed[0].state

        vault = await e.app.insert(Vault.start, Secret(CANARY))
        async with e.worker(Vault()):
            await e.rows.until(vault, status="awaiting_signal")
        seen = [*await viewer.app.activities(vault.id), *await viewer.app.history(vault.id)]
        assert [activity.error for activity in await viewer.app.activities(vault.id)][1] == "(not shown)"
        assert len(seen) > 4
        assert CANARY not in "".join(str(getattr(part, name)) for part in seen for name in part.__dataclass_fields__)
        assert await viewer.app.progress(vault.id) == []


async def test_viewers_see_the_class_of_an_error_and_no_traceback(dsns: dict[str, str], schema: str) -> None:
    async with role(dsns, schema, "worker") as e, role(dsns, schema, "viewer") as viewer:
        one = await e.app.insert(burn, Secret(CANARY))
        async with e.worker(burn):
            await e.end(one)
        for app, sees in ((e.app, True), (viewer.app, False)):
            found = [await app.get(one.id), *await app.history(one.id)]
            assert [part.error_type for part in found] == ["RuntimeError"] * 3
            assert [part.traceback is not None for part in found] == [sees] * 3


async def test_viewers_cannot_search_errors(dsns: dict[str, str], schema: str) -> None:
    """A search would show what an error contains, one piece after the other."""
    async with role(dsns, schema, "worker") as e, role(dsns, schema, "viewer") as viewer:
        await e.app.insert(echo, Secret(CANARY))
        assert (await e.app.count(error="x")).value == 0
        for call in (viewer.app.list(error="x"), viewer.app.count(error="x", status="failed")):
            with pytest.raises(DatabaseRefused, match="permission denied"):
                await call


async def test_a_stranger_is_told_so(dsns: dict[str, str], schema: str) -> None:
    with pytest.raises(DatabaseRefused, match="permission denied"):
        await Durable(dsns["stranger"], schema=schema).open()


async def test_again_and_later(dsn: str, schema: str, dsns: dict[str, str], request: pytest.FixtureRequest) -> None:
    """Made again it changes nothing; another prefix is refused; a migration of the schema keeps the rights."""
    await make_roles(dsn, schema, schema)
    with pytest.raises(ConfigError, match="has roles with the prefix"):
        await make_roles(dsn, schema, "others")
    connection = await asyncpg.connect(dsn)
    later_version = request.getfixturevalue("later_version")
    link = PersistentConnection(ConnectionTarget(dsn))
    assert await migrate(link, Schema(schema)) == [later_version]
    await link.close()
    left = await connection.fetch(
        "select p.oid::regprocedure from pg_proc p where p.pronamespace = $1::text::regnamespace and not prosecdef "
        "and provolatile <> 'i'",
        f'"{schema}"',
    )
    assert left == []
    await connection.close()
    async with Durable(dsns["client"], schema=schema) as app:
        await app.insert(echo, Secret("x"))


async def test_by_somebody_who_is_no_superuser(dsn: str, bare_schema: str, request: pytest.FixtureRequest) -> None:
    """Whoever may make roles and schemas can do it all, and upgrade it later."""
    name = bare_schema
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"create role {name}_dba login createrole password 'of-a-test'")
    database = await connection.fetchval("select current_database()")
    await connection.execute(f'grant create on database "{database}" to {name}_dba')
    from tests.support.roles import login_dsn

    own = login_dsn(dsn, f"{name}_dba")
    try:
        async with Durable(own, schema=name, migrate=True, roles=name) as app:
            await app.insert(echo, Secret("x"))
        owner = await connection.fetchval("select nspowner::regrole::text from pg_namespace where nspname = $1", name)
        assert owner == f"{name}_owner"
        request.getfixturevalue("later_version")
        async with Durable(own, schema=name, migrate=True):
            pass
    finally:
        await connection.execute(f'drop schema if exists "{name}" cascade')
        for role_ in ("dba", *GROUPS):
            await connection.execute(f"drop owned by {name}_{role_}")
            await connection.execute(f"drop role {name}_{role_}")
        await connection.close()


@pytest.mark.parametrize("prefix", ['x"; drop schema public; --', "Ä", "", "pg_x", "1a", "a" * 49, "x y", "x'"])
def test_hostile_prefixes(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix of roles"):
        roles_script(Schema("s"), prefix)


def test_roles_are_made_by_migrations() -> None:
    with pytest.raises(ConfigError, match="migrate=True"):
        Durable("postgresql://", roles="x")


def test_the_printed_script_keeps_the_rights(
    dsn: str, schema: str, dsns: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """`create or replace` would make functions run with the rights of their callers; the script has the roles too."""
    request.getfixturevalue("later_version")
    printed = CliRunner().invoke(cli, ["migrate", "--dsn", dsn, "--schema", schema, "--sql"])
    assert printed.exit_code == 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(printed.stdout.encode())
        left = connection.execute(
            "select from pg_proc where pronamespace = %s::regnamespace and not prosecdef and provolatile <> 'i'",
            [f'"{schema}"'],
        ).fetchall()
        assert left == []
    with psycopg.connect(dsns["producer"]) as producer:
        assert producer.execute(f"select \"{schema}\".insert('m', 's')".encode()).fetchone() is not None


def test_the_command(dsn: str, bare_schema: str) -> None:
    """`gen-durable migrate --roles`, and what `--sql` prints does the same."""
    base = ["migrate", "--dsn", dsn, "--schema", bare_schema]
    printed = CliRunner().invoke(cli, [*base, "--roles", "--sql"])
    assert printed.exit_code == 0
    assert "create role %I nologin" in printed.stdout
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            connection.execute(printed.stdout.encode())
            done = CliRunner().invoke(cli, [*base, "--roles"])
            assert done.exit_code == 0, done.output
            assert f"grant {bare_schema}_worker, {bare_schema}_client" in done.output
        finally:
            connection.execute(f'drop schema if exists "{bare_schema}" cascade')
            for group in GROUPS:
                connection.execute(f"drop role if exists {bare_schema}_{group}")
