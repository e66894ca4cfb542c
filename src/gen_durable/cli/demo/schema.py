"""Removes the schema of an earlier demo: each run begins with an empty one.

Only a schema of this layout is dropped. One of an unreleased version is renamed, and one with other objects is refused.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from gen_durable.pg.installed_schema import read_installed_schema
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

_EXISTS: Final = "select exists (select from pg_catalog.pg_namespace where nspname = $1)"


async def drop_or_rename_old_schema(connection: PersistentConnection, schema: Schema) -> str | None:
    """Make room for a new schema. Returns the new name of the old one if it was renamed."""
    installed = await read_installed_schema(connection, schema)
    if installed.is_unreleased:
        renamed = await _find_free_schema_name(connection, schema)
        await connection.run_script(schema.render(f'alter schema @schema rename to "{renamed}"'))
        return renamed
    installed.check_empty_or_ours(schema)
    await connection.run_script(schema.render("drop schema if exists @schema cascade"))
    return None


async def _find_free_schema_name(connection: PersistentConnection, schema: Schema) -> str:
    for number in count(1):
        name = f"{schema.name}_old{number}"
        if not await connection.run(Statement(_EXISTS, (name,), lambda rows: bool(rows[0][0]))):
            return name
    raise AssertionError("unreachable")
