"""Rows claimed ahead: only as many as start at once, the most urgent first, and none is kept from other workers."""

from __future__ import annotations

import asyncio
import time

from tests.support.engine import Engine, Opening, seconds

from gen_durable import Concurrency, Context, Limit, Machine, Next, Outcome, job, step
from gen_durable.outcomes import Done
from gen_durable.starts import Start

SHORT = 600
STEP_SECONDS = 0.05
STEPS = 20
MACHINE_SECONDS = 0.1  # for a machine that is busy with other tests


@job
async def short(number: int) -> int:
    return number


@job
async def slow(number: int) -> int:
    await asyncio.sleep(number / 1000)
    return number


@job
async def note_start(inserted_at: float) -> float:
    return time.monotonic() - inserted_at


class Chain(Machine):
    @step
    async def walk(self, left: int, ctx: Context) -> Outcome[int]:
        await asyncio.sleep(STEP_SECONDS)
        return Next(self.walk, left - 1) if left else Done(0)


async def warm_up(e: Engine) -> None:
    """Many short jobs, after which a worker claims hundreds of rows ahead."""
    handles = await e.app.insert_many([Start(short, n) for n in range(SHORT)])
    await handles[-1].wait(seconds(20))


async def executing(e: Engine) -> int:
    return int(await e.rows.value("select count(*) from @.instances where status = 'executing'"))


async def test_rows_that_do_not_start_soon_are_released(engine: Opening) -> None:
    """Steps that do not end after short ones: then the worker holds no more claims than it has slots."""
    may_end = asyncio.Event()

    @job
    async def held(number: int) -> int:
        await may_end.wait()
        return number

    async with engine() as e, e.worker(short, held, queues={"default": 5}):
        await warm_up(e)
        await e.app.insert_many([Start(held, n) for n in range(60)])
        await e.rows.when(lambda: all_slots_busy(e))
        await e.rows.when(lambda: no_row_is_claimed_ahead(e))
        may_end.set()


async def all_slots_busy(e: Engine) -> bool:
    return await executing(e) >= 5


async def no_row_is_claimed_ahead(e: Engine) -> bool:
    return await executing(e) == 5


async def test_slow_rows_run_in_the_free_slots_of_another_worker(engine: Opening) -> None:
    """Forty jobs of half a second in twenty slots take two rounds, though the first worker had claimed them ahead."""
    async with (
        engine() as e,
        engine() as other,
        e.worker(short, slow, queues={"default": 10}),
        other.worker(slow, queues={"default": 10}),
    ):
        await warm_up(e)
        began = time.monotonic()
        handles = await e.app.insert_many([Start(slow, 500) for _ in range(40)])
        for handle in handles:
            await handle.wait(seconds(20))
        assert time.monotonic() - began < 1.6


async def test_an_urgent_row_does_not_wait_behind_rows_claimed_ahead(engine: Opening) -> None:
    """Beside twenty chains of 50 ms steps on one slot, an urgent row starts within two steps and 50 ms."""
    async with engine() as e, e.worker(short, note_start, Chain(), queues={"default": 1}):
        await warm_up(e)
        await e.app.insert_many([Start(Chain.walk, STEPS) for _ in range(20)])
        delays: list[float] = []
        for _ in range(8):
            await asyncio.sleep(0.3)
            handle = await e.app.insert(note_start, time.monotonic(), priority=-10)
            delays.append(await handle.result(seconds(20)))
        assert sorted(delays)[-2] <= 2 * STEP_SECONDS + 0.05 + MACHINE_SECONDS, delays


async def test_a_row_that_was_not_claimed_ahead_is_picked_when_a_slot_is_free(engine: Opening) -> None:
    """At once, not with the next poll."""
    async with engine() as e:
        await e.app.set_limit("stripe", Concurrency(8))
        handles = await e.app.insert_many([Start(slow, 10, limit=Limit("stripe")) for _ in range(8)])
        async with e.worker(slow, queues={"default": 1}, prefetch=4, poll_interval=3600, max_poll_interval=3600):
            for handle in handles:
                assert await handle.result(seconds(10)) == 10


async def test_rows_claimed_ahead_take_no_slots_of_a_limit(engine: Opening) -> None:
    """Rows of a limit wait in the queue until a slot of the worker is free: others may use the limit meanwhile."""
    async with engine() as e:
        await e.app.set_limit("stripe", Concurrency(8))
        async with e.worker(short, slow, queues={"default": 2}):
            await warm_up(e)
            handles = await e.app.insert_many([Start(slow, 100, limit=Limit("stripe")) for _ in range(8)])
            seen = 0
            while (taken := await executing(e)) or not seen:
                seen = max(seen, taken)
                assert taken <= 4  # two that run, and two whose commit is under way
                await asyncio.sleep(0.01)
            for handle in handles:
                assert await handle.result(seconds(20)) == 100
