"""Retry policies in the harness: their pauses are skipped, for steps, jobs and activities."""

from __future__ import annotations

import time

import pytest
from hypothesis import strategies as st

from gen_durable import Context, Done, Machine, Next, Outcome, RetryPolicy, Status, job, step
from gen_durable.testing import HarnessFactory, Runaway, Snapshot, explore, starts


class Plain(Machine):
    """The default policy: 20 attempts."""

    @step
    async def work(self, failures: int, ctx: Context) -> Outcome[int]:
        if ctx.step_errors < failures:
            raise ConnectionError("no line")
        return Done(ctx.step_errors)


class Refunding(Machine):
    @step(retry=RetryPolicy(attempts=7, then="refund"))
    async def charge(self, failures: int, ctx: Context) -> Outcome[str]:
        if ctx.step_errors < failures:
            raise ConnectionError("no line")
        return Done("charged")

    @step
    async def refund(self, failures: int, ctx: Context) -> Outcome[str]:
        return Done("refunded")


class Endless(Machine, retry=RetryPolicy(attempts=None)):
    @step
    async def work(self, state: int, ctx: Context) -> Outcome[int]:
        raise ConnectionError("no line")


class Paying(Machine):
    @step
    async def pay(self, state: int, ctx: Context) -> Outcome[int]:
        calls: list[int] = []

        def charge() -> int:
            calls.append(1)
            if len(calls) < 9:
                raise ConnectionError("no line")
            return len(calls)

        return Done(await ctx.run("charge", charge, retry=RetryPolicy(attempts=9)))

    @step
    def pay_in_thread(self, state: int, ctx: Context) -> Outcome[int]:
        calls: list[int] = []

        def charge() -> int:
            calls.append(1)
            if len(calls) < 9:
                raise ConnectionError("no line")
            return len(calls)

        return Done(ctx.sync.run("charge", charge, retry=RetryPolicy(attempts=9)))


@job
async def hopeless() -> None:
    raise ConnectionError("no line")


@job(retry=RetryPolicy(backoff=lambda n: [][n]))
async def badly_timed() -> None:
    raise ConnectionError("no line")


async def test_twenty_attempts_take_no_time(durable_harness: HarnessFactory) -> None:
    """One drain runs all of them, which take hours in a worker."""
    async with durable_harness(machines=[Plain(), Refunding()], jobs=[hopeless]) as harness:
        lucky = await harness.app.insert(Plain.work, 19)
        unlucky = await harness.app.insert(Plain.work, 99)
        refunded = await harness.app.insert(Refunding.charge, 99)
        failing = await harness.app.insert(hopeless)
        tally = await harness.drain()
        assert tally.waiting == ()
        await harness.assert_done(lucky, 19)
        await harness.assert_failed(unlucky, r"^ConnectionError: no line \(attempt 20 of 20\)$")
        await harness.assert_failed(failing, r"^ConnectionError: no line \(attempt 20 of 20\)$")
        await harness.assert_done(refunded, "refunded")
        assert tally.steps == {"Plain.work": 40, "hopeless.run": 20, "Refunding.charge": 7, "Refunding.refund": 1}


async def test_the_pauses_of_activities_are_skipped(durable_harness: HarnessFactory) -> None:
    """Eight pauses from 0.1 s on are 25 s."""
    began = time.monotonic()
    async with durable_harness(machines=[Paying()]) as harness:
        handles = [await harness.app.insert(start, 0) for start in (Paying.pay, Paying.pay_in_thread)]
        await harness.drain()
        for handle in handles:
            await harness.assert_done(handle, 9)
    assert time.monotonic() - began < 20


async def test_a_step_that_always_raises_is_a_runaway(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Endless()]) as harness:
        await harness.app.insert(Endless.work, 0)
        with pytest.raises(Runaway, match=r"always raises under RetryPolicy\(attempts=None\), never ends"):
            await harness.drain(limit=30)


async def test_a_mistake_in_a_backoff_shows(durable_harness: HarnessFactory) -> None:
    async with durable_harness(jobs=[badly_timed]) as harness:
        handle = await harness.app.insert(badly_timed)
        await harness.drain()
        await harness.assert_failed(handle, r"and then its retry policy raised IndexError")


class Flaky(Machine, retry=RetryPolicy(attempts=4)):
    def __init__(self) -> None:
        self.calls = 0

    @step
    async def start(self, failures: int, ctx: Context) -> Outcome[int]:
        self.calls += 1
        if ctx.step_errors < failures:
            raise ConnectionError("no line")
        return Next(self.end, failures)

    @step
    async def end(self, failures: int, ctx: Context) -> Outcome[int]:
        return Done(failures)


def ends_as_it_should(machine: Flaky, found: Snapshot) -> None:
    if found.status in (Status.DONE, Status.FAILED):
        assert (found.status is Status.DONE) == (found.state < 4)
    assert found.due_in is None or found.due_in.total_seconds() <= 0, "no retry waits"


def test_explore_skips_the_pauses(durable_harness: HarnessFactory) -> None:
    """Histories need no passing time to get past a policy's retries."""
    explore(
        durable_harness,
        Flaky,
        starts(Flaky.start, st.integers(0, 5)),
        invariants=[ends_as_it_should],
        raises=(ConnectionError,),
        jumps=(),
        crashes=False,
        examples=15,
        seed=1,
    )
