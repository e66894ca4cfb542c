"""What belongs to the caller: when to migrate, where logs go, in which schema all of it lies."""

from __future__ import annotations

import asyncio
import logging

import asyncpg
import pytest
from tests.support.capabilities import BRIEF, SOON, Opening, double

from gen_durable import Durable, Failed, Finished, RetryPolicy, Worker, job
from gen_durable.errors import ConfigError


async def test_migrate_is_idempotent_from_many_places_at_once(dsn: str, bare_schema: str) -> None:
    """The schema is made by whoever comes first, the others find it; data stays."""

    async def open_it() -> None:
        async with Durable(dsn, schema=bare_schema, migrate=True) as app:
            await app.insert(double, 1)

    await asyncio.gather(*(open_it() for _ in range(5)))
    await open_it()
    async with Durable(dsn, schema=bare_schema) as app:
        assert (await app.count()).value == 6


async def test_logs_go_through_logging_with_ids_and_without_payloads(
    engine: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """The host decides what becomes of them; a state or the text of an error is in none."""

    @job(retry=RetryPolicy(attempts=1))
    async def spill(secret: str) -> None:
        raise ValueError(f"lost {secret}")

    async with engine() as e:
        with caplog.at_level(logging.DEBUG, "gen_durable"):
            async with Worker(e.app, jobs=[spill, double], max_crashes=3, **BRIEF):
                handle = await e.app.insert(spill, "canary-9a1")
                assert isinstance(await handle.wait(SOON), Failed)
                doomed = await e.app.insert(double, 4_711_471_147, queue="aside")
                for crash in (1, 2, 3):
                    await e.claim(lease=0.0, queue="aside")
                    await e.until(doomed, lambda row, n=crash: row.crashes == n)  # type: ignore[misc]
                assert isinstance(await doomed.wait(SOON), Failed)
        records = [r for r in caplog.records if r.name.startswith("gen_durable")]
        assert any(f"instance {doomed.id} " in r.getMessage() for r in records)
        assert not [r.getMessage() for r in records if "canary-9a1" in r.getMessage() or "4711471147" in r.getMessage()]
        assert {r.name.partition(".")[0] for r in records} == {"gen_durable"}


async def test_the_schema_is_the_callers(dsn: str, schema: str, bare_schema: str) -> None:
    """Two installations in one database do not see each other; nothing lies outside of them."""
    other = f"{bare_schema}_2"
    connection = await asyncpg.connect(dsn)
    try:
        async with Durable(dsn, schema=schema) as one, Durable(dsn, schema=other, migrate=True) as two:
            async with Worker(two, jobs=[double]):
                mine, yours = await one.insert(double, 1), await two.insert(double, 2)
                assert await yours.wait(SOON) == Finished(yours.id, 4)
            assert (await mine.get()).status == "runnable"
            assert ((await one.count()).value, (await two.count()).value) == (1, 1)
        strays = (
            "select count(*) from pg_class where relnamespace = 'public'::regnamespace and relname ~ '^gen_durable'"
        )
        assert await connection.fetchval(strays) == 0
    finally:
        await connection.execute(f'drop schema if exists "{other}" cascade')
        await connection.close()
    with pytest.raises(ConfigError, match="schema"):
        Durable(dsn, schema='x"; drop table y')
