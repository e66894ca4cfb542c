"""advance() and fire_timeouts(): the test moves the clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gen_durable import Await, Context, Done, Fail, Machine, Next, Outcome, Retry, RetryPolicy, Signal, Start, job, step
from gen_durable.core.services import services_of
from gen_durable.errors import InputError
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.testing import HarnessFactory

answer = Signal("answer", str)
MINUTE = timedelta(minutes=1)


class Question(Machine):
    @step
    async def ask(self, minutes: int, ctx: Context) -> Outcome[str]:
        timeout = timedelta(minutes=minutes) if minutes else None
        return Await(answer, then=self.hear, state=minutes, timeout=timeout)

    @step
    async def hear(self, minutes: int, ctx: Context) -> Outcome[str]:
        heard = ctx.take(answer)
        return Fail("no answer came") if heard is None else Done(heard)


class Patient(Machine):
    @step
    async def now(self, n: int, ctx: Context) -> Outcome[int]:
        return Next(self.later, n + 1, delay=timedelta(hours=1))

    @step
    async def later(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)


@job(retry=RetryPolicy(attempts=3, backoff=lambda attempt: timedelta(minutes=2**attempt)))
def flaky(fail_times: int, ctx: Context) -> int:
    if ctx.attempt < fail_times:
        raise ValueError(f"attempt {ctx.attempt}")
    return ctx.attempt


class Poll(Machine):
    @step
    async def ask(self, times: int, ctx: Context) -> Outcome[int]:
        if ctx.attempt < times:
            return Retry(times, delay=timedelta(minutes=2**ctx.attempt))
        return Done(ctx.attempt)


async def test_a_delay_passes_when_time_is_advanced_and_not_before(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Patient()]) as harness:
        handle = await harness.app.insert(Patient.now, 1)
        assert (await harness.drain()).steps == {"Patient.now": 1}
        await harness.advance(timedelta(minutes=59))
        assert (await harness.drain()).executed == 0
        await harness.advance(MINUTE)
        assert (await harness.drain()).steps == {"Patient.later": 1}
        await harness.assert_done(handle, 2)


async def test_retries_of_a_policy_do_not_wait(durable_harness: HarnessFactory) -> None:
    async with durable_harness(jobs=[flaky]) as harness:
        lucky = await harness.app.insert(flaky, 2)
        hopeless = await harness.app.insert(flaky, 9)
        tally = await harness.drain()
        assert (tally.retried, tally.done, tally.failed) == (4, 1, 1)
        await harness.assert_done(lucky, 2)
        await harness.assert_failed(hopeless, r"ValueError: attempt 2 \(attempt 3 of 3\)")


async def test_a_retry_that_a_step_returns_waits(durable_harness: HarnessFactory) -> None:
    """Its delay is the machine's own: `advance` passes it."""
    async with durable_harness(machines=[Poll()]) as harness:
        handle = await harness.app.insert(Poll.ask, 2)
        assert (await harness.drain()).retried == 1
        await harness.advance(MINUTE)
        assert (await harness.drain()).retried == 1
        await harness.advance(MINUTE)
        assert (await harness.drain()).executed == 0, "the second retry waits two minutes"
        await harness.advance(MINUTE)
        await harness.drain()
        await harness.assert_done(handle, 2)


async def test_a_deadline_passes_when_time_is_advanced(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Question()]) as harness:
        short = await harness.app.insert(Question.ask, 5)
        long = await harness.app.insert(Question.ask, 50)
        await harness.drain()
        await harness.advance(timedelta(minutes=6))
        assert (await harness.drain()).failed == 1
        await harness.assert_failed(short, "no answer came")
        await harness.assert_awaiting(long, answer)
        left = (await harness.snapshot(long)).due_in
        assert left is not None
        assert timedelta(minutes=43) < left <= timedelta(minutes=44)


async def test_all_moments_move_together(durable_harness: HarnessFactory, gen_durable_schema: str) -> None:
    async with durable_harness(jobs=[flaky], machines=[Question()]) as harness:
        ended = await harness.app.insert(flaky, 0)
        parked = await harness.app.insert(Question.ask, 5)
        await harness.drain()
        await harness.app.signal(parked, Signal("other", str), "x")
        before = [await ended.get(), await parked.get()]
        sent_before = await _sent_at(services_of(harness.app).connection_target, gen_durable_schema)
        await harness.advance(timedelta(days=2))
        after = [await ended.get(), await parked.get()]
        sent_after = await _sent_at(services_of(harness.app).connection_target, gen_durable_schema)
    for old, new in zip(before, after, strict=True):
        for column in ("inserted_at", "updated_at", "eligible_at", "await_deadline", "finished_at"):
            was, now = getattr(old, column), getattr(new, column)
            assert (was is None) == (now is None)
            assert was is None or was - now == timedelta(days=2), column
    assert sent_before - sent_after == timedelta(days=2)


async def test_time_does_not_go_backwards(durable_harness: HarnessFactory) -> None:
    async with durable_harness() as harness:
        with pytest.raises(InputError, match="advance must not be negative"):
            await harness.advance(timedelta(seconds=-1))


async def test_timeouts_fire_for_all_who_have_one(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Question()]) as harness:
        with_deadline = await harness.app.insert_many([Start(Question.ask, 5), Start(Question.ask, 50)])
        without = await harness.app.insert(Question.ask, 0)
        await harness.drain()
        assert await harness.fire_timeouts() == 2
        assert (await harness.drain()).failed == 2
        for handle in with_deadline:
            await harness.assert_failed(handle)
        await harness.assert_awaiting(without, answer)
        assert await harness.fire_timeouts() == 0


async def test_a_timeout_fires_for_one_instance_only(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Question()]) as harness:
        one, other = await harness.app.insert_many([Start(Question.ask, 5), Start(Question.ask, 5)])
        await harness.drain()
        assert await harness.fire_timeouts(one) == 1
        await harness.drain()
        await harness.assert_failed(one)
        await harness.assert_awaiting(other, answer)


async def test_firing_a_timeout_that_is_not_there_is_a_mistake_of_the_test(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Question()]) as harness:
        handle = await harness.app.insert(Question.ask, 0)
        await harness.drain()
        with pytest.raises(AssertionError, match=r"should wait with a deadline, but it waits .* without a deadline"):
            await harness.fire_timeouts(handle)


async def _sent_at(target: object, schema: str):  # type: ignore[no-untyped-def]
    link = PersistentConnection(target)  # type: ignore[arg-type]
    connection = await link.connect()
    sent = await connection.fetchval(f'select inserted_at from "{schema}".signals')
    await link.close()
    return sent
