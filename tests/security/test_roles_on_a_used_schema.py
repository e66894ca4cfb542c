"""`migrate --roles` on a schema that others have used before: it takes over nothing that is not its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.roles import GROUPS, make_roles

from gen_durable.errors import DatabaseRefused
from gen_durable.pg.migrate import list_roles_sql_files, migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema

PLANTS = {
    "function": "create function @.planted() returns int language sql as 'select 1'",
    "overload": "create function @.insert(int) returns int language sql as 'select 1'",
    "table": "create table @.planted (n int)",
    "view": "create view @.planted as select 1 as n",
    "type": "create type @.planted as enum ('a')",
    "sequence": "create sequence @.planted",
    "trigger": "create function public.@_f() returns trigger language plpgsql as 'begin return new; end';"
    "create trigger planted before insert on @.instances for each row execute function public.@_f()",
    "rule": "create rule planted as on delete to @.signals do instead nothing",
    "policy": "create policy planted on @.instances using (true)",
    "index": "create function public.@_f(int) returns int immutable language sql as 'select 1';"
    "create index planted on @.instances (public.@_f(weight))",
    "constraint": "create function public.@_f(int) returns boolean immutable language sql as 'select true';"
    "alter table @.limits add constraint planted check (public.@_f(slots))",
    "default": "create function public.@_f() returns int language sql as 'select 1';"
    "alter table @.limits alter column slots set default public.@_f()",
    "overload of other types": "create function @.signal(jsonb, text) returns int language sql as 'select 1'",
    "aggregate": "create aggregate @.planted(int) (sfunc = int4pl, stype = int)",
    "procedure": "create procedure @.planted() language sql as 'select 1'",
    "view in place of a table": "create function public.@_f() returns float8 language sql as 'select 1';"
    "drop table @.retentions; create view @.retentions as select 'm'::text as fsm, public.@_f() as done, "
    "1::float8 as failed, 1::float8 as cancelled, now() as updated_at",
}
# Plants outside of the schema, or in our tables, which need no commit. The schema `evil` is another login's.
FUNCTION = "create function evil.f(int) returns int immutable language sql as 'select 1';"
OPERATOR = (
    "create function evil.b(int, int) returns boolean immutable language sql as 'select true';"
    "create operator evil.=== (leftarg = int, rightarg = int, function = evil.b);"
)
DOMAIN = f"{FUNCTION} create domain evil.planted as int check (evil.f(value) = 1);"
QUIET_PLANTS = {
    "a child, whose rows would be ours": "create table evil.planted () inherits (@.instances)",
    "a parent, whose readers read its children": "create table evil.planted (id bigint not null);"
    "alter table @.instances inherit evil.planted",
    "a foreign key, which keeps rows": "create table evil.planted (id bigint references @.instances)",
    "a cast, used whatever the path": "create function evil.f(text) returns @.durable_status immutable language sql as "
    "'select null::@.durable_status'; create cast (text as @.durable_status) with function evil.f(text) as implicit",
    "statistics": f"{FUNCTION} create statistics evil.planted on (evil.f(weight)), id from @.instances",
    "an operator in a constraint": f"{OPERATOR} alter table @.limits add check (slots operator(evil.===) 1)",
    "an operator in a default": f"{OPERATOR} alter table @.limits add n boolean default (1 operator(evil.===) 1)",
    "a column of a domain": f"{DOMAIN} alter table @.limits add column n evil.planted",
    "a constraint with a domain": f"{DOMAIN} alter table @.limits add check (slots::evil.planted = 1)",
    "a generated column": f"{FUNCTION} alter table @.limits add n int generated always as (evil.f(slots)) stored",
    "an index with a name of ours": f"{FUNCTION} drop index @.instances_slot;"
    "create index instances_slot on @.instances (evil.f(weight))",
    "row level security": "alter table @.instances enable row level security, force row level security",
    "an operator": f"{OPERATOR} create operator @.=== (leftarg = int, rightarg = int, function = evil.b)",
    "a domain": "create domain @.planted as int",
    "a collation": 'create collation @.planted from "C"',
    "a materialized view": "create materialized view @.planted as select 1 as n",
    "a text search configuration": "create text search configuration @.planted (copy = simple)",
}
GRANTS = """
select object.name, grantee.rolname from (
  select nspname as name, nspacl as acl from pg_namespace where nspname = %(s)s
  union all select relname, relacl from pg_class where relnamespace = %(s)s::regnamespace
  union all select attname, attacl from pg_attribute a join pg_class c on c.oid = a.attrelid
    where c.relnamespace = %(s)s::regnamespace
  union all select proname, proacl from pg_proc where pronamespace = %(s)s::regnamespace
  union all select typname, typacl from pg_type where typnamespace = %(s)s::regnamespace
) as object cross join lateral aclexplode(object.acl) as one
left join pg_roles grantee on grantee.oid = one.grantee
where grantee.rolname is null or grantee.rolname not like %(s)s || '\\_%%'
"""


@pytest.fixture
def used(dsn: str, bare_schema: str) -> Iterator[str]:
    """A schema without roles, of this test alone."""

    async def prepare() -> None:
        link = PersistentConnection(ConnectionTarget(dsn))
        await migrate(link, Schema(bare_schema))
        await link.close()

    asyncio.run(prepare())
    yield bare_schema
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'drop schema "{bare_schema}" cascade'.encode())
        connection.execute(f"drop function if exists public.{bare_schema}_f cascade".encode())
        for name in (*GROUPS, "other", "third"):
            if connection.execute("select from pg_roles where rolname = %s", [f"{bare_schema}_{name}"]).fetchone():
                connection.execute(f"drop owned by {bare_schema}_{name}".encode())
                connection.execute(f"drop role {bare_schema}_{name}".encode())


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def has_roles(connection: psycopg.Connection[Any], schema: str) -> bool:
    return connection.execute("select from pg_roles where rolname = %s", [f"{schema}_owner"]).fetchone() is not None


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_planted_object_is_refused(dsn: str, used: str, admin: psycopg.Connection[Any], plant: str) -> None:
    """Nothing is changed: no role is made, and nothing has another owner."""
    admin.execute(plant.replace("@_f", f"{used}_f").replace("@", f'"{used}"').encode())
    with pytest.raises(DatabaseRefused, match="holds objects that are not gen_durable's"):
        asyncio.run(make_roles(dsn, used, used))
    assert not has_roles(admin, used)


def test_what_is_planted_elsewhere_is_refused(dsn: str, used: str) -> None:
    """What would run with the rights of the owner, or show its rows, without being an object of the schema."""
    answers: dict[str, str] = {}
    # No savepoint: a function of ours is known by the number of its transaction.
    scripts = [file.text.encode() for file in list_roles_sql_files(Schema(used), used, functions_installed=False)]
    with psycopg.connect(dsn) as connection:
        for name, plant in QUIET_PLANTS.items():
            connection.execute(f"create schema evil; {plant}".replace("@", f'"{used}"').encode())
            try:
                for script in scripts:
                    connection.execute(script)
                answers[name] = "accepted"
            except psycopg.errors.InvalidObjectDefinition as error:
                answers[name] = str(error)
            connection.rollback()
    assert [name for name, answer in answers.items() if "objects that are not gen_durable's" not in answer] == []


def test_an_index_of_your_own_is_accepted(dsn: str, used: str, admin: psycopg.Connection[Any]) -> None:
    """On plain columns: it runs no code."""
    admin.execute(f'create index mine on "{used}".instances (updated_at)'.encode())
    asyncio.run(make_roles(dsn, used, used))
    assert has_roles(admin, used)


def test_earlier_grants_are_revoked(dsn: str, used: str, admin: psycopg.Connection[Any]) -> None:
    """On the schema, tables, columns, sequences, functions and types; also what a grantee has passed on."""
    for statement in (
        "create role @_other; create role @_third",
        'grant all on schema "@" to @_other with grant option',
        'grant all on all tables in schema "@" to @_other with grant option',
        'grant all on all tables in schema "@" to public',
        'grant select (state), update (state) on "@".instances to @_other with grant option',
        'grant all on all sequences in schema "@" to @_other',
        'grant all on all functions in schema "@" to @_other with grant option',
        'grant usage on type "@".durable_status to @_other with grant option',
        # What is created in the schema from now on, also by later migrations.
        'alter default privileges in schema "@" grant all on tables to @_other',
        'alter default privileges in schema "@" grant all on functions to @_other',
        'alter default privileges in schema "@" grant all on sequences to @_other',
        "set role @_other",
        'grant all on schema "@" to @_third',
        'grant all on all tables in schema "@" to @_third',
        'grant update (state) on "@".instances to @_third',
        'grant execute on all functions in schema "@" to @_third',
        'grant usage on type "@".durable_status to @_third',
        "reset role",
    ):
        admin.execute(statement.replace("@", used).encode())
    asyncio.run(make_roles(dsn, used, used))
    assert admin.execute(GRANTS, {"s": used}).fetchall() == []
    asyncio.run(repair(dsn, used))
    assert admin.execute(GRANTS, {"s": used}).fetchall() == []


def test_default_privileges_give_nothing_with_a_later_migration(
    dsn: str, used: str, admin: psycopg.Connection[Any], request: pytest.FixtureRequest
) -> None:
    """A table that a later version creates has the rights of the roles only."""
    asyncio.run(make_roles(dsn, used, used))
    admin.execute(f"create role {used}_other".encode())
    admin.execute(f'alter default privileges in schema "{used}" grant all on tables to {used}_other'.encode())
    request.getfixturevalue("later_version")
    asyncio.run(repair(dsn, used))
    assert admin.execute("select to_regclass(%s) is not null", [f'"{used}".later']).fetchone() == (True,)
    assert admin.execute(GRANTS, {"s": used}).fetchall() == []


async def repair(dsn: str, schema: str) -> None:
    link = PersistentConnection(ConnectionTarget(dsn))
    try:
        await migrate(link, Schema(schema), repair_roles=True)
    finally:
        await link.close()


TEMPORARY = (
    "create function pg_temp.planted(text) returns text language plpgsql as "
    "$$ begin raise exception 'planted' using errcode = 'GD999'; end $$",
    "create function pg_temp.nextval(regclass) returns bigint language sql as "
    "'select length(pg_temp.planted(null))::bigint'",
    "create function pg_temp.pg_notify(text, text) returns void language sql as 'select pg_temp.planted(null)'",
    "create function pg_temp.statement_timestamp() returns timestamptz language sql as "
    "'select pg_temp.planted(null)::timestamptz'",
    "create temp table instances (id int); create temp table installation (roles text)",
    "create temp view pg_roles as select 10::oid as oid, session_user as rolname, pg_temp.planted('') as planted",
    "create type pg_temp.jsonb as (planted int); create domain pg_temp.oid as int check (pg_temp.planted('') = '')",
)


def test_a_login_plants_in_its_temporary_schema(dsn: str, used: str) -> None:
    """Functions, tables, views and types of pg_temp with names that our functions use are not used by them."""
    asyncio.run(make_roles(dsn, used, used))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {used}_other login".encode())
        connection.execute(f"grant {used}_client to {used}_other".encode())
        connection.execute(f"set session authorization {used}_other".encode())
        for statement in TEMPORARY:
            connection.execute(statement.encode())
        connection.execute("set search_path = pg_temp, pg_catalog")
        for call in (
            """insert('m', 's', '1', unique_key => 'k', delay => '1 minute')""",
            """signal_or_start('k', 'go', '1', '{"fsm": "m", "step": "s"}')""",
            """debounce('d', '{"fsm": "m", "step": "s", "delay": 9}')""",
            """get(null, 'k')""",
            """cancel('k', 'why')""",
            """notify_workers('queue', '{default}')""",
        ):
            connection.execute(f'select "{used}".{call}'.encode())


def test_roles_of_another_database_are_refused(dsn: str, used: str, admin: psycopg.Connection[Any]) -> None:
    """Roles belong to the cluster: those of another installation would share the rights of both."""
    admin.execute(f"create role {used}_worker".encode())
    with pytest.raises(DatabaseRefused, match="is not of this schema and database"):
        asyncio.run(make_roles(dsn, used, used))
    assert not has_roles(admin, used)
