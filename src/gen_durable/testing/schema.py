"""Schemas made for one test and dropped after it.

In: a DSN. Out: the name of a migrated schema, with a mark on it that tells it from one that holds real work: nothing in
this package touches a schema without the mark.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.errors import ConfigError
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.pg.migrate import migrate
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

MARK: Final = "gen_durable: made for a test, to be thrown away"
PREFIX: Final = "gd_test_"


@asynccontextmanager
async def throw_away_schema(dsn: str) -> AsyncGenerator[str]:
    """A fresh, migrated schema, dropped in the end with all that is in it: `Durable(dsn, schema=name)`."""
    name = await make_schema(dsn)
    try:
        yield name
    finally:
        await drop_schema(dsn, name)


async def make_schema(dsn: str) -> str:
    """Make, migrate and mark a schema; returns its name."""
    schema = Schema(f"{PREFIX}{uuid.uuid4().hex[:16]}")
    link = PersistentConnection(Target(dsn))
    try:
        await link.connect()
        if not link.target.pooled:  # behind a pooler the next client would have it
            await link.run_script("set synchronous_commit = off")
        await migrate(link, schema)
        await link.run_script(schema.render(f"comment on schema @schema is '{MARK}'"))
    finally:
        await link.close()
    return schema.name


async def drop_schema(dsn: str, name: str) -> None:
    """Drop a schema that was made for a test."""
    schema = Schema(name)
    link = PersistentConnection(Target(dsn))
    try:
        if await link.run(_mark_of(schema)) == MARK:
            await link.run_script(schema.render("set local synchronous_commit = off; drop schema @schema cascade"))
    finally:
        await link.close()


async def check_throw_away(app: Durable) -> None:
    """Refuse a schema that was not made for tests."""
    schema = services_of(app).statements.schema
    if await services_of(app).pool.run(_mark_of(schema)) != MARK:
        raise ConfigError(
            f"schema {schema.name!r} was not made for tests, and a harness runs all that is due in its schema and "
            "moves time for every row: use the fixture durable_harness, or throw_away_schema(dsn)"
        )


def _mark_of(schema: Schema) -> Statement[str | None]:
    return Statement(
        "select obj_description(to_regnamespace($1)::oid, 'pg_namespace')",
        (f'"{schema.name}"',),
        lambda rows: rows[0][0],
    )
