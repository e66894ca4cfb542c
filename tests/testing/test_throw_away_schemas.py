"""Throw-away schemas: fresh, gone afterwards, and the only ones that a harness touches."""

from __future__ import annotations

import asyncpg
import pytest

from gen_durable import Durable, job
from gen_durable.core.services import services_of
from gen_durable.errors import ConfigError
from gen_durable.testing import Harness, throw_away_schema
from gen_durable.testing.throw_away_schemas import drop_throw_away_schema


@job
def nothing(n: int) -> None: ...


async def test_a_schema_is_there_for_as_long_as_it_is_used(gen_durable_dsn: str) -> None:
    async with throw_away_schema(gen_durable_dsn) as name:
        async with Harness(Durable(gen_durable_dsn, schema=name), jobs=[nothing]) as harness:
            await harness.app.insert(nothing, 1)
            assert (await harness.drain()).done == 1
        assert await _exists(gen_durable_dsn, name)
    assert not await _exists(gen_durable_dsn, name)


async def test_a_schema_is_dropped_also_when_the_test_fails(gen_durable_dsn: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with throw_away_schema(gen_durable_dsn) as name:
            raise ZeroDivisionError
    assert not await _exists(gen_durable_dsn, name)


async def test_a_harness_refuses_a_schema_that_was_not_made_for_tests(gen_durable_dsn: str, schema: str) -> None:
    app = Durable(gen_durable_dsn, schema=schema)
    with pytest.raises(ConfigError, match=f"Schema '{schema}' was not created for tests"):
        async with Harness(app):
            pass
    assert await services_of(app).open_if_closed(), "what the harness opened, it closed"
    await app.close()


async def test_a_schema_that_was_not_made_for_tests_is_not_dropped(gen_durable_dsn: str, schema: str) -> None:
    await drop_throw_away_schema(gen_durable_dsn, schema)
    assert await _exists(gen_durable_dsn, schema)


async def test_a_harness_leaves_a_durable_open_that_it_did_not_open(
    gen_durable_dsn: str, gen_durable_schema: str
) -> None:
    async with Durable(gen_durable_dsn, schema=gen_durable_schema) as app:
        handle = await app.insert(nothing, 1)
        async with Harness(app, jobs=[nothing]) as harness:
            await harness.drain()
        assert (await handle.get()).status == "done"


async def _exists(dsn: str, schema: str) -> bool:
    connection = await asyncpg.connect(dsn)
    try:
        return bool(await connection.fetchval("select exists (select from pg_namespace where nspname = $1)", schema))
    finally:
        await connection.close()
