"""A worker whose slots are all taken waits for a slot; it does not look for work that it could not take."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Context, Done, Durable, Finished, Machine, Next, Outcome, Start, Worker, job, step

running: list[asyncio.Event] = []


@job
async def long(n: int, ctx: Context) -> int:
    """Holds its slot for a while."""
    running[-1].set()
    await asyncio.sleep(2.5)
    return n


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 10}, {}], ids=["none", "some", "by pace"])
async def test_a_full_worker_burns_no_cpu(dsn: str, schema: str, options: dict[str, Any]) -> None:
    """With all slots taken, timers due and polls overdue, the loop still sleeps: some milliseconds of CPU a second."""
    running.append(asyncio.Event())
    poll = timedelta(milliseconds=100)
    async with Durable(dsn, schema=schema) as app:
        await app.insert_many([Start(long, n) for n in range(5)])
        await app.insert(long, 9, delay=timedelta(milliseconds=300))
        async with Worker(
            app, jobs=[long], queues={"default": 2}, poll_interval=poll, max_poll_interval=poll, **options
        ):
            await running[-1].wait()
            began = time.process_time()
            await asyncio.sleep(1.5)
            assert time.process_time() - began < 0.5


class Walk(Machine):
    """Thirty short steps that count how many of them run at once."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0

    async def _count(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1

    @step
    async def left(self, n: int, ctx: Context) -> Outcome[int]:
        await self._count()
        return Next(self.right, n - 1) if n else Done(0)

    @step
    async def right(self, n: int, ctx: Context) -> Outcome[int]:
        await self._count()
        return Next(self.left, n - 1) if n else Done(0)


async def test_lent_slots_never_let_more_steps_run_than_there_are_slots(dsn: str, schema: str) -> None:
    """On brisk chains slots are lent during commits, so claims outnumber slots; running steps never do."""
    walk = Walk()
    most_claims = 0
    async with Durable(dsn, schema=schema) as app:
        handles = await app.insert_many([Start(Walk.left, 29) for _ in range(300)])
        async with Worker(app, machines=[walk], queues={"default": 4}, run_ahead_time=timedelta(seconds=60)) as worker:
            waiting = asyncio.gather(*(h.wait(timedelta(seconds=60)) for h in handles))
            while not waiting.done():
                most_claims = max(most_claims, len(worker._runtime.claims))  # nothing public tells
                await asyncio.sleep(0.005)
            assert all(isinstance(ending, Finished) for ending in await waiting)
    assert walk.most == 4
    assert most_claims > 8, "nothing was lent, so nothing was tested"
