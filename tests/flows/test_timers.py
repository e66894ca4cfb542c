"""Delays, retries and deadlines fire on time: the worker sleeps until the next due moment, not for a poll period."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from gen_durable import Await, Context, Done, Durable, Finished, Machine, Outcome, Retry, Signal, Worker, job, step

go = Signal("go")
LATE = 2.0  # seconds, on a busy machine; a poll would come after a minute
started: dict[int, float] = {}


@job
async def note(n: int, ctx: Context) -> float:
    """When it ran."""
    started[n] = time.monotonic()
    return 0.0


class Sleeper(Machine):
    """Waits by replaying, and by awaiting what never comes."""

    @step
    async def nap(self, seconds: float, ctx: Context) -> Outcome[float]:
        if ctx.attempt == 0:
            started[ctx.id] = time.monotonic()
            return Retry(seconds, delay=timedelta(seconds=seconds))
        return Done(time.monotonic() - started[ctx.id])

    @step
    async def doze(self, seconds: float, ctx: Context) -> Outcome[float]:
        started[ctx.id] = time.monotonic()
        return Await(go, then=self.wake, state=seconds, timeout=timedelta(seconds=seconds))

    @step
    async def wake(self, seconds: float, ctx: Context) -> Outcome[float]:
        assert ctx.awaited == ()
        return Done(time.monotonic() - started[ctx.id])


async def test_delays_deadlines_and_retries_fire_on_time(dsn: str, schema: str) -> None:
    """With a poll period of a minute every timer still fires within a fraction of a second."""
    async with Durable(dsn, schema=schema) as app:
        lazy = timedelta(seconds=60)
        async with Worker(app, machines=[Sleeper()], jobs=[note], poll_interval=lazy, max_poll_interval=lazy):
            begun = time.monotonic()
            delayed = [await app.insert(note, n, delay=timedelta(seconds=0.4 + n / 10)) for n in range(5)]
            naps = [await app.insert(Sleeper.nap, 0.5), await app.insert(Sleeper.doze, 0.7)]
            for handle, expected in zip(naps, (0.5, 0.7), strict=True):
                ending = await handle.wait(timedelta(seconds=20))
                assert isinstance(ending, Finished)
                assert expected <= ending.result <= expected + LATE
            await asyncio.gather(*(h.wait(timedelta(seconds=20)) for h in delayed))
            for n in range(5):
                late = started[n] - begun - (0.4 + n / 10)
                assert -0.005 <= late <= LATE


async def test_a_far_timer_does_not_hide_a_near_one(dsn: str, schema: str) -> None:
    """A row due next year at an urgent priority does not keep the picker from one due in a moment."""
    async with Durable(dsn, schema=schema) as app:
        lazy = timedelta(seconds=60)
        async with Worker(app, jobs=[note], poll_interval=lazy, max_poll_interval=lazy):
            await app.insert(note, 100, priority=-5, delay=timedelta(days=365))
            near = await app.insert(note, 101, priority=5, delay=timedelta(seconds=0.3))
            assert isinstance(await near.wait(timedelta(seconds=5)), Finished)
