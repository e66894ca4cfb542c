"""Section 4, three sources of re-execution, never confused: a replay, an exception, a dead worker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.support.programs.doomed import Effects, Plan
from tests.support.spec import BRIEF, Dooming, Gate, Opening, Play, State, failed, finished, go

from gen_durable import (
    Abort,
    Await,
    Context,
    Done,
    Fail,
    Machine,
    Outcome,
    Retry,
    RetryPolicy,
    Worker,
    job,
    step,
)
from gen_durable.errors import StepTimeout
from gen_durable.telemetry import ClaimsReaped, StepCommitted


def broken(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
    raise ValueError("broken")


class Slow(Machine):
    """A step that takes longer than it may."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    @step(timeout=timedelta(milliseconds=50))
    async def wait(self, state: State, ctx: Context) -> Outcome[str]:
        await asyncio.Event().wait()
        return Done("never")

    async def on_error(self, state: State, ctx: Context, error: Exception) -> Outcome[str]:
        self.errors.append(error)
        return Done("handled")


attempts: dict[str, list[int]] = {}


@job(retry=RetryPolicy(attempts=4, backoff=lambda attempt: timedelta(milliseconds=attempt)))
async def flaky(state: State, ctx: Context) -> str:
    attempts.setdefault(state["key"], []).append(ctx.attempt)
    if ctx.attempt < state["fails"]:
        raise ValueError("flaky")
    return f"attempt {ctx.attempt}"


@job
async def hopeless(state: State, ctx: Context) -> str:
    attempts.setdefault(state["key"], []).append(ctx.attempt)
    raise Abort("no such order")


async def test_a_replay_is_not_an_error(engine: Opening) -> None:
    """The first source: a step that asks for another run is not asked about by the error handler."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Retry({"n": c.attempt}) if c.attempt < 3 else Done(s))
        async with e.worker(play):
            handle = await e.start()
            assert await finished(handle) == {"n": 2}
        assert play.script.errors == []
        row = await e.row(handle)
        assert (row["attempt"], row["crashes"]) == (3, 0)


async def test_an_exception_is_taken_to_the_handler(engine: Opening) -> None:
    """The second source: the handler gets the error, and id, machine, version, step, attempt and state with it."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: broken(p, s, c) if c.attempt == 1 else Retry({"n": 9}) if c.attempt == 0 else Done("ok"),
            on_error=lambda p, s, c, error: Retry(s),
        )
        async with e.worker(play):
            handle = await e.start({"n": 1})
            assert await finished(handle) == "ok"
        ((state, ctx, error),) = play.script.errors
        assert (ctx.id, ctx.machine, ctx.version, ctx.step, ctx.attempt) == (handle.id, "Play", 1, "a", 1)
        assert state == {"n": 9}
        assert isinstance(error, ValueError)
        assert str(error) == "broken"


async def test_the_handler_decides_when_to_give_up(engine: Opening) -> None:
    """The handler may replay and may stop; the engine takes its word."""
    async with engine() as e:
        play = Play(
            a=broken,
            on_error=lambda p, s, c, error: Retry(s) if c.attempt < 5 else Fail(f"gave up after {c.attempt + 1}"),
        )
        async with e.worker(play):
            assert await failed(await e.start()) == "gave up after 6"
        assert [ctx.attempt for _, ctx, _ in play.script.errors] == [0, 1, 2, 3, 4, 5]


class Unhandled(Machine, retry=RetryPolicy(attempts=3, backoff=lambda _: 0)):
    """A machine without a handler of its own."""

    @step
    async def a(self, state: State, ctx: Context) -> Outcome[str]:
        attempts.setdefault(state["key"], []).append(ctx.attempt)
        raise ValueError("broken")


async def test_without_a_handler_a_retry_policy_answers(engine: Opening) -> None:
    """Refines the seed, where such an instance stops at once: library code returns ordinary replays, then a stop.

    Without a policy of its own a machine has the default one: 20 attempts (tests/unit/test_retry_policy.py).
    """
    async with engine() as e, e.worker(Unhandled()):
        handle = await e.app.insert(Unhandled.a, {"key": "unhandled"})
        assert await failed(handle) == "ValueError: broken (attempt 3 of 3)"
        assert attempts["unhandled"] == [0, 1, 2]


async def test_a_handler_that_raises_fails_the_instance(engine: Opening) -> None:
    """An exception in the handler has nobody to answer for it: the instance fails, with both errors told."""
    async with engine() as e:

        def worse(_play: Play, _state: State, _ctx: Context, _error: Exception) -> Outcome[Any]:
            raise KeyError("worse")

        async with e.worker(Play(a=broken, on_error=worse)):
            error = await failed(await e.start())
        assert "ValueError: broken" in error
        assert "KeyError: 'worse'" in error


