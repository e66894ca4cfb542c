"""`migrate --roles` on a schema that others have used before: it takes over nothing that is not its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.roles import GROUPS, make_roles

from gen_durable.errors import DatabaseRefused
from gen_durable.pg.connection import ConnectionTarget, PersistentConnection
from gen_durable.pg.migrate import migrate
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
}
GRANTS = """
select object.name, grantee.rolname from (
  select nspname as name, nspacl as acl from pg_namespace where nspname = %(s)s
  union all select relname, relacl from pg_class where relnamespace = %(s)s::regnamespace
  union all select attname, attacl from pg_attribute a join pg_class c on c.oid = a.attrelid
    where c.relnamespace = %(s)s::regnamespace
  union all select proname, proacl from pg_proc where pronamespace = %(s)s::regnamespace
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
        for name in (*GROUPS, "other"):
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


def test_an_index_of_your_own_is_accepted(dsn: str, used: str, admin: psycopg.Connection[Any]) -> None:
    """On plain columns: it runs no code."""
    admin.execute(f'create index mine on "{used}".instances (updated_at)'.encode())
    asyncio.run(make_roles(dsn, used, used))
    assert has_roles(admin, used)


def test_earlier_grants_are_revoked(dsn: str, used: str, admin: psycopg.Connection[Any]) -> None:
    """On the schema, tables, columns and functions, whoever had them."""
    for statement in (
        "create role @_other",
        'grant all on schema "@" to @_other',
        'grant all on all tables in schema "@" to @_other, public',
        'grant select (state) on "@".instances to @_other with grant option',
        'grant all on all sequences in schema "@" to @_other',
        'grant all on all functions in schema "@" to @_other',
    ):
        admin.execute(statement.replace("@", used).encode())
    asyncio.run(make_roles(dsn, used, used))
    assert admin.execute(GRANTS, {"s": used}).fetchall() == []


def test_roles_of_another_database_are_refused(dsn: str, used: str, admin: psycopg.Connection[Any]) -> None:
    """Roles belong to the cluster: those of another installation would share the rights of both."""
    admin.execute(f"create role {used}_worker".encode())
    with pytest.raises(DatabaseRefused, match="is not of this schema and database"):
        asyncio.run(make_roles(dsn, used, used))
    assert not has_roles(admin, used)
