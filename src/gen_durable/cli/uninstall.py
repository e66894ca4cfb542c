"""`gen-durable uninstall`: remove gen_durable from a database."""

from __future__ import annotations

import asyncio
import sys

import typer

from gen_durable.cli.console import (
    exit_on_expected_errors,
    exit_with_message,
    print_line,
    print_message,
    prompt_for_answer,
)
from gen_durable.cli.database_opener import ConnectedDatabase, open_database
from gen_durable.cli.shared_options import SCHEMA, DsnOption, SchemaOption
from gen_durable.pg.uninstall import ContentToUninstall, UninstallResult, read_content_to_uninstall
from gen_durable.pg.uninstall import uninstall as remove
from gen_durable.store.schema import ROLES, Schema


@exit_on_expected_errors
def uninstall(
    *,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    roles: bool = typer.Option(False, "--roles", help="Also drop the roles that migrate --roles has created."),
    force: bool = typer.Option(False, "--force", help="Also delete instances that have not ended."),
    yes: bool = typer.Option(False, "--yes", help="Do not ask for the name of the schema."),
) -> None:
    """Remove gen_durable's tables, functions and types, with all instances.

    Stop workers and clients first. Objects of yours in the schema stay; one
    that depends on a table of gen_durable prevents the removal. All of it is
    one transaction.

    Exit code 2: nothing was removed.
    """
    asyncio.run(_confirm_and_uninstall(dsn, Schema(schema), roles=roles, force=force, yes=yes))


async def _confirm_and_uninstall(dsn: str | None, schema: Schema, *, roles: bool, force: bool, yes: bool) -> None:
    async with open_database(dsn) as database:
        content = await read_content_to_uninstall(database.connection, schema)
        if roles and content.roles is None:
            exit_with_message(f"schema {schema.name!r} has no roles: leave out --roles.")
        if not yes:
            _confirm_with_schema_name(schema, content, database, roles=roles)
        removal = await remove(database.connection, schema, with_roles=roles, with_live_instances=force)
        _print_removal(schema, content, removal, database.location)


def _confirm_with_schema_name(
    schema: Schema, content: ContentToUninstall, database: ConnectedDatabase, *, roles: bool
) -> None:
    if not sys.stdin.isatty():
        exit_with_message("this asks for the name of the schema on a terminal. Pass --yes to remove it without asking.")
    dropped = f", and the roles {_join_role_names(content)}" if roles else ""
    print_message(
        f"This deletes {content.live + content.ended:,} instances ({content.live:,} have not ended) and all objects of "
        f"gen_durable in schema {schema.name} ({database.location}){dropped}."
    )
    if prompt_for_answer("Type the name of the schema to go on") != schema.name:
        exit_with_message("that is not the name of the schema. Nothing was changed.")


def _print_removal(schema: Schema, content: ContentToUninstall, removal: UninstallResult, location: str) -> None:
    print_line(f"schema {schema.name}: removed version {content.version} ({location})")
    if removal.kept_objects:
        print_line(f"schema {schema.name}: stays, with {', '.join(removal.kept_objects)}")
    if removal.roles:
        print_line(f"schema {schema.name}: dropped the roles {', '.join(removal.roles)}")
    elif content.roles is not None:
        print_message(f"the roles {_join_role_names(content)} stay: drop them yourself if no other schema uses them")


def _join_role_names(content: ContentToUninstall) -> str:
    return ", ".join(f"{content.roles}_{role}" for role in ROLES)
