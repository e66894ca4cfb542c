"""The plugin's own fixtures, with the doctor's look at every schema in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from gen_durable.store.schema import Schema, checks


@pytest.fixture(scope="session")
def gen_durable_dsn(dsn: str) -> str:
    """The server of all our tests: one embedded server is enough. The plugin's own choice is seen in test_plugin."""
    return dsn


@pytest.fixture
def gen_durable_schema(gen_durable_dsn: str, gen_durable_schema: str) -> Iterator[str]:
    """The plugin's schema. Whatever the harness did to it, no invariant of the engine may be broken."""
    yield gen_durable_schema
    found = asyncio.run(_diagnose(gen_durable_dsn, gen_durable_schema))
    assert not found, f"the doctor found: {found}"


async def _diagnose(dsn: str, schema: str) -> list[tuple[str, int, str]]:
    connection = await asyncpg.connect(dsn)
    try:
        found = [(name, await connection.fetch(sql)) for name, sql in checks(Schema(schema))]
    finally:
        await connection.close()
    return [(name, row["id"], row["problem"]) for name, rows in found for row in rows]
