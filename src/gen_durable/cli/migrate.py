"""`gen-durable migrate`: bring a database to this library's schema version, or print the SQL that would."""

from __future__ import annotations

import asyncio

import typer

from gen_durable.cli.console import exit_on_expected_errors, print_line, print_message, print_multi_line_text
from gen_durable.cli.database_opener import open_database
from gen_durable.cli.shared_options import SCHEMA, DsnOption, SchemaOption
from gen_durable.errors import DatabaseUnavailable
from gen_durable.pg.installed_schema import read_installed_schema, read_role_prefix
from gen_durable.pg.migrate import (
    SETTINGS,
    check_may_migrate,
    library_schema_version,
    list_roles_sql_files,
    make_migration_script,
)
from gen_durable.pg.migrate import migrate as apply
from gen_durable.store.schema import ROLES, Schema
from gen_durable.store.sql_files import metadata_index_script


@exit_on_expected_errors
def migrate(
    *,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    sql: bool = typer.Option(False, "--sql", help="Print the SQL and change nothing."),
    roles: bool = typer.Option(
        False,
        "--roles",
        help="Also create roles with few rights each: worker, client, producer, reader, viewer, admin.",
    ),
    role_prefix: str | None = typer.Option(
        None, "--role-prefix", metavar="NAME", help="Call the roles NAME_worker and so on.", show_default="the schema"
    ),
    metadata_index: bool = typer.Option(
        False, "--metadata-index", help="Also create the index on metadata, without blocking writers."
    ),
) -> None:
    """Create or update the schema. Applies only what is missing; safe to run from many places at once.

    Refuses a schema that holds other objects, or that is newer than this version.
    --sql prints the statements for your database administrator: the missing ones
    if the database is reachable, otherwise all. --roles is needed once: later
    migrations grant the roles what is new.
    """
    checked = Schema(schema)
    prefix = (role_prefix or schema) if roles or role_prefix is not None else None
    action = _print_migration_sql if sql else _migrate_and_print_result
    asyncio.run(action(dsn, checked, index=metadata_index, roles=prefix))


async def _migrate_and_print_result(dsn: str | None, schema: Schema, *, index: bool, roles: str | None) -> None:
    async with open_database(dsn) as database:
        applied = await apply(database.connection, schema, roles=roles, repair_roles=roles is not None)
        newest = library_schema_version(schema)
        if applied:
            versions = ", ".join(map(str, applied))
            print_line(
                f"schema {schema.name}: applied version {versions}, now at version {newest} ({database.location})"
            )
        else:
            print_line(f"schema {schema.name}: nothing to do, at version {newest} ({database.location})")
        if roles is not None:
            names = ", ".join(f"{roles}_{role}" for role in ROLES if role != "owner")
            print_line(f"schema {schema.name}: grant {names} to the logins that need them")
        if index:
            await database.connection.run_script(metadata_index_script(schema))
            print_line(f"schema {schema.name}: metadata is indexed")


async def _print_migration_sql(dsn: str | None, schema: Schema, *, index: bool, roles: str | None) -> None:
    found, present = await _read_installed_or_assume_empty(dsn, schema)
    newest = library_schema_version(schema)
    text = make_migration_script(schema, found)
    prefix = roles if roles is not None else present if text else None
    if prefix is not None:
        files = list_roles_sql_files(schema, prefix, functions_installed=bool(text))
        text = "\n".join([text, *(file.text for file in files)])
    if not text:
        print_message(f"schema {schema.name} is at version {found}: there is nothing to run")
    else:
        print_line(f"-- gen_durable: schema {schema.name} from version {found} to {newest}")
        print_multi_line_text(f"begin;\n{SETTINGS};\n\n{text}\ncommit;")
    if index:
        print_multi_line_text(f"{metadata_index_script(schema).rstrip()};")


async def _read_installed_or_assume_empty(dsn: str | None, schema: Schema) -> tuple[int, str | None]:
    """The version to start from, and the prefix of the roles. 0 without a DSN: printing must not start a server."""
    if dsn is None:
        print_message("no DSN: printing all of it, for an empty database")
        return 0, None
    try:
        async with open_database(dsn) as database:
            installed = await read_installed_schema(database.connection, schema)
            check_may_migrate(installed, schema)
            prefix = await read_role_prefix(database.connection, schema) if installed.version else None
            return installed.version, prefix
    except DatabaseUnavailable as error:
        print_message(f"{error}; printing all of it, for an empty database")
        return 0, None
