"""Removes gen_durable from a database: its objects in one schema and, on request, its roles.

All of it is one transaction under the lock of `migrate`. Only what gen_durable has created is dropped, by name
and without CASCADE: objects of others stay, and an object of others that depends on ours is a reason to refuse. The
table of instances is locked before its rows are counted, so no instance can be inserted in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gen_durable.errors import DatabaseRefused, DatabaseUnavailable, SchemaConflict, SchemaInUse, SchemaMissing
from gen_durable.pg.error_classifier import ConnectionLost, message_of, sqlstate_of
from gen_durable.pg.installed_schema import SHOWN_OBJECTS, InstalledSchema, read_installed_schema
from gen_durable.pg.lock_holders import describe_lock_holders, find_lock_holders
from gen_durable.pg.migrate import LOCK_TIMED_OUT, SETTINGS, check_may_migrate, lock_and_read_installed_schema
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.schema import ROLES, Schema
from gen_durable.store.sql_files import OwnObjects, own_objects

_DEPENDENTS_EXIST: Final = "2BP01"
_NO_RIGHT: Final = "42501"


@dataclass(frozen=True, slots=True)
class ContentToUninstall:
    """The content that an uninstall would remove: its version, its instances (live and ended), the prefix of its roles.

    `workers` have claims whose lease has not expired.
    """

    version: int
    live: int
    ended: int
    roles: str | None
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UninstallResult:
    """The result of an uninstall. `kept_objects` names some objects of others that stay, with their schema."""

    roles: tuple[str, ...]
    kept_objects: tuple[str, ...]
    is_schema_dropped: bool


async def read_content_to_uninstall(connection: PersistentConnection, schema: Schema) -> ContentToUninstall:
    """What an uninstall would remove. Raises `SchemaMissing`, `SchemaTooNew` or `SchemaConflict` if it must stay."""
    driver_connection = await _connect_or_raise_unavailable(connection)
    installed = await _read_schema_or_raise(connection, schema)
    return await _read_content(driver_connection, schema, installed)


async def uninstall(
    connection: PersistentConnection, schema: Schema, *, with_roles: bool = False, with_live_instances: bool = False
) -> UninstallResult:
    """Drop gen_durable's objects, and the schema unless others have objects in it.

    Raises `SchemaInUse` while workers are connected, and if instances have not ended unless `with_live_instances`.
    """
    driver_connection = await _connect_or_raise_unavailable(connection)
    try:
        async with driver_connection.transaction(isolation="read_committed"):
            await driver_connection.execute(SETTINGS)
            installed = _require_nonzero_version(await lock_and_read_installed_schema(connection, schema), schema)
            await _check_no_other_sessions(driver_connection, schema)
            await driver_connection.execute(schema.render("lock table @schema.instances in access exclusive mode"))
            content = await _read_content(driver_connection, schema, installed)
            _check_no_workers_or_live_instances(content, schema, with_live_instances=with_live_instances)
            return await _drop_objects_roles_and_schema(
                driver_connection, schema, content.roles if with_roles else None
            )
    except asyncpg.PostgresError as error:
        if sqlstate_of(error) == LOCK_TIMED_OUT:
            holders = describe_lock_holders(await find_lock_holders(driver_connection, schema))
            raise SchemaInUse(f"Cannot uninstall schema {schema.name!r}. {holders}") from error
        raise _to_library_error(error, schema) from error


async def _connect_or_raise_unavailable(connection: PersistentConnection) -> asyncpg.Connection[Any]:
    try:
        return await connection.connect()
    except ConnectionLost as error:
        raise DatabaseUnavailable(f"cannot uninstall, the database is not reachable: {error}") from error


async def _read_schema_or_raise(connection: PersistentConnection, schema: Schema) -> InstalledSchema:
    installed = await read_installed_schema(connection, schema)
    check_may_migrate(installed, schema)
    return _require_nonzero_version(installed, schema)


def _require_nonzero_version(installed: InstalledSchema, schema: Schema) -> InstalledSchema:
    if installed.version == 0:
        raise SchemaMissing(f"Schema {schema.name!r} has no gen_durable: there is nothing to uninstall")
    return installed


async def _read_content(
    driver_connection: asyncpg.Connection[Any], schema: Schema, installed: InstalledSchema
) -> ContentToUninstall:
    (row,) = await driver_connection.fetch(schema.render(_CONTENT))
    return ContentToUninstall(installed.version, row["live"], row["ended"], row["roles"], tuple(row["workers"] or ()))


def _check_no_workers_or_live_instances(
    content: ContentToUninstall, schema: Schema, *, with_live_instances: bool
) -> None:
    if content.workers:
        raise SchemaInUse(
            f"Workers execute instances of schema {schema.name!r}: {_join_first_names(content.workers)}. Nothing was "
            "changed. Stop them; if they are dead, wait until their leases have expired"
        )
    if content.live and not with_live_instances:
        raise SchemaInUse(
            f"{content.live:,} instances of schema {schema.name!r} have not ended. Nothing was changed. Let them end, "
            "cancel them, or delete them as well with --force"
        )


def _join_first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_OBJECTS} more" if len(names) > SHOWN_OBJECTS else ""
    return ", ".join(names[:SHOWN_OBJECTS]) + more


async def _check_no_other_sessions(driver_connection: asyncpg.Connection[Any], schema: Schema) -> None:
    """Raise `SchemaInUse` while other sessions of the library use this schema, as far as the server shows them."""
    found = await driver_connection.fetch(schema.render(_SESSIONS), schema.name, schema.channel)
    if found:
        sessions = _join_first_names([f"{row['usename']} (pid {row['pid']})" for row in found])
        raise SchemaInUse(
            f"Workers or clients are connected to schema {schema.name!r}: {sessions}. Nothing was changed. Stop them"
        )


async def _drop_objects_roles_and_schema(
    driver_connection: asyncpg.Connection[Any], schema: Schema, prefix: str | None
) -> UninstallResult:
    objects = own_objects(schema)
    await driver_connection.execute(schema.render(_make_drop_tables_script(objects)))
    # Overloads of earlier versions stay callable for a while, so functions are found by name, and by the settings
    # that all of ours have: a function of others may have the name of one of ours.
    signatures = await driver_connection.fetchval(_FUNCTIONS, schema.name, objects.functions)
    if signatures:
        await driver_connection.execute(f"drop function {signatures}")
    await driver_connection.execute(schema.render(f"drop type {_qualify_names(objects.types)}"))
    others = [row[0] for row in await driver_connection.fetch(_OBJECTS, schema.name)]
    dropped: tuple[str, ...] = ()
    if prefix is not None:
        dropped = tuple(f"{prefix}_{role}" for role in ROLES)
        await _drop_roles(driver_connection, schema, dropped)
    is_dropped = not others and schema.name != "public"
    if is_dropped:
        await driver_connection.execute(schema.render("drop schema @schema"))
    return UninstallResult(dropped, tuple(others[: SHOWN_OBJECTS + 1]), is_dropped)


async def _drop_roles(driver_connection: asyncpg.Connection[Any], schema: Schema, roles: Sequence[str]) -> None:
    """Drop the roles. What others have in the schema and one of the roles owns goes to the current user."""
    elsewhere = [row[0] for row in await driver_connection.fetch(_USED_ELSEWHERE, list(roles), schema.name)]
    if elsewhere:
        raise SchemaConflict(
            f"The roles of schema {schema.name!r} are used outside of it ({_join_first_names(elsewhere)}). Nothing was "
            "changed. Uninstall without --roles, or revoke these rights first"
        )
    names = ", ".join(f'"{role}"' for role in roles)
    if not await driver_connection.fetchval("select rolsuper from pg_roles where rolname = current_user"):
        await driver_connection.execute(f"grant {names} to current_user")
    await driver_connection.execute(f"reassign owned by {names} to current_user")
    await driver_connection.execute(f"drop owned by {names}")  # owns nothing any more: revokes its rights
    await driver_connection.execute(f"drop role {names}")


def _make_drop_tables_script(objects: OwnObjects) -> str:
    """Views before the tables that they read; one statement per kind, so that ours may depend on each other."""
    views = f"drop view if exists {_qualify_names(objects.views)}"
    return f"{views};\ndrop table {_qualify_names(objects.tables)}"


def _qualify_names(names: Sequence[str]) -> str:
    return ", ".join(f'@schema."{name}"' for name in names)


def _to_library_error(error: asyncpg.PostgresError, schema: Schema) -> Exception:
    """The library's error, for the reasons that a user can cure. These messages quote names and never values."""
    match sqlstate_of(error):
        case code if code == _DEPENDENTS_EXIST:
            return SchemaConflict(
                f"Other objects depend on those of schema {schema.name!r} "
                f"({_join_first_names((error.detail or '').splitlines())}). Nothing was changed. Drop them first"
            )
        case code if code == _NO_RIGHT:
            return DatabaseRefused(
                f"cannot uninstall schema {schema.name!r}: {message_of(error)}. Nothing was changed. Run the command "
                "as the login that has migrated the schema, or as a superuser"
            )
        case _:
            return error


