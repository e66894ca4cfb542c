"""A pooler that nobody has told of is found when a connection is made."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from datetime import timedelta

import pytest

from gen_durable import Context, Durable, Finished, Start, Worker, job
from gen_durable.core.services import services_of
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.statements import Statement
from gen_durable.testing import throw_away_schema

ANSWERS = [Statement(f"select $1::int + {n}", (1,), lambda rows: int(rows[0][0])) for n in range(40)]


@job
async def double(number: int) -> int:
    return number * 2


async def test_a_direct_connection(dsn: str) -> None:
    """Without a pooler statements are prepared."""
    if "keep_direct" not in dsn:
        dsn = f"{dsn}{'&' if '?' in dsn else '?'}application_name=keep_direct"  # also in a run with POOLER=1
    link = PersistentConnection(ConnectionTarget(dsn))
    connection = await link.connect()
    assert link.target.pooled is False
    assert connection._stmt_cache.get_max_size() == 100
    await link.close()


async def test_a_pooled_connection(pooled: str) -> None:
    """Behind one they are not, and so twelve callers of five server connections get their own answers."""

    async def caller() -> None:
        link = PersistentConnection(ConnectionTarget(pooled))
        for n, call in enumerate(ANSWERS):
            assert await link.run(call) == n + 1
        assert link.target.pooled is True
        assert (await link.connect())._stmt_cache.get_max_size() == 0
        await link.close()

    await asyncio.gather(*(caller() for _ in range(12)))


async def test_an_engine_that_was_not_told(pooled: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """It works, by polling, and says what would be better."""
    with caplog.at_level(logging.WARNING, "gen_durable"):
        async with Durable(pooled, schema=schema) as app, Worker(app, jobs=[double]):
            (said,) = [r.getMessage() for r in caplog.records if "pooler" in r.getMessage()]
            assert "pooler='transaction'" in said
            assert "listen_dsn=" in said
            assert services_of(app).notifier.listener is None
            handles = await app.insert_many([Start(double, n) for n in range(200)])
            for n, handle in enumerate(handles):
                assert await handle.wait(timedelta(seconds=20)) == Finished(handle.id, n * 2)


async def test_an_engine_that_was_told(pooled: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who says `pooler="transaction"` is not told again. Without a direct DSN a worker finds rows by polling."""
    quick = timedelta(seconds=0.2)
    async with (
        Durable(pooled, schema=schema, pooler="transaction") as app,
        Durable(pooled, schema=schema, pooler="transaction") as elsewhere,
        Worker(app, jobs=[double], poll_interval=quick, max_poll_interval=quick),
    ):
        assert services_of(app).notifier.listener is None
        for n in range(5):
            handle = await elsewhere.insert(double, n)
            assert await handle.wait(timedelta(seconds=10)) == Finished(handle.id, n * 2)
    assert not [r for r in caplog.records if "pooler" in r.getMessage()]


def test_a_command(pooled: str, schema: str) -> None:
    """Commands take a DSN and no more: they find the pooler too."""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-m", "gen_durable.cli", "doctor", "--dsn", pooled, "--schema", schema],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


async def test_a_schema_made_for_a_test(pooled: str) -> None:
    """What makes throw-away schemas quicker is not left behind for the next client of a server connection."""
    async with throw_away_schema(pooled):
        link = PersistentConnection(ConnectionTarget(pooled, pooled=True))
        for _ in range(10):
            assert await link.run(Statement("show synchronous_commit", (), lambda rows: rows[0][0])) == "on"
        await link.close()


async def test_settings_of_a_step_do_not_reach_the_next(pooled: str, schema: str) -> None:
    """What a transactional step has SET on a server connection is undone before another step writes on it."""

    @job(transactional=True)
    async def sets(number: int, ctx: Context) -> str:
        found: str = await ctx.connection.fetchval("show lock_timeout")
        await ctx.connection.execute(f"set lock_timeout = {number + 1000}")
        return found

    async with (
        Durable(pooled, schema=schema, pooler="transaction") as app,
        Worker(app, jobs=[sets], queues={"default": 4}),
    ):
        handles = await app.insert_many([Start(sets, n) for n in range(40)])
        for handle in handles:
            assert await handle.wait(timedelta(seconds=20)) == Finished(handle.id, "0")
