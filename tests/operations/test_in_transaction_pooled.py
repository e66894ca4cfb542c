"""The same through PgBouncer in transaction mode: what runs in one transaction runs on one server connection."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from tests.operations.test_in_transaction import Text, count, echo
from tests.support.drivers import CONNECTIONS

from gen_durable import Context, Durable, Finished, Start, Worker, job
from gen_durable.core.services import services_of


@pytest.mark.parametrize("kind", CONNECTIONS)
async def test_transactions_through_a_pooler(dsn: str, schema: str, pooled: str, kind: str) -> None:
    """Commits, rollbacks and savepoints hold, and a worker with a direct `listen_dsn` hears of the commit."""
    hour = timedelta(hours=1)
    async with (
        Durable(pooled, schema=schema, pooler="transaction", listen_dsn=dsn) as app,
        Worker(app, jobs=[echo], poll_interval=hour, max_poll_interval=hour),
        CONNECTIONS[kind](pooled, schema) as caller,
    ):
        assert services_of(app).notifier.listener is not None
        await services_of(app).notifier.listener.listening.wait()
        for n in range(5):
            async with caller.transaction(commit=False):
                await caller.insert(echo, Text("gone"))
            async with caller.transaction(commit=True):
                handle = await caller.insert(echo, Text(str(n)))
                async with caller.transaction(commit=False):
                    await caller.insert(echo, Text("gone"))
            ending = await app.handle(handle.id, echo).wait(timedelta(seconds=3))
            assert ending == Finished(handle.id, str(n))
        assert await count(dsn, schema) == 5


async def test_many_callers_share_few_server_connections(dsn: str, schema: str, pooled: str) -> None:
    """Eight callers on five server connections: each transaction keeps to itself."""

    async def caller(commit: bool) -> None:
        async with CONNECTIONS["asyncpg_connection"](pooled, schema) as caller:
            for _ in range(10):
                async with caller.transaction(commit=commit):
                    await caller.insert(echo, Text("one"))
                    await caller.insert(echo, Text("two"))

    await asyncio.gather(*(caller(n % 2 == 0) for n in range(8)))
    assert await count(dsn, schema) == 80


async def test_a_lent_pool_through_a_pooler(dsn: str, schema: str, pooled: str) -> None:
    """A client's calls and its caller's transaction side by side, on a pool that prepares nothing."""
    async with (
        asyncpg.create_pool(pooled, min_size=0, max_size=4, statement_cache_size=0) as pool,
        Durable(pool=pool, schema=schema) as app,
    ):

        async def caller(n: int) -> None:
            async with pool.acquire() as connection, connection.transaction():
                await app.insert(echo, Text(str(n)), connection=connection)
            await app.insert(echo, Text(str(n)))
            await app.count()

        await asyncio.gather(*(caller(n) for n in range(10)))
        assert await count(dsn, schema) == 20


async def test_transactional_steps_through_a_pooler(dsn: str, schema: str, pooled: str) -> None:
    """A step's transaction keeps to one server connection as well."""

    @job(transactional=True)
    async def writes(n: int, ctx: Context) -> int:
        await ctx.connection.execute(f'create table if not exists "{schema}".once (n int)')
        await ctx.connection.execute(f'insert into "{schema}".once (n) values ($1)', n)
        async with ctx.connection.transaction():
            await ctx.connection.execute("select 1")
        return n

    async with (
        Durable(pooled, schema=schema, pooler="transaction", listen_dsn=dsn) as app,
        Worker(app, jobs=[writes], queues={"default": 1}),
    ):
        handles = await app.insert_many([Start(writes, n) for n in range(20)])
        for n, handle in enumerate(handles):
            assert await handle.wait(timedelta(seconds=10)) == Finished(handle.id, n)
