"""The schema of the demo: created anew for each run.

Only a schema of this layout is dropped. One of an unreleased version is renamed, and one with other objects is refused.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from gen_durable.pg.installed_schema import read_installed_schema
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

_EXISTS: Final = "select exists (select from pg_catalog.pg_namespace where nspname = $1)"


async def create_schema_anew_or_set_old_aside(connection: PersistentConnection, schema: Schema) -> str | None:
    """Create the schema, empty and migrated. Returns the new name of a schema that was set aside, if there was one."""
    installed = await read_installed_schema(connection, schema)
    renamed = None
    if installed.is_unreleased:
        renamed = await _find_free_schema_name(connection, schema)
        await connection.run_script(schema.render(f'alter schema @schema rename to "{renamed}"'))
    else:
        installed.check_empty_or_ours(schema)
        await connection.run_script(schema.render("drop schema if exists @schema cascade"))
    await migrate(connection, schema)
    return renamed


async def _find_free_schema_name(connection: PersistentConnection, schema: Schema) -> str:
    for number in count(1):
        name = f"{schema.name}_old{number}"
        if not await connection.run(Statement(_EXISTS, (name,), lambda rows: bool(rows[0][0]))):
            return name
    raise AssertionError("unreachable")
