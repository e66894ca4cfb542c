"""Grants the roles `producer` and `client` to single logins, with restrictions and quotas, and revokes them.

The restrictions are rows of ours that `insert` checks by the oid of the login (sql/functions/require_granted.sql,
take_login_quota.sql). A login without rows has all rights of its role, so the last row of a login goes only together
with its right to insert. Each change is one transaction.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import asyncpg

from gen_durable.errors import ConfigError, DatabaseRefused, NotFound
from gen_durable.pg.error_classifier import message_of, sqlstate_of
from gen_durable.pg.migrate import SETTINGS, check_schema_version
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.schema import ROLES, Schema
from gen_durable.store.sql_files import live_index_script

InsertRole = Literal["producer", "client"]
_INSERT_ROLES: Final[tuple[InsertRole, ...]] = ("producer", "client")
_UNRESTRICTED_ROLES: Final = ("owner", "worker", "admin")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a login may insert: None is any. `most_urgent` is the lowest number of a priority."""

    machine: str | None = None
    queue: str | None = None
    most_urgent: int | None = None
    partition_prefix: str | None = None

    @property
    def is_unrestricted(self) -> bool:
        """Whether it names nothing, so that no row is stored for it."""
        return self == Grant()

    def __str__(self) -> str:
        machine = "any machine" if self.machine is None else f"machine {self.machine}"
        queue = "any queue" if self.queue is None else f"queue {self.queue}"
        urgent = "" if self.most_urgent is None else f", priority {self.most_urgent} or a higher number"
        keys = "" if self.partition_prefix is None else f", partition keys that begin with {self.partition_prefix!r}"
        return f"{machine} into {queue}{urgent}{keys}"


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a login may insert: None is any number."""

    max_live: int | None = None
    inserts_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class LoginGrants:
    """The stored grants of a login. `problem` says why they do not hold, and what to do."""

    login: str
    roles: tuple[str, ...]
    grants: tuple[Grant, ...]
    quota: Quota
    problem: str | None


@dataclass(frozen=True, slots=True)
class _Login:
    oid: int
    name: str
    roles: tuple[str, ...]  # of ours, also through other roles: worker, client, ...


async def grant_role(
    connection: PersistentConnection, schema: Schema, role: InsertRole, login: str, *, grant: Grant, quota: Quota
) -> LoginGrants:
    """Grant a role to a login, and store the restriction and the quotas that are given. Returns all that it has."""
    prefix = await _role_prefix_or_raise(connection, schema)
    if quota.max_live is not None:
        await _ensure_live_index(connection, schema)
    async with _transaction(connection, schema) as driver_connection:
        found = await _find_login_or_raise(driver_connection, login, prefix)
        _check_can_be_restricted(found, prefix)
        if role not in found.roles:
            await _run_with_names(driver_connection, "grant %I to %I", f"{prefix}_{role}", login)
        if not grant.is_unrestricted or quota != Quota():
            await driver_connection.execute(
                schema.render(_STORE_LOGIN), found.oid, found.name, quota.max_live, quota.inserts_per_second
            )
        if not grant.is_unrestricted:
            await driver_connection.execute(
                *(schema.render(_STORE_GRANT), found.oid, grant.machine, grant.queue, grant.most_urgent),
                grant.partition_prefix,
            )
        return await _read_login_grants(
            driver_connection, schema, await _find_login_or_raise(driver_connection, login, prefix)
        )


async def revoke_role(connection: PersistentConnection, schema: Schema, role: InsertRole, login: str) -> LoginGrants:
    """Revoke a role from a login. Its grants and quotas go with the last role of ours that may insert."""
    prefix = await _role_prefix_or_raise(connection, schema)
    async with _transaction(connection, schema) as driver_connection:
        found = await _revoke_role_or_raise(driver_connection, prefix, role, login)
        if not _may_insert(found):
            await driver_connection.execute(schema.render(_DELETE_LOGIN), found.oid)
        return await _read_login_grants(driver_connection, schema, found)


async def revoke_insert_grant(
    connection: PersistentConnection, schema: Schema, role: InsertRole, login: str, grant: Grant
) -> LoginGrants:
    """Delete one grant of a login. With its last grant the login loses the role too: otherwise it could insert all.

    Raises `NotFound` if the login has no such grant, `ConfigError` if it would keep a role that may insert.
    """
    prefix = await _role_prefix_or_raise(connection, schema)
    async with _transaction(connection, schema) as driver_connection:
        found = await _find_login_or_raise(driver_connection, login, prefix)
        deleted = await driver_connection.fetchval(schema.render(_DELETE_GRANT), found.oid, grant.machine, grant.queue)
        if not deleted:
            raise NotFound(
                f"Login {login!r} has no grant for {Grant(grant.machine, grant.queue)}. `gen-durable grants` lists them"
            )
        if not await driver_connection.fetchval(schema.render(_HAS_GRANTS), found.oid):
            found = await _revoke_role_or_raise(driver_connection, prefix, role, login)
            if _may_insert(found):
                kept = next(kept for kept in found.roles if kept in _INSERT_ROLES)
                raise ConfigError(
                    f"That is the last grant of login {login!r}, and without one it may insert everything, since "
                    f"it is also a member of {prefix}_{kept}. Nothing was changed. Revoke that first: "
                    f"gen-durable revoke {kept} {login}"
                )
            await driver_connection.execute(schema.render(_DELETE_LOGIN), found.oid)
        return await _read_login_grants(driver_connection, schema, found)


async def remove_quotas(connection: PersistentConnection, schema: Schema, login: str) -> LoginGrants:
    """Delete the quotas of a login. Its roles and grants stay."""
    prefix = await _role_prefix_or_raise(connection, schema)
    async with _transaction(connection, schema) as driver_connection:
        found = await _find_login_or_raise(driver_connection, login, prefix)
        await driver_connection.execute(schema.render(_DELETE_QUOTAS), found.oid)
        await driver_connection.execute(schema.render(_DELETE_UNUSED_LOGIN), found.oid)
        return await _read_login_grants(driver_connection, schema, found)


async def list_grants(connection: PersistentConnection, schema: Schema) -> list[LoginGrants]:
    """The stored grants and quotas of all logins, by name."""
    prefix = await _role_prefix_or_raise(connection, schema)
    driver_connection = await connection.connect()
    try:
        rows = await driver_connection.fetch(schema.render(_LOGINS), _role_names(prefix))
        grants = await driver_connection.fetch(schema.render(_GRANTS + _GRANT_ORDER))
    except asyncpg.PostgresError as error:
        raise _to_library_error(error, schema) from error
    return [
        _to_login_grants(row, prefix, [grant for grant in grants if grant["login"] == row["login"]]) for row in rows
    ]


@asynccontextmanager
async def _transaction(connection: PersistentConnection, schema: Schema) -> AsyncGenerator[asyncpg.Connection[Any]]:
    driver_connection = await connection.connect()
    try:
        async with driver_connection.transaction():
            await driver_connection.execute(SETTINGS)
            yield driver_connection
    except asyncpg.PostgresError as error:
        raise _to_library_error(error, schema) from error


async def _role_prefix_or_raise(connection: PersistentConnection, schema: Schema) -> str:
    await check_schema_version(connection, schema)
    driver_connection = await connection.connect()
    try:
        prefix = await driver_connection.fetchval(schema.render("select roles from @schema.installation"))
    except asyncpg.PostgresError as error:
        raise _to_library_error(error, schema) from error
    if prefix is None:
        raise ConfigError(
            f"Schema {schema.name!r} has no roles, so every login that can write to it may do everything. Create them "
            "with `gen-durable migrate --roles`"
        )
    return str(prefix)


async def _ensure_live_index(connection: PersistentConnection, schema: Schema) -> None:
    """Create the index that quotas are counted with, and again if an earlier attempt has left it incomplete."""
    driver_connection = await connection.connect()
    try:
        if await driver_connection.fetchval(_IS_INDEX_BROKEN, schema.name):
            await driver_connection.execute(schema.render("drop index concurrently @schema.instances_live_of_login"))
        await driver_connection.execute(live_index_script(schema))
    except asyncpg.PostgresError as error:
        raise _to_library_error(error, schema) from error


async def _find_login_or_raise(driver_connection: asyncpg.Connection[Any], login: str, prefix: str) -> _Login:
    row = await driver_connection.fetchrow(_LOGIN, login, _role_names(prefix))
    if row is None:
        raise NotFound(f"There is no login {login!r}. Create it first, for example with: create role ... login")
    if not row["rolcanlogin"]:
        raise ConfigError(f"Role {login!r} cannot log in. Grants hold for logins: name each of its members instead")
    if row["rolsuper"]:
        raise ConfigError(f"Login {login!r} is a superuser, which nothing restricts. Use another login")
    return _Login(row["oid"], login, _without_prefix(row["roles"], prefix))


def _check_can_be_restricted(login: _Login, prefix: str) -> None:
    for role in _UNRESTRICTED_ROLES:
        if role in login.roles:
            raise ConfigError(
                f"Login {login.name!r} is a member of {prefix}_{role}, which may do more than insert and is not "
                "restricted by grants. Use a login of its own"
            )


async def _revoke_role_or_raise(
    driver_connection: asyncpg.Connection[Any], prefix: str, role: InsertRole, login: str
) -> _Login:
    """Revoke a role, and return the login as it is then. Raises `ConfigError` if another role still gives it."""
    found = await _find_login_or_raise(driver_connection, login, prefix)
    if role in found.roles:
        await _run_with_names(driver_connection, "revoke %I from %I", f"{prefix}_{role}", login)
        found = await _find_login_or_raise(driver_connection, login, prefix)
    if role in found.roles:
        raise ConfigError(
            f"Login {login!r} is still a member of {prefix}_{role}, through another role or by a grant of another "
            "login. Nothing was changed. Revoke that first, with SQL"
        )
    return found


def _may_insert(login: _Login) -> bool:
    return any(role in login.roles for role in _INSERT_ROLES)


async def _run_with_names(driver_connection: asyncpg.Connection[Any], template: str, role: str, login: str) -> None:
    query = "select pg_catalog.format($1, $2::text, $3::text)"
    statement = await driver_connection.fetchval(query, template, role, login)
    await driver_connection.execute(statement)


async def _read_login_grants(driver_connection: asyncpg.Connection[Any], schema: Schema, login: _Login) -> LoginGrants:
    rows = await driver_connection.fetch(schema.render(_GRANTS + " where given.login = $1" + _GRANT_ORDER), login.oid)
    quota = await driver_connection.fetchrow(schema.render(_QUOTA), login.oid)
    return LoginGrants(login.name, login.roles, _to_grants(rows), Quota() if quota is None else Quota(*quota), None)


def _to_login_grants(row: asyncpg.Record, prefix: str, grants: list[asyncpg.Record]) -> LoginGrants:
    roles = _without_prefix(row["roles"], prefix)
    problem = None
    if row["rolname"] is None:
        problem = "the login no longer exists: gen-durable migrate --roles deletes its grants"
    elif row["rolsuper"]:
        problem = "the login is a superuser: nothing restricts it"
    elif wide := [role for role in _UNRESTRICTED_ROLES if role in roles]:
        problem = f"the login is a member of {prefix}_{wide[0]}: grants do not restrict that"
    elif not any(role in roles for role in _INSERT_ROLES):
        problem = f"the login may not insert: it is not a member of {prefix}_producer"
    quota = Quota(row["max_live"], row["inserts_per_second"])
    return LoginGrants(row["rolname"] or row["login_name"], roles, _to_grants(grants), quota, problem)


def _to_grants(rows: list[asyncpg.Record]) -> tuple[Grant, ...]:
    return tuple(Grant(row["machine"], row["queue"], row["most_urgent"], row["partition_prefix"]) for row in rows)


def _role_names(prefix: str) -> list[str]:
    return [f"{prefix}_{role}" for role in ROLES]


def _without_prefix(roles: list[str] | None, prefix: str) -> tuple[str, ...]:
    return tuple(role.removeprefix(f"{prefix}_") for role in roles or ())


def _to_library_error(error: asyncpg.PostgresError, schema: Schema) -> Exception:
    """The library's error. The server's message for a missing right quotes names and never values."""
    if sqlstate_of(error) != "42501":
        return error
    return DatabaseRefused(
        f"cannot read or change the grants of schema {schema.name!r}: {message_of(error)}. Run the command as the "
        "login that has created the roles (gen-durable migrate --roles), or as a superuser"
    )


_LOGIN: Final = """
select r.oid, r.rolcanlogin, r.rolsuper, array(
  select ours.rolname::text from pg_catalog.pg_roles ours
  where ours.rolname = any ($2::text[]) and pg_catalog.pg_has_role(r.oid, ours.oid, 'member') order by 1
) as roles
from pg_catalog.pg_roles r where r.rolname = $1
"""
_LOGINS: Final = """
select restricted.login, restricted.login_name, restricted.max_live, restricted.inserts_per_second, r.rolname::text,
  r.rolsuper, array(
    select ours.rolname::text from pg_catalog.pg_roles ours
    where ours.rolname = any ($1::text[]) and r.oid is not null and pg_catalog.pg_has_role(r.oid, ours.oid, 'member')
    order by 1
  ) as roles
