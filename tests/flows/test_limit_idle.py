"""What waits costs nothing: ten thousand rows that wait for a limit, and a worker that has nothing to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.limits import Database, chosen, database
from tests.support.programs.limits import Task, work

from gen_durable import Concurrency, Durable, Rate, Start, Worker
from gen_durable.embedded import release, start
from gen_durable.limits import Policy
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.statements import StatementBuilder

ROWS, SCHEMA = 10_000, "gen_durable"
WAL = "select pg_current_wal_insert_lsn() - '0/0'"


@asynccontextmanager
async def quiet_server(directory: Path) -> AsyncIterator[str]:
    """A server of our own: WAL is the server's, and others write to the one that tests share."""
    server = await asyncio.to_thread(start, directory / "server")
    try:
        async with database(server.dsn, SCHEMA) as db:
            await db.fetch("alter system set autovacuum = off")
            await db.fetch("select pg_reload_conf()")
        link = PersistentConnection(ConnectionTarget(server.dsn))
        await migrate(link, Schema(SCHEMA))
        await link.close()
        yield server.dsn
    finally:
        await asyncio.to_thread(release, server)


async def written(db: Database, seconds: float) -> int:
    """How much WAL the server writes in this time."""
    before = await db.value(WAL)
    await asyncio.sleep(seconds)
    return int(await db.value(WAL) - before)


async def crowd(dsn: str, app: Durable, db: Database, name: str, policy: Policy) -> None:
    """Ten thousand rows under a limit: as many as may execute do, for somebody who will be long; the others wait."""
    await app.set_limit(name, policy)
    await app.insert_many([Start(work, Task("a", 0), limit=name) for _ in range(ROWS)])
    link = PersistentConnection(ConnectionTarget(dsn))
    pick = StatementBuilder(Schema(SCHEMA)).pick("somebody", {"default": 100}, ["work/1/run"], 36_000)
    assert len((await link.run(pick)).claims) == 10
    await link.close()
    await db.until("select count(*) from @schema.instances where due_at <= now()", 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_rows_that_wait_and_an_idle_worker_write_nothing(tmp_path: Path) -> None:
    """Less than 10 kB of WAL a minute, with ten thousand rows that wait for slots and as many that wait for tokens.

    All of the server's WAL is counted. Autovacuum is off and a checkpoint was made just before, so what is left beside
    the worker's is what the background writer logs now and then, some hundred bytes a minute.
    """
    seconds = chosen(60, 5)
    async with quiet_server(tmp_path) as dsn, database(dsn, SCHEMA) as db, Durable(dsn, schema=SCHEMA) as app:
        await crowd(dsn, app, db, "slots", Concurrency(10))
        await crowd(dsn, app, db, "tokens", Rate(1, timedelta(days=1), burst=10))
        await db.fetch("vacuum (freeze) @schema.instances")
        await db.fetch("checkpoint")
        without = await written(db, chosen(60, 1))
        # The reaper, the sweep and retention go round more often than by default, so that the short form has them too.
        async with Worker(app, jobs=[work], reap_interval=timedelta(seconds=1), gc_interval=timedelta(seconds=2)):
            await asyncio.sleep(1)  # its start is not idleness
            bytes_written = await written(db, seconds)
        print(f"{bytes_written} bytes of WAL in {seconds:g} s; without a worker {without} in {chosen(60, 1):g} s")
        assert bytes_written < 10_000 * seconds / 60
        waiting = "select count(*) from @schema.instances where status = 'runnable' and claims = 0"
        assert await db.value(waiting) == 2 * (ROWS - 10)
        before = await db.value(WAL)
        await app.insert(work, Task("a", 0), limit="slots")
        assert await db.value(WAL) > before, "WAL is not seen at all"
