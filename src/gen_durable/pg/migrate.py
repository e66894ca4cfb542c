"""Brings a database to this library's schema version.

Many processes may migrate at once: all of it is one transaction under a lock of the table of migrations, which no
other login may take, and the version is read under that lock. Of sessions that install the first version together, all
but one fail at the first object, and try again. Statements are sent one at a time, so that an error names the one that
failed. A lock that is not granted in time is given up and requested again later: other sessions would queue behind a
migration that waits for it. In the end the error names the sessions that hold it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gen_durable.errors import ConfigError, DatabaseRefused, DatabaseUnavailable, SchemaMissing, SchemaTooNew
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import (
    READ_ONLY,
    READ_ONLY_DATABASE,
    ConnectionLost,
    describe_for_log,
    message_of,
    sqlstate_of,
)
from gen_durable.pg.installed_schema import InstalledSchema, read_installed_schema
from gen_durable.pg.lock_holders import describe_lock_holders, find_lock_holders
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.pg.pool import Pool
from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import Migration, SqlFile, functions, migrations, roles_script, views
from gen_durable.store.sql_splitter import split_sql_statements

log = get_escaping_logger("gen_durable.migrate")
LOCK_TRIES: Final = 10
SETTINGS: Final = (
    "set local lock_timeout = '5s'; set local check_function_bodies = off; "  # functions may call later ones
    "set local search_path = pg_catalog, pg_temp"
)
"""The settings of a migration: a name that is not qualified means Postgres' own, whatever the caller's search_path."""
LOCK_TIMED_OUT: Final = "55P03"
_RETRIED: Final = frozenset({LOCK_TIMED_OUT, "40P01", "40001", "23505", "42P06", "42P07", "42710"})


@dataclass(frozen=True, slots=True)
class _MigrationStatement:
    """One statement of a migration: its file and its number in it."""

    path: str
    number: int
    sql: str


class _StatementFailed(Exception):
    """The server rejected a statement of a migration."""

    def __init__(self, step: _MigrationStatement, error: asyncpg.PostgresError) -> None:
        super().__init__(step.path)
        self.step = step
        self.error = error


def find_missing_migrations(schema: Schema, current: int) -> list[Migration]:
    """The migrations that a database at version `current` lacks."""
    return [m for m in migrations(schema) if m.version > current]


def library_schema_version(schema: Schema) -> int:
    """The schema version of this library."""
    return max(m.version for m in migrations(schema))


def make_migration_script(schema: Schema, current: int) -> str:
    """The SQL that brings a database from version `current` to this library's; empty when there is nothing to do."""
    return "\n".join(file.text for file in _list_sql_files_to_apply(schema, current))


async def check_schema_version(connection: PersistentConnection | Pool, schema: Schema) -> None:
    """Refuse a database that lacks what this library calls. A newer one is fine: old calls keep working."""
    installed, needed = await read_installed_schema(connection, schema), library_schema_version(schema)
    installed.check_empty_or_ours(schema)
    if installed.version < needed:
        state = (
            "has no gen_durable schema"
            if installed.version == 0
            else f"is at schema version {installed.version}, this library needs {needed}"
        )
        raise SchemaMissing(
            f"the database {state} (schema {schema.name!r}): run `gen-durable migrate`, or open it with migrate=True"
        )


def check_may_migrate(installed: InstalledSchema, schema: Schema) -> None:
    """Raise an error unless this library may migrate the schema: `SchemaConflict` or `SchemaTooNew`."""
    installed.check_empty_or_ours(schema)
    newest = library_schema_version(schema)
    if installed.version > newest:
        raise SchemaTooNew(
            f"schema {schema.name!r} is at version {installed.version}, this library knows up to {newest}: "
            "upgrade gen-durable, it will not touch a newer schema"
        )


async def migrate(
    connection: PersistentConnection, schema: Schema, *, roles: str | None = None, repair_roles: bool = False
) -> list[int]:
    """Apply the missing migrations. Returns their versions, oldest first.

    With `roles`, a prefix, it also creates the roles; later migrations then grant them what is new. `repair_roles` also
    restores owners and rights that were changed since.
    """
    for attempt in range(LOCK_TRIES):
        try:
            return await _migrate_in_transaction(connection, schema, roles, repair_roles=repair_roles)
        except (_StatementFailed, asyncpg.PostgresError) as error:
            cause = error.error if isinstance(error, _StatementFailed) else error
            if sqlstate_of(cause) not in _RETRIED or attempt == LOCK_TRIES - 1:
                raise await _to_library_error_with_lock_holders(connection, error, schema) from cause
            log.info("schema %s is locked by another session, trying again", schema.name)
        except ConnectionLost as error:
            raise DatabaseUnavailable(f"cannot migrate: {error.problem}") from error
        await asyncio.sleep(0.2 * (attempt + 1))
    raise AssertionError("unreachable")