from @schema.restricted_logins restricted
left join pg_catalog.pg_roles r on r.oid = restricted.login
order by coalesce(r.rolname::text, restricted.login_name), restricted.login
"""
_GRANTS: Final = """
select given.login, given.machine, given.queue, given.most_urgent, given.partition_prefix from @schema.grants given
"""
_GRANT_ORDER: Final = " order by given.machine nulls first, given.queue nulls first"
_QUOTA: Final = "select max_live, inserts_per_second from @schema.restricted_logins where login = $1"
# A quota that is not given stays. live_left becomes 0, so that the next insert counts.
_STORE_LOGIN: Final = """
insert into @schema.restricted_logins as stored (login, login_name, max_live, inserts_per_second)
values ($1, $2, $3, $4)
on conflict (login) do update set
  login_name = excluded.login_name, live_left = 0,
  max_live = coalesce(excluded.max_live, stored.max_live),
  inserts_per_second = coalesce(excluded.inserts_per_second, stored.inserts_per_second),
  drained_until = case when excluded.inserts_per_second is null then stored.drained_until end
"""
_STORE_GRANT: Final = """
insert into @schema.grants (login, machine, queue, most_urgent, partition_prefix) values ($1, $2, $3, $4, $5)
on conflict (login, machine, queue) do update set
  most_urgent = excluded.most_urgent, partition_prefix = excluded.partition_prefix
"""
_DELETE_LOGIN: Final = "delete from @schema.restricted_logins where login = $1"
_DELETE_GRANT: Final = """
with deleted as (
  delete from @schema.grants where login = $1 and machine is not distinct from $2 and queue is not distinct from $3
  returning login
)
select count(*) from deleted
"""
_HAS_GRANTS: Final = "select exists (select from @schema.grants where login = $1)"
_DELETE_QUOTAS: Final = """
update @schema.restricted_logins set max_live = null, inserts_per_second = null, drained_until = null where login = $1
"""
_DELETE_UNUSED_LOGIN: Final = """
delete from @schema.restricted_logins restricted
where restricted.login = $1 and not exists (select from @schema.grants given where given.login = restricted.login)
"""
_IS_INDEX_BROKEN: Final = """
select not i.indisvalid from pg_catalog.pg_index i
join pg_catalog.pg_class c on c.oid = i.indexrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relname = 'instances_live_of_login' and n.nspname = $1
"""
