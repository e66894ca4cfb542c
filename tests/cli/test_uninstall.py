"""`gen-durable uninstall`: removes what migrations have created, and nothing else, or refuses and changes nothing."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.commands import COMMAND, environment
from tests.support.old_layout import old_layout
from tests.support.roles import GROUPS, PASSWORD, login_dsn, make_roles
from tests.support.rows import ended, executing, instance, seconds

from gen_durable import Durable
from gen_durable.store.schema import Schema

Uninstall = Callable[..., subprocess.CompletedProcess[str]]
CONTENT = """
select c.relname from pg_class c where c.relnamespace = to_regnamespace(%(schema)s) and c.relkind in ('r', 'v', 'S')
union all select p.proname from pg_proc p where p.pronamespace = to_regnamespace(%(schema)s)
union all select t.typname from pg_type t where t.typnamespace = to_regnamespace(%(schema)s) and t.typtype = 'e'
"""


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def installed(run: Any, dsn: str, bare_schema: str) -> str:
    """A schema that the test removes, or that is dropped in the end."""
    assert run("migrate", "--dsn", dsn, "--schema", bare_schema).returncode == 0
    return bare_schema


@pytest.fixture
def uninstall(run: Any, dsn: str, installed: str) -> Uninstall:
    return lambda *options: run("uninstall", "--dsn", dsn, "--schema", installed, *options)


def given(connection: psycopg.Connection[Any], schema: str, sql: str) -> None:
    connection.execute(Schema(schema).render(sql).encode())


def content(connection: psycopg.Connection[Any], schema: str) -> set[str]:
    """The names of all relations, functions and enums in the schema."""
    return {row[0] for row in connection.execute(CONTENT, {"schema": schema}).fetchall()}


def exists(connection: psycopg.Connection[Any], schema: str) -> bool:
    row = connection.execute("select to_regnamespace(%s) is not null", [schema]).fetchone()
    assert row is not None
    return bool(row[0])


def refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_everything_of_ours_goes(uninstall: Uninstall, admin: psycopg.Connection[Any], installed: str) -> None:
    """The schema with all its objects, and the ended instances in it."""
    given(admin, installed, ended(1))
    done = uninstall("--yes")
    assert done.returncode == 0, done.stderr
    assert f"schema {installed}: removed version" in done.stdout
    assert not exists(admin, installed)
    refused(uninstall("--yes"), "there is nothing to uninstall")


def test_the_metadata_index_goes_too(uninstall: Uninstall, run: Any, dsn: str, installed: str) -> None:
    assert run("migrate", "--dsn", dsn, "--schema", installed, "--metadata-index").returncode == 0
    assert uninstall("--yes").returncode == 0


def test_without_a_terminal_it_needs_yes(uninstall: Uninstall, admin: psycopg.Connection[Any], installed: str) -> None:
    before = content(admin, installed)
    refused(uninstall(), "Pass --yes")
    assert content(admin, installed) == before


@pytest.mark.parametrize("is_right", [True, False])
def test_a_terminal_is_asked_for_the_name(
    dsn: str, installed: str, admin: psycopg.Connection[Any], tmp_path: Path, is_right: bool
) -> None:
    """It says what will be deleted, and goes on only if the name of the schema is typed."""
    given(admin, installed, ended(1) + ended(2))
    own, its = pty.openpty()
    try:
        with subprocess.Popen(
            [*COMMAND, "uninstall", "--dsn", dsn, "--schema", installed],
            cwd=tmp_path, env=environment(), stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            os.write(own, (installed if is_right else "yes").encode() + b"\n")
            _, said = process.communicate(timeout=60)
    finally:
        os.close(own)
        os.close(its)
    assert "This deletes 2 instances (0 have not ended)" in said
    assert process.returncode == (0 if is_right else 2)
    assert exists(admin, installed) is not is_right


def test_live_instances_need_force(uninstall: Uninstall, admin: psycopg.Connection[Any], installed: str) -> None:
    given(admin, installed, instance(1) + instance(2, status="awaiting_signal", awaits=["go"]) + ended(3))
    refused(uninstall("--yes"), "2 instances of schema")
    assert "instances" in content(admin, installed)
    assert uninstall("--yes", "--force").returncode == 0
    assert not exists(admin, installed)


def test_claims_of_a_worker_are_refused_even_with_force(
    uninstall: Uninstall, admin: psycopg.Connection[Any], installed: str
) -> None:
    """Until their leases have expired: then the worker is dead."""
    given(admin, installed, executing(1, locked_by="host:1:w"))
    refused(uninstall("--yes", "--force"), "Workers execute instances of schema")
    assert "host:1:w" in uninstall("--yes", "--force").stderr
    given(admin, installed, "update @schema.instances set lease_expires_at = now() - interval '1 second'")
    assert uninstall("--yes", "--force").returncode == 0


@pytest.mark.direct  # a pooler's idle client has no session
async def test_connected_clients_are_refused(
    uninstall: Uninstall, admin: psycopg.Connection[Any], dsn: str, installed: str
) -> None:
    """A session of the library on this schema prevents it; one on another schema does not."""
    async with Durable(dsn, schema=installed) as app:
        await app.count()
        refused(await asyncio.to_thread(uninstall, "--yes", "--force"), "Workers or clients are connected")
    assert exists(admin, installed)


async def test_clients_of_other_schemas_do_not_matter(uninstall: Uninstall, dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        await app.count()
        done = await asyncio.to_thread(uninstall, "--yes")
    assert done.returncode == 0, done.stderr


def test_another_session_that_uses_a_table(
    uninstall: Uninstall, admin: psycopg.Connection[Any], dsn: str, installed: str
) -> None:
    """It gives up after the lock timeout, and everything is as before."""
    before = content(admin, installed)
    with psycopg.connect(dsn) as reader:
        reader.execute(Schema(installed).render("select from @schema.instances").encode())
        refused(uninstall("--yes"), f"It is locked by pid {reader.info.backend_pid} (login ")
    assert content(admin, installed) == before


def test_an_instance_that_is_being_inserted(
    uninstall: Uninstall, admin: psycopg.Connection[Any], dsn: str, installed: str
) -> None:
    """The command waits for the insert and then counts the instance: it does not count before it has the lock."""
    waiting = "select count(*) from pg_locks where not granted and relation = %s::regclass"
    with psycopg.connect(dsn) as writer, ThreadPoolExecutor() as pool:
        given(writer, installed, instance(1))
        done = pool.submit(uninstall, "--yes")
        while not done.done() and admin.execute(waiting, [f"{installed}.instances"]).fetchone() != (1,):
            time.sleep(0.01)
        writer.commit()
        refused(done.result(), "1 instances of schema")
    assert exists(admin, installed)


def test_foreign_objects_stay(uninstall: Uninstall, admin: psycopg.Connection[Any], installed: str) -> None:
    """Tables, types and functions of others stay with their data and the schema, also under one of our names."""
    given(
        admin, installed,
        "create table @schema.customers (id int); insert into @schema.customers values (7);"
        "create type @schema.mood as enum ('good');"
        "create function @schema.get(text) returns text language sql as $$ select $1 $$",
    )  # fmt: skip
    done = uninstall("--yes")
    assert done.returncode == 0, done.stderr
    assert f"schema {installed}: stays, with" in done.stdout
    assert f"table {installed}.customers" in done.stdout
    assert content(admin, installed) == {"customers", "mood", "get"}
    given(admin, installed, "select from @schema.customers where id = 7")
    refused(uninstall("--yes"), "already holds objects that are not gen_durable's")


@pytest.mark.parametrize(
    "dependent",
    [
        "create view {other}.report as select count(*) from @schema.instances",
        "create table {other}.t (status @schema.durable_status)",
        "create table {other}.t (id bigint references @schema.instances)",
        "create table @schema.mine (id bigint references @schema.instances)",
        "create view @schema.mine as select * from @schema.step_status",
    ],
)
def test_an_object_that_depends_on_ours_is_a_refusal(
    uninstall: Uninstall, admin: psycopg.Connection[Any], installed: str, schema: str, dependent: str
) -> None:
    """Nothing is dropped with CASCADE; the message names the object."""
    other = f"{installed}_other"
    admin.execute(f"create schema {other}".encode())
    try:
        given(admin, installed, dependent.format(other=other))
        before = content(admin, installed)
        done = uninstall("--yes")
        refused(done, "Other objects depend on those of schema")
        assert "mine" in done.stderr or other in done.stderr
        assert content(admin, installed) == before
    finally:
        admin.execute(f"drop schema {other} cascade".encode())


def test_an_old_layout_is_refused(run: Any, dsn: str, bare_schema: str, admin: psycopg.Connection[Any]) -> None:
    """Its objects are not those of this version."""
    admin.execute(old_layout(bare_schema).encode())
    refused(run("uninstall", "--dsn", dsn, "--schema", bare_schema, "--yes", "--force"), "unreleased version")
    assert content(admin, bare_schema) == {"gen_durable", "migrations"}


def test_a_newer_schema_is_refused(uninstall: Uninstall, admin: psycopg.Connection[Any], installed: str) -> None:
    given(admin, installed, "insert into @schema.migrations (version) values (99999)")
    refused(uninstall("--yes"), "is at version 99999")


def test_a_schema_without_gen_durable(run: Any, dsn: str, bare_schema: str) -> None:
    refused(run("uninstall", "--dsn", dsn, "--schema", bare_schema, "--yes"), "there is nothing to uninstall")


def roles_of(connection: psycopg.Connection[Any], prefix: str) -> set[str]:
    rows = connection.execute(
        "select rolname from pg_roles where rolname = any (%s)", [[f"{prefix}_{group}" for group in GROUPS]]
    ).fetchall()
    return {row[0] for row in rows}


@pytest.fixture
def with_roles(dsn: str, installed: str, admin: psycopg.Connection[Any]) -> Iterator[str]:
    """The prefix of roles that the schema has; a login is a member of one of them."""
    asyncio.run(make_roles(dsn, installed, installed))
    admin.execute(f"create role {installed}_login login password '{PASSWORD}'".encode())
    admin.execute(f"grant {installed}_worker, {installed}_viewer to {installed}_login".encode())
    yield installed
    for role in (*roles_of(admin, installed), f"{installed}_login"):
        admin.execute(f"reassign owned by {role} to current_user; drop owned by {role}; drop role {role}".encode())


def test_roles_stay_unless_they_are_named(
    uninstall: Uninstall, admin: psycopg.Connection[Any], with_roles: str
) -> None:
    """The objects of the owner role go; the roles stay, and a message says so."""
    done = uninstall("--yes")
    assert done.returncode == 0, done.stderr
    assert f"the roles {with_roles}_owner, " in done.stderr
    assert not exists(admin, with_roles)
    assert len(roles_of(admin, with_roles)) == len(GROUPS)


def test_roles_go_with_roles(uninstall: Uninstall, admin: psycopg.Connection[Any], with_roles: str) -> None:
    """Logins that were members stay, without the membership."""
    done = uninstall("--yes", "--roles")
    assert done.returncode == 0, done.stderr
    assert roles_of(admin, with_roles) == set()
    assert not exists(admin, with_roles)


def test_roles_and_foreign_objects(uninstall: Uninstall, admin: psycopg.Connection[Any], with_roles: str) -> None:
    """A table of others in the schema, which the owner role had taken over, goes to the login that uninstalls."""
    given(
        admin, with_roles,
        f"create table @schema.customers (id int); alter table @schema.customers owner to {with_roles}_owner;"
        f"grant select on @schema.customers to {with_roles}_viewer",
    )  # fmt: skip
    done = uninstall("--yes", "--roles")
    assert done.returncode == 0, done.stderr
    assert roles_of(admin, with_roles) == set()
    assert content(admin, with_roles) == {"customers"}


def test_roles_that_are_used_elsewhere(
    uninstall: Uninstall, admin: psycopg.Connection[Any], with_roles: str, schema: str
) -> None:
    """Then nothing is removed: dropping them would take rights away that others rely on."""
    admin.execute(f"grant usage on schema {schema} to {with_roles}_worker".encode())
    try:
        before = content(admin, with_roles)
        refused(uninstall("--yes", "--roles"), "are used outside of it")
        assert content(admin, with_roles) == before
        assert len(roles_of(admin, with_roles)) == len(GROUPS)
    finally:
        admin.execute(f"revoke usage on schema {schema} from {with_roles}_worker".encode())


def test_no_roles_to_drop(uninstall: Uninstall, admin: psycopg.Connection[Any], installed: str) -> None:
    refused(uninstall("--yes", "--roles"), "has no roles")
    assert exists(admin, installed)


def test_a_login_without_the_right(run: Any, dsn: str, with_roles: str, admin: psycopg.Connection[Any]) -> None:
    """A worker's login may read the tables, but not drop them."""
    login = login_dsn(dsn, f"{with_roles}_login")
    refused(run("uninstall", "--dsn", login, "--schema", with_roles, "--yes"), "as the login that has migrated")
    assert exists(admin, with_roles)


def test_the_login_that_has_migrated(run: Any, dsn: str, bare_schema: str, admin: psycopg.Connection[Any]) -> None:
    """No superuser is needed: a login that may create roles and schemas installs and removes everything."""
    login = f"{bare_schema}_dba"
    admin.execute(f"create role {login} login createrole password '{PASSWORD}'".encode())
    database = admin.info.dbname
    admin.execute(f'grant create on database "{database}" to {login}'.encode())
    try:
        own = login_dsn(dsn, login)
        assert run("migrate", "--dsn", own, "--schema", bare_schema, "--roles").returncode == 0
        given(admin, bare_schema, ended(1, ago=5) + executing(2, lease_expires_at=seconds(-1)))
        done = run("uninstall", "--dsn", own, "--schema", bare_schema, "--yes", "--roles", "--force")
        assert done.returncode == 0, done.stderr
        assert not exists(admin, bare_schema)
        assert roles_of(admin, bare_schema) == set()
    finally:
        admin.execute(f"drop owned by {login}; drop role {login}".encode())
