"""Many children, in corners: one key, many parents, slow and private generators, stops in the middle."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
from tests.flows.test_fanout import CHILDREN, QUEUES, Tree, count_of, ended, leaf, making
from tests.support.engine import BRIEF

from gen_durable import (
    Context,
    Done,
    Durable,
    Fail,
    Machine,
    Outcome,
    Retry,
    ScheduleChildren,
    Start,
    Worker,
    job,
    step,
)

COUNT = 6000  # children of a fan-out that takes long enough to be stopped in the middle


async def test_a_fan_out_over_one_key_starts_at_once(dsn: str, schema: str) -> None:
    """1,100 children with one partition key: the first runs within a second, and each of the others soon after."""
    tree = making(lambda count: (Start(leaf, n, partition_key="one") for n in range(count)))
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[tree], jobs=[leaf], queues={"default": 50}):
        await app.insert(Tree.spread, 1100)
        connection = await asyncpg.connect(dsn)
        while await connection.fetchval(CHILDREN.format(schema)) == 0:
            pass
        began = time.monotonic()
        worst, last, seen = 0.0, began, 0
        while time.monotonic() - began < 4:
            n = await connection.fetchval(f'select count(*) from "{schema}".instances where finished_at is not null')
            if n > seen:
                seen, last = n, time.monotonic()
            worst = max(worst, time.monotonic() - last)
            if n == 1101:
                break
            await asyncio.sleep(0.02)
        await connection.close()
        assert worst < 1.5


async def test_fan_outs_do_not_pile_up(dsn: str, schema: str) -> None:
    """60 parents of 1,100 children with a concurrency of 2: how many fan-outs are in memory at once."""
    async with Durable(dsn, schema=schema) as app:
        await app.insert_many([Start(Tree.spread, 1100, queue="parents") for _ in range(60)])
        worker = Worker(app, machines=[Tree()], jobs=[leaf], queues={"parents": 2})
        async with worker:
            most = 0
            began = time.monotonic()
            while time.monotonic() - began < 1.5:
                most = max(most, len(worker._runtime.committer._side_flushes))
                await asyncio.sleep(0.005)
        assert most <= 8


class Slow(Machine):
    """Its generator takes longer than the step may."""

    @step(timeout=timedelta(seconds=1))
    def spread(self, count: int, ctx: Context) -> Outcome[str]:
        def slowly() -> Iterator[Start[Any]]:
            for n in range(count):
                time.sleep(1)
                yield Start(leaf, n)

        return ScheduleChildren(slowly(), then=self.join, state=count)

    @step
    async def join(self, count: int, ctx: Context) -> Outcome[str]:
        return Done("joined")

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[str]:
        return Fail(error)


async def test_the_timeout_covers_the_generator(dsn: str, schema: str) -> None:
    """Drawing it is a part of the step."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Slow()], jobs=[leaf]):
        ending = await ended(await app.insert(Slow.spread, 4))
        assert "StepTimeout" in str(getattr(ending, "error", ""))


class Lite(Machine):
    """Its generator reads from a database that belongs to the thread of the step."""

    @step
    def spread(self, count: int, ctx: Context) -> Outcome[str]:
        db = sqlite3.connect(":memory:")

        def rows() -> Iterator[Start[Any]]:
            for (n,) in db.execute(
                f"with recursive r(n) as (select 0 union all select n + 1 from r where n < {count}) select n from r"
            ):
                yield Start(leaf, n)

        return ScheduleChildren(rows(), then=self.join, state=count)

    @step
    async def join(self, count: int, ctx: Context) -> Outcome[str]:
        return Done("joined")

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[str]:
        return Fail(error)


async def test_a_generator_is_drawn_in_the_thread_of_its_step(dsn: str, schema: str) -> None:
    """What belongs to a thread may be used in it."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Lite()], jobs=[leaf]):
        handles = await app.insert_many([Start(Lite.spread, 1500) for _ in range(2)])
        for handle in handles:
            ending = await ended(handle)
            assert getattr(ending, "result", None) == "joined", ending


async def test_a_generator_that_cancels_its_task(dsn: str, schema: str) -> None:
    """The cancellation must not hit the engine: the row goes on soon."""

    def cancelling(count: int) -> Iterator[Start[Any]]:
        yield Start(leaf, 1)
        task = asyncio.current_task()
        assert task is not None
        if not getattr(cancelling, "once", False):
            cancelling.once = True  # type: ignore[attr-defined]
            task.cancel()

    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[making(cancelling)], jobs=[leaf]):
        handle = await app.insert(Tree.spread, 1)
        began = time.monotonic()
        assert await ended(handle) is not None
        assert time.monotonic() - began < 3


async def test_stop_in_the_middle(dsn: str, schema: str) -> None:
    """Stopped at several moments of a fan-out: all or none, and the next worker goes on."""
    for rest in (0.05, 0.15, 0.3, 0.5):
        async with Durable(dsn, schema=schema) as app:
            before = await count_of(dsn, schema)
            await app.insert(Tree.spread, COUNT, queue="parents")
            worker = Worker(
                app,
                machines=[Tree()],
                jobs=[leaf],
                queues={"parents": 2},
                drain_timeout=timedelta(0),
                **BRIEF,
            )
            async with worker:
                await asyncio.sleep(rest)
            await asyncio.sleep(0.5)
            n = await count_of(dsn, schema) - before
            assert n in (0, COUNT)
            async with Worker(
                app,
                machines=[Tree()],
                jobs=[leaf],
                queues={"parents": 2},
                **BRIEF,
            ):
                began = time.monotonic()
                while await count_of(dsn, schema) - before != COUNT:
                    await asyncio.sleep(0.1)
                    assert time.monotonic() - began < 25
                await asyncio.sleep(0.3)
                assert await count_of(dsn, schema) - before == COUNT


class Again(Machine):
    """The join is replayed: the children are still there."""

    @step
    async def spread(self, count: int, ctx: Context) -> Outcome[int]:
        return ScheduleChildren((Start(leaf, n) for n in range(count)), then=self.join, state=count)

    @step
    async def join(self, count: int, ctx: Context) -> Outcome[int]:
        n = 0
        async for _ in ctx.stream_children():
            n += 1
        if ctx.attempt < 2:
            return Retry(count)
        return Done(n)


async def test_replay_of_the_join(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Again()], jobs=[leaf], queues=QUEUES):
        assert (await ended(await app.insert(Again.spread, 1500))).result == 1500
        assert (await ended(await app.insert(Again.spread, 10_001))).result == 10_001


@job
async def key_step(n: int) -> int:
    return n
