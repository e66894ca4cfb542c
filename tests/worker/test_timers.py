"""What a worker itself puts off fires on time: retries, delayed steps and deadlines, without any poll."""

from __future__ import annotations

import time

from tests.support.engine import NEVER, Opening, seconds

from gen_durable import Await, Context, Done, Finished, Machine, Next, Outcome, Retry, RetryPolicy, Signal, job, step

never = Signal("never")
SLACK = 0.4
"""Seconds that a busy machine may add; without a timer it would be the poll interval, an hour."""


class Timers(Machine):
    @step
    async def replays(self, began: float, ctx: Context) -> Outcome[float]:
        return Done(time.time() - began) if ctx.attempt else Retry(began, delay=seconds(0.3))

    @step
    async def delays(self, began: float, ctx: Context) -> Outcome[float]:
        return Next(self.ends, began, delay=seconds(0.3))

    @step
    async def awaits(self, began: float, ctx: Context) -> Outcome[float]:
        return Await(never, then=self.ends, state=began, timeout=seconds(0.3))

    @step
    async def ends(self, began: float, ctx: Context) -> Outcome[float]:
        return Done(time.time() - began)


@job(retry=RetryPolicy(backoff=lambda attempt: seconds(0.3)))
async def flaky(began: float, ctx: Context) -> float:
    if ctx.attempt == 0:
        raise ValueError("not yet")
    return time.time() - began


async def test_what_a_step_puts_off(engine: Opening) -> None:
    """`Retry(delay=)`, `Next(delay=)`, `Await(timeout=)` and a job's backoff end on time, without a poll."""
    async with engine() as e, e.worker(Timers(), flaky, poll_interval=NEVER, max_poll_interval=NEVER):
        for start in (Timers.replays, Timers.delays, Timers.awaits, flaky):
            handle = await e.app.insert(start, time.time())
            ended = await handle.wait(seconds(3))
            assert isinstance(ended, Finished), f"{start} was not woken"
            assert 0.29 <= ended.result < 0.3 + SLACK


async def test_a_nearer_moment_comes_first(engine: Opening) -> None:
    """A worker that sleeps until a far moment wakes for a nearer one that came later."""
    async with engine() as e, e.worker(Timers(), poll_interval=NEVER, max_poll_interval=NEVER):
        await e.app.insert(Timers.ends, time.time(), delay=NEVER)
        handle = await e.app.insert(Timers.replays, time.time())
        ended = await handle.wait(seconds(3))
        assert isinstance(ended, Finished)
        assert 0.29 <= ended.result < 0.3 + SLACK
