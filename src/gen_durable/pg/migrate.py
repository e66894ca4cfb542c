"""Bringing a database to this library's schema version.

In: a link and a schema. Out: the versions applied, or an error of ours. Safe to run from many processes at once: all of
it is one transaction under a transaction-level lock, and the version is read under that lock. A DDL lock that is not to
be had in time is given up and asked for again, so that a migration never queues the application behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from gen_durable.errors import ConfigError, DatabaseUnavailable, SchemaMissing, SchemaTooNew
from gen_durable.pg.connection import PersistentConnection
from gen_durable.pg.faults import ConnectionLost, sqlstate
from gen_durable.pg.pool import Pool
from gen_durable.store.schema import Migration, Schema, functions, migrations
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row

log = logging.getLogger("gen_durable.migrate")
LOCK_TRIES: Final = 10
SETTINGS: Final = (
    "set local lock_timeout = '5s'; set local check_function_bodies = off; "  # functions may call later ones
    "set local search_path = pg_catalog, pg_temp"
)
"""What a migration runs with: a name that is not qualified means Postgres' own, whatever the caller's search_path."""
_RETRIED: Final = frozenset({"55P03", "40P01", "40001", "23505", "42P06", "42710"})


def plan(schema: Schema, current: int) -> list[Migration]:
    """The migrations that a database at version `current` lacks."""
    return [m for m in migrations(schema) if m.version > current]


def library_version(schema: Schema) -> int:
    """The schema version of this library."""
    return max(m.version for m in migrations(schema))


def script(schema: Schema, current: int) -> str:
    """The SQL that brings a database from version `current` to this library's; empty when there is nothing to do."""
    missing = plan(schema, current)
    if not missing:
        return ""
    parts = [_FOUNDATION]
    for migration in missing:
        parts.append(migration.sql)
        parts.append(f"insert into @schema.migrations (version) values ({migration.version});\n")  # noqa: S608
    parts.append(functions(schema))
    return schema.render("\n".join(parts))


async def installed_version(link: PersistentConnection | Pool, schema: Schema) -> int:
    """The schema version of the database; 0 when there is none."""
    there = Statement("select pg_catalog.to_regclass($1) is not null", (f'"{schema.name}".migrations',), _first)
    if not await link.run(there):
        return 0
    version = schema.render("select coalesce(pg_catalog.max(version), 0) from @schema.migrations")
    return int(await link.run(Statement(version, (), _first)))


def _first(rows: Sequence[Row]) -> Any:
    return rows[0][0]


async def check(link: PersistentConnection | Pool, schema: Schema) -> None:
    """Refuse a database that lacks what this library calls. A newer one is fine: old calls keep working."""
    found, needed = await installed_version(link, schema), library_version(schema)
    if found < needed:
        state = (
            "has no gen_durable schema" if found == 0 else f"is at schema version {found}, this library needs {needed}"
        )
        raise SchemaMissing(
            f"the database {state} (schema {schema.name!r}): run `gen-durable migrate`, or open it with migrate=True"
        )


async def migrate(link: PersistentConnection, schema: Schema, *, roles: str | None = None) -> list[int]:
    """Apply what is missing. Returns the versions applied, oldest first.

    With `roles`, a prefix, roles are made too; once there are some, every migration sees to them.
    """
    for attempt in range(LOCK_TRIES):
        try:
            return await _migrate(link, schema, roles)
        except asyncpg.PostgresError as error:
            if sqlstate(error) not in _RETRIED or attempt == LOCK_TRIES - 1:
                raise
            log.info("schema %s is locked by another session, trying again", schema.name)
        except ConnectionLost as error:
            raise DatabaseUnavailable(f"cannot migrate, the database is not reachable: {error}") from error
        await asyncio.sleep(0.2 * (attempt + 1))
    raise AssertionError("unreachable")


async def _migrate(link: PersistentConnection, schema: Schema, roles: str | None) -> list[int]:
    connection = await link.connect()
    async with connection.transaction():
        await connection.execute(SETTINGS)
        await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", f"gen_durable/{schema.name}")
        found, newest = await installed_version(link, schema), library_version(schema)
        if found > newest:
            raise SchemaTooNew(
                f"schema {schema.name!r} is at version {found}, this library knows up to {newest}: "
                "upgrade gen-durable, it will not touch a newer schema"
            )
        sql = script(schema, found)
        if sql:
            await connection.execute(sql)
        present = await connection.fetchval(schema.render("select roles from @schema.installation"))
        if present is not None and roles not in (None, present):
            raise ConfigError(f"schema {schema.name!r} has roles with the prefix {present!r} already, not {roles!r}")
        prefix = roles if roles is not None else present if sql else None
        if prefix is not None:
            await connection.execute(schema.roles(prefix))
    return [m.version for m in plan(schema, found)]


_FOUNDATION: Final = """create schema if not exists @schema;
create table if not exists @schema.migrations (
  version     int primary key,
  applied_at  timestamptz not null default now()
);
"""
