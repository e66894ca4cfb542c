"""What each call of a client wakes: seen by a worker of its process, which does not poll."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.core.test_notifier import Endpoint, listening
from tests.support.engine import Engine, opened, seconds, soon
from tests.support.rows import ended, executing, parked

from gen_durable import Cancelled, Concurrency, Signal, Start, job
from gen_durable.core import completion_watcher
from gen_durable.core.services import services_of
from gen_durable.operations.limits import declare_limit

go = Signal("go")


@job
async def noop(number: int) -> int:
    return number


@asynccontextmanager
async def watched(dsn: str, schema: str, *rows: str) -> AsyncIterator[tuple[Engine, Endpoint]]:
    """A client, and a worker that only keeps what it is called with."""
    async with opened(dsn, schema) as e:
        for row in rows:
            await e.rows.connection.execute(row.replace("@schema", f'"{schema}"'))
        endpoint, notifier = Endpoint("w", free=100), services_of(e.app).notifier
        await listening(notifier, endpoint)
        yield e, endpoint
        assert endpoint.calls.empty()
        notifier.remove_worker(endpoint)


async def test_an_insert_wakes_the_queues_of_new_rows(dsn: str, schema: str) -> None:
    """Each once, with the number of its rows."""
    async with watched(dsn, schema) as (e, endpoint):
        await e.app.insert(noop, 1, queue="a", unique_key="k")
        assert await endpoint.next() == "wake a"
        starts = [Start(noop, 1, queue="b"), Start(noop, 1, queue="c", unique_key="k"), Start(noop, 1, queue="d")]
        await e.app.insert_many([*starts, Start(noop, 2, queue="b")], on_conflict="skip")
        assert [await endpoint.next(), await endpoint.next()] == ["wake b", "wake d"]
        assert endpoint.expected == [("a", 1), ("b", 2), ("d", 1)]


async def test_a_signal_wakes_the_queue_of_its_target(dsn: str, schema: str) -> None:
    """Unless the target waits for another one."""
    rows = [parked(1000, queue="a"), parked(1001, name="other", queue="b")]
    async with watched(dsn, schema, *rows) as (e, endpoint):
        assert await e.app.signal(1001, go)
        assert await e.app.signal(1000, go)
        assert await endpoint.next() == "wake a"


async def test_a_retry_wakes_its_queue(dsn: str, schema: str) -> None:
    async with watched(dsn, schema, ended(1, status="failed", queue="q")) as (e, endpoint):
        await e.app.retry(1)
        assert await endpoint.next() == "wake q"


async def test_a_cancel_reaches_the_worker_and_the_callers_that_wait(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No heartbeat and no poll has to find them; what still executes has not ended."""
    monkeypatch.setattr(completion_watcher, "SHORTEST_LIFE", 3600)
    async with watched(dsn, schema, executing(1000)) as (e, endpoint):
        executes = asyncio.create_task(e.app.handle(1000, noop).wait(seconds(60)))
        new = await e.app.insert(noop, 1)
        assert await endpoint.next() == "wake default"
        waits = asyncio.create_task(new.wait(seconds(60)))
        await asyncio.sleep(0)
        await e.app.cancel(1000)
        assert await endpoint.next() == "check cancels"
        await new.cancel(reason="enough")
        assert await soon(waits) == Cancelled(new.id, "enough")
        assert not executes.done()
        executes.cancel()
        await asyncio.gather(executes, return_exceptions=True)


async def test_a_limit_wakes_the_queues_of_rows_that_it_lets_run(dsn: str, schema: str) -> None:
    async with watched(dsn, schema) as (e, endpoint):
        services = services_of(e.app)
        assert await e.app.set_limit("l", Concurrency(1))
        await e.app.insert_many([Start(noop, n, queue="q", limit="l") for n in range(3)])
        assert await endpoint.next() == "wake q"
        for _ in range(2):
            await services.pool.run(services.statements.pick("x", {"q": 3}, ["noop/1/run"], 60))
        assert await e.app.set_limit("l", Concurrency(2))
        assert await endpoint.next() == "wake q"
        await services.pool.run(services.statements.pick("x", {"q": 3}, ["noop/1/run"], 60))
        assert await e.app.remove_limit("l")
        assert await endpoint.next() == "wake q"


async def test_a_limit_that_is_declared_again_keeps_the_change_made_since(dsn: str, schema: str) -> None:
    async with opened(dsn, schema) as e:
        services = services_of(e.app)
        assert await declare_limit(services, "l", Concurrency(1)) is True
        assert await e.app.set_limit("l", Concurrency(2)) is True
        assert await declare_limit(services, "l", Concurrency(1)) is False
        assert await e.app.set_limit("l", Concurrency(1)) is True