async def test_a_handler_that_returns_no_outcome_fails_the_instance(engine: Opening) -> None:
    """What the handler returns is looked at like the return of a step, but not handled a second time."""
    async with engine() as e:
        play = Play(a=broken, on_error=lambda p, s, c, error: None)  # type: ignore[arg-type,return-value]
        async with e.worker(play):
            assert "InvalidOutcome" in await failed(await e.start())
        assert len(play.script.errors) == 1


async def test_a_timeout_is_taken_to_the_handler(engine: Opening) -> None:
    """A step that runs longer than it may is an error like any other."""
    async with engine() as e:
        slow = Slow()
        async with e.worker(slow):
            assert await finished(await e.app.insert(Slow.wait, {})) == "handled"
        assert [type(error) for error in slow.errors] == [StepTimeout]


async def test_a_dead_worker_is_not_an_error(engine: Opening, doomed: Dooming) -> None:
    """The third source: the reaper makes the row runnable, one attempt further; the handler is not called."""
    async with engine() as e, doomed() as process:
        handle = await e.app.insert(Effects.act, Plan(dies_in="act"))
        await process.die()
        held = await e.row(handle)
        assert (held["status"], held["attempt"]) == ("executing", 0)
        async with e.worker(Effects(process.journal), **BRIEF):
            assert await finished(handle) == "attempt 1"
        assert e.events(ClaimsReaped) == [ClaimsReaped((handle.id,))]
        assert not [line for line in process.effects() if line.startswith("on_error")]
        assert process.effects()[0] == "act begins, prepared False, attempt 0"
        assert process.effects()[1] == "act begins, prepared False, attempt 1"


async def test_a_reaped_row_has_lost_its_lease_and_nothing_else(engine: Opening) -> None:
    """What was committed before the crash is all there: state, step, and what the instance waits for."""
    async with engine() as e:
        handle = await e.start({"n": 1})
        (claim,) = await e.claim(lease=0.0)
        assert [row.id for row in await e.reap()] == [handle.id]
        row = await e.row(handle)
        assert (row["status"], row["locked_by"], row["lease_expires_at"]) == ("runnable", None, None)
        assert (row["attempt"], row["crashes"], row["step"], row["state"]) == (1, 1, "a", '{"n": 1}')
        (again,) = await e.claim()
        assert (again.id, again.attempt, again.state) == (handle.id, 1, claim.state)


async def test_progress_forgets_crashes(engine: Opening) -> None:
    """Crashes are counted since the last outcome: a row that gets on is not held to its past."""
    async with engine() as e:
        handle = await e.start()
        for _ in range(3):
            await e.claim(lease=0.0)
            await e.reap()
        assert (await e.row(handle))["crashes"] == 3
        async with e.worker(Play(a=lambda p, s, c: Await(go, state=s))):
            await e.until(StepCommitted, id=handle.id)
        assert (await e.row(handle))["crashes"] == 0


async def test_cancelling_its_own_task_is_the_steps_error(engine: Opening) -> None:
    """A step that is cancelled from inside has not lost its worker: its handler is asked."""
    async with engine() as e:

        async def suicidal(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await Gate().pass_through()
            return Done()

        play = Play(a=suicidal, on_error=lambda p, s, c, error: Done(type(error).__name__))
        async with e.worker(play):
            assert await finished(await e.start()) == "StepCancelled"


async def test_a_job_that_raises_is_retried(engine: Opening) -> None:
    """A job that raises runs again after its backoff, and is done when it returns."""
    async with engine() as e, Worker(e.app, jobs=[flaky]):
        handle = await e.app.insert(flaky, {"key": "retried", "fails": 2})
        assert await finished(handle) == "attempt 2"
        assert attempts.pop("retried") == [0, 1, 2]


async def test_a_job_fails_after_max_attempts(engine: Opening) -> None:
    """A job that raises every time is failed when its attempts are used up."""
    async with engine() as e, Worker(e.app, jobs=[flaky]):
        assert "ValueError: flaky" in await failed(await e.app.insert(flaky, {"key": "failed", "fails": 99}))
        assert attempts.pop("failed") == [0, 1, 2, 3]


async def test_a_job_that_raises_cancel_fails_at_once(engine: Opening) -> None:
    """`raise Abort(why)` is not retried."""
    async with engine() as e, Worker(e.app, jobs=[hopeless]):
        assert "no such order" in await failed(await e.app.insert(hopeless, {"key": "cancelled"}))
        assert attempts.pop("cancelled") == [0]