_CONTENT: Final = """
select count(*) filter (where i.finished_at is null) as live,
       count(*) filter (where i.finished_at is not null) as ended,
       array_agg(distinct i.locked_by) filter (where i.status = 'executing' and i.lease_expires_at > now()) as workers,
       (select installation.roles from @schema.installation) as roles
from @schema.instances i
"""
# Without pg_read_all_stats the queries of other logins are hidden: such a session may use any schema, and does not
# count.
_SESSIONS: Final = """
select activity.pid, activity.usename from pg_catalog.pg_stat_activity activity
where activity.application_name = 'gen_durable' and activity.datname = pg_catalog.current_database()
  and activity.pid <> pg_catalog.pg_backend_pid()
  and (
    pg_catalog.strpos(activity.query, '"' || $1 || '"') > 0
    or pg_catalog.strpos(activity.query, $2) > 0
  )
order by activity.pid
"""
_FUNCTIONS: Final = """
select pg_catalog.string_agg(function.oid::pg_catalog.regprocedure::text, ', ')
from pg_catalog.pg_proc function
join pg_catalog.pg_namespace n on n.oid = function.pronamespace
where n.nspname = $1 and function.proname = any ($2::text[])
  and (function.prosqlbody is not null or 'search_path=pg_catalog, pg_temp' = any (function.proconfig))
"""
_OBJECTS: Final = """
select pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
from pg_catalog.pg_depend d
join pg_catalog.pg_namespace n on n.oid = d.refobjid
where d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass and n.nspname = $1 and d.deptype = 'n'
order by d.objid
"""
# Rights and ownership outside of the schema: `drop owned` would take those away, too.
_USED_ELSEWHERE: Final = """
select distinct case
  when d.dbid in (0, (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database()))
  then pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
  else 'objects of database ' || (select datname from pg_catalog.pg_database where oid = d.dbid)
end
from pg_catalog.pg_shdepend d
join pg_catalog.pg_roles r on r.oid = d.refobjid
left join pg_catalog.pg_namespace n on n.nspname = $2
where d.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass and r.rolname = any ($1::text[])
  and d.classid <> 'pg_catalog.pg_auth_members'::pg_catalog.regclass
  and not (
    d.dbid = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
    and (
      (d.classid = 'pg_catalog.pg_namespace'::pg_catalog.regclass and d.objid = n.oid)
      or exists (
        select from pg_catalog.pg_depend own
        where own.classid = d.classid and own.objid = d.objid and own.refobjid = n.oid
          and own.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
      )
    )
  )
"""
