"""Schemas that are created for one test and dropped after it.

A comment marks such a schema: nothing in this package changes a schema without the mark.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.errors import ConfigError
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

MARK: Final = "gen_durable: created for a test, may be dropped"
PREFIX: Final = "gd_test_"


@asynccontextmanager
async def throw_away_schema(dsn: str) -> AsyncGenerator[str]:
    """A fresh, migrated schema, dropped at the end with its content: `Durable(dsn, schema=name)`."""
    name = await create_throw_away_schema(dsn)
    try:
        yield name
    finally:
        await drop_throw_away_schema(dsn, name)


async def create_throw_away_schema(dsn: str) -> str:
    """Create, migrate and mark a schema. Returns its name."""
    schema = Schema(f"{PREFIX}{uuid.uuid4().hex[:16]}")
    connection = PersistentConnection(ConnectionTarget(dsn))
    try:
        await connection.connect()
        if not connection.target.pooled:  # behind a pooler the setting would leak to the next client
            await connection.run_script("set synchronous_commit = off")
        await migrate(connection, schema)
        await connection.run_script(schema.render(f"comment on schema @schema is '{MARK}'"))
    finally:
        await connection.close()
    return schema.name


async def drop_throw_away_schema(dsn: str, name: str) -> None:
    """Drop a schema, if it was created for a test."""
    schema = Schema(name)
    connection = PersistentConnection(ConnectionTarget(dsn))
    try:
        if await connection.run(_schema_comment_statement(schema)) == MARK:
            await connection.run_script(
                schema.render("set local synchronous_commit = off; drop schema @schema cascade")
            )
    finally:
        await connection.close()


async def check_throw_away_schema(app: Durable) -> None:
    """Raise `ConfigError` unless the schema was created for a test."""
    schema = services_of(app).statements.schema
    if await services_of(app).pool.run(_schema_comment_statement(schema)) != MARK:
        raise ConfigError(
            f"Schema {schema.name!r} was not created for tests. A harness runs everything that is due in its schema "
            "and shifts the time of every row. Use the fixture durable_harness, or throw_away_schema(dsn)."
        )


def _schema_comment_statement(schema: Schema) -> Statement[str | None]:
    return Statement(
        "select obj_description(to_regnamespace($1)::oid, 'pg_namespace')",
        (f'"{schema.name}"',),
        lambda rows: rows[0][0],
    )