async def _migrate_in_transaction(
    connection: PersistentConnection, schema: Schema, roles: str | None, *, repair_roles: bool
) -> list[int]:
    driver_connection = await connection.connect()
    async with driver_connection.transaction(isolation="read_committed"):
        await _run_sql_file(driver_connection, SqlFile("settings", SETTINGS))
        installed = await lock_and_read_installed_schema(connection, schema)
        missing = _list_sql_files_to_apply(schema, installed.version)
        for file in missing:
            await _run_sql_file(driver_connection, file)
        present = await driver_connection.fetchval(schema.render("select roles from @schema.installation"))
        if present is not None and roles not in (None, present):
            raise ConfigError(f"schema {schema.name!r} has roles with the prefix {present!r} already, not {roles!r}")
        if (prefix := roles or present) is not None and (missing or present is None or repair_roles):
            for file in list_roles_sql_files(schema, prefix, functions_installed=bool(missing)):
                await _run_sql_file(driver_connection, file)
    return [m.version for m in find_missing_migrations(schema, installed.version)]


async def lock_and_read_installed_schema(connection: PersistentConnection, schema: Schema) -> InstalledSchema:
    """Keep other migrations and uninstalls out until the transaction of `connection` ends, and read what is installed.

    Raises as `check_may_migrate`. There is nothing to lock before the first version is installed.
    """
    installed = await read_installed_schema(connection, schema)
    check_may_migrate(installed, schema)
    if installed.version > 0:
        driver_connection = await connection.connect()
        await driver_connection.execute(schema.render("lock table @schema.migrations in share row exclusive mode"))
        installed = await read_installed_schema(connection, schema)
        check_may_migrate(installed, schema)
    return installed


def list_roles_sql_files(schema: Schema, prefix: str, *, functions_installed: bool) -> list[SqlFile]:
    """The SQL that creates and grants the roles: it accepts only functions that its own transaction has installed."""
    again = [] if functions_installed else [*views(schema), *functions(schema)]
    return [*again, SqlFile("roles.sql", roles_script(schema, prefix))]


def _list_sql_files_to_apply(schema: Schema, current: int) -> list[SqlFile]:
    """The SQL that brings a database from version `current` to this library's, in order."""
    missing = find_missing_migrations(schema, current)
    if not missing:
        return []
    record = schema.render("insert into @schema.migrations (version) values ({});\n")
    files: list[SqlFile] = []
    for migration in missing:
        *first, last = migration.files
        files += [*first, SqlFile(last.path, f"{last.text}\n{record.format(migration.version)}")]
    return [*files, *views(schema), *functions(schema)]


async def _run_sql_file(driver_connection: asyncpg.Connection[Any], file: SqlFile) -> None:
    """Send the statements of a file one at a time."""
    for step in _split_sql_file(file):
        try:
            await driver_connection.execute(step.sql)
        except asyncpg.PostgresError as error:
            raise _StatementFailed(step, error) from error


def _split_sql_file(file: SqlFile) -> Iterator[_MigrationStatement]:
    for number, sql in enumerate(split_sql_statements(file.text), 1):
        yield _MigrationStatement(file.path, number, sql)


async def _to_library_error_with_lock_holders(
    connection: PersistentConnection, error: _StatementFailed | asyncpg.PostgresError, schema: Schema
) -> Exception:
    """The library's error; a lock that was not granted is reported with its holders."""
    cause = error.error if isinstance(error, _StatementFailed) else error
    if sqlstate_of(cause) == LOCK_TIMED_OUT:
        place = f", at {_describe_place_of_statement(error.step)}" if isinstance(error, _StatementFailed) else ""
        holders = await find_lock_holders(await connection.connect(), schema)
        return DatabaseRefused(
            f"cannot migrate schema {schema.name!r}: {describe_for_log(cause)}{place}. {describe_lock_holders(holders)}"
        )
    return _to_database_refused_error(error, schema) if isinstance(error, _StatementFailed) else error


def _describe_place_of_statement(step: _MigrationStatement) -> str:
    return f"statement {step.number} of {step.path} ({_first_line_of_code(step.sql)})"


def _to_database_refused_error(failed: _StatementFailed, schema: Schema) -> DatabaseRefused:
    """The library's error. It repeats the server's message only for class 42, which quotes names and never values."""
    step, error = failed.step, failed.error
    if sqlstate_of(error) == READ_ONLY:
        return DatabaseRefused(f"cannot migrate schema {schema.name!r}: {READ_ONLY_DATABASE}")
    is_about_names = (sqlstate_of(error) or "").startswith("42")
    reason = f"{message_of(error)} ({describe_for_log(error)})" if is_about_names else describe_for_log(error)
    return DatabaseRefused(
        f"cannot migrate schema {schema.name!r}: {reason}, at {_describe_place_of_statement(step)}. Nothing was changed"
    )


def _first_line_of_code(sql: str) -> str:
    """The first line of a statement that is not a comment."""
    lines = (line.strip() for line in sql.splitlines())
    return next((line for line in lines if line and not line.startswith("--")), "")
