from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Await, Context, Done, Machine, Outcome, ScheduleChildren, Signal, Start, job, step

GO = Signal("go", int)


@job
async def leaf(n: int) -> int:
    return n


class Fan(Machine):
    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        return ScheduleChildren(
            [Start(leaf, i, partition_key="k", queue="ab"[i % 2]) for i in range(n)], then=self.end, state=n
        )

    @step
    async def end(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(len(ctx.children))

    @step
    async def park(self, n: int, ctx: Context) -> Outcome[int]:
        return Await(GO, then=self.woken, state=n, timeout=timedelta(hours=1))

    @step
    async def woken(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)


async def test_fan_out_over_one_key(durable_harness: Any) -> None:
    async with durable_harness(machines=[Fan()], jobs=[leaf]) as harness:
        await harness.app.insert(Fan.begin, 60, partition_key="k")
        tally = await harness.drain()
        assert tally.executed == 62
        await harness.app.insert_many([Start(leaf, n, partition_key="k", queue="ab"[n % 2]) for n in range(30)])
        await harness.crash()
        assert (await harness.drain()).executed == 30


async def test_a_signal_puts_the_head_behind(durable_harness: Any) -> None:
    async with durable_harness(machines=[Fan()], jobs=[leaf]) as harness:
        x = await harness.app.insert(Fan.park, 1, partition_key="k", queue="b")
        await harness.drain()
        await harness.advance(timedelta(hours=2))
        h = await harness.app.insert(leaf, 1, partition_key="k", queue="a")
        with pytest.raises(AssertionError):
            await harness.run_one(h.id)
        await harness.app.signal(x.id, GO, 1)
        tally = await harness.drain()
        assert tally.executed == 2, tally
