"""Jobs: retries, backoff, giving up, and the context."""

from __future__ import annotations

import time
from datetime import timedelta

from tests.support.engine import Opening, seconds

from gen_durable import (
    Abort,
    Context,
    Fail,
    Failed,
    Finished,
    Machine,
    Outcome,
    Retry,
    RetryPolicy,
    Start,
    Status,
    backoff,
    job,
    step,
)
from gen_durable.telemetry import StepCommitted

asked: list[int] = []


def told_backoff(attempt: int) -> timedelta:
    asked.append(attempt)
    return seconds(0.1)


@job(retry=RetryPolicy(attempts=4, backoff=told_backoff))
async def flaky(good_from: int, ctx: Context) -> str:
    if ctx.attempt < good_from:
        raise ValueError(f"attempt {ctx.attempt}")
    return f"attempt {ctx.attempt}"


@job
def refuse(reason: str) -> None:
    raise Abort(reason)


@job(retry=RetryPolicy(backoff=lambda attempt: "soon"))  # type: ignore[arg-type,return-value]
async def badly_timed(_: None) -> None:
    raise ValueError("first")


@job(retry=RetryPolicy(attempts=1))
async def once(_: None) -> None:
    raise ValueError("no luck")


@job(timeout=seconds(0.1), retry=RetryPolicy(attempts=2, backoff=told_backoff))
def slow(_: None) -> None:
    time.sleep(0.4)


@job(queue="special", version=4, name="renamed-job")
async def described(_: None, ctx: Context) -> tuple[str, int, str, str, int]:
    return ctx.machine, ctx.version, ctx.step, ctx.queue, ctx.attempt


@job
async def tick() -> str:
    return "tick"


@job
def tick_in_a_thread() -> str:
    return "thread"


@job
async def tick_with_context(ctx: Context) -> str:
    return ctx.machine


async def test_jobs_without_an_argument(engine: Opening) -> None:
    """They are inserted without a state, alone or in a batch, and run with `ctx` or without."""
    async with engine() as e, e.worker(tick, tick_in_a_thread, tick_with_context):
        alone = await e.app.insert(tick, unique_key="tick")
        batch = await e.app.insert_many([Start(tick_in_a_thread), Start(tick_with_context, priority=1)])
        assert await alone.result(10) == "tick"
        assert [await one.result(10) for one in batch] == ["thread", "tick_with_context"]


async def test_retries_until_it_works(engine: Opening) -> None:
    """A job that raises is tried again after `backoff(attempt)` with the same argument; its last error is kept."""
    asked.clear()
    async with engine() as e, e.worker(flaky):
        handle = await e.app.insert(flaky, 3)
        stopped = await e.seen.until(StepCommitted, lambda s: s.outcome == "Retry")
        assert stopped[0].attempt == 0
        assert await e.end(handle) == Finished(handle.id, "attempt 3")
        assert asked == [0, 1, 2]
        row = await e.rows.row(handle)
        assert (row["seq"], row["attempt"], row["last_error"]) == (4, 3, None)


async def test_gives_up_after_its_attempts(engine: Opening) -> None:
    """After `attempts` executions the job is failed with its last error and the count."""
    async with engine() as e, e.worker(flaky, once):
        handle = await e.app.insert(flaky, 99)
        assert await e.end(handle) == Failed(handle.id, "ValueError: attempt 3 (attempt 4 of 4)")
        single = await e.app.insert(once, None)
        assert await e.end(single) == Failed(single.id, "ValueError: no luck (attempt 1 of 1)")


async def test_waits_between_attempts(engine: Opening) -> None:
    """Between attempts the row is runnable, due when the backoff ends, and shows the error."""
    async with engine() as e, e.worker(patient):
        handle = await e.app.insert(patient, None)
        row = await e.rows.until(handle, attempt=1)
        assert (row["status"], row["last_error"], row["locked_by"]) == ("runnable", "ValueError: later", None)
        assert 59 < (row["eligible_at"] - row["updated_at"]).total_seconds() < 61


@job(retry=RetryPolicy(backoff=lambda attempt: seconds(60)))
async def patient(_: None) -> None:
    raise ValueError("later")


async def test_cancel_fails_at_once(engine: Opening) -> None:
    """`Abort` ends a job as failed without another attempt."""
    async with engine() as e, e.worker(refuse):
        handle = await e.app.insert(refuse, "not today")
        assert await e.end(handle) == Failed(handle.id, "aborted: not today")
        seen = await handle.get()
        assert (seen.status, seen.seq, seen.attempt) == (Status.FAILED, 1, 0)


async def test_a_backoff_that_is_no_duration(engine: Opening) -> None:
    """A backoff function that answers nonsense fails the job with both errors; it is not tried for ever."""
    async with engine() as e, e.worker(badly_timed):
        ended = await e.end(await e.app.insert(badly_timed, None))
        assert isinstance(ended, Failed)
        assert "ValueError: first" in ended.error
        assert "timedelta" in ended.error


async def test_a_timeout_is_an_error_of_the_job(engine: Opening) -> None:
    """A job over its time is retried like any other failure, also in a thread."""
    async with engine() as e, e.worker(slow):
        ended = await e.end(await e.app.insert(slow, None))
        assert isinstance(ended, Failed)
        assert "StepTimeout" in ended.error
        assert "attempt 2 of 2" in ended.error


async def test_a_job_knows_its_context(engine: Opening) -> None:
    """A job that takes a second argument gets the context, with its durable name, version and queue."""
    async with engine() as e, e.worker(described, queues={"special": 1}):
        ended = await e.end(await e.app.insert(described, None))
        assert isinstance(ended, Finished)
        assert tuple(ended.result) == ("renamed-job", 4, "run", "special", 0)


def test_backoff_doubles_to_a_cap() -> None:
    """The default backoff doubles from a second up to a quarter of an hour, plus at most a tenth."""
    for attempt, least in ((0, 1), (1, 2), (5, 32), (9, 512), (10, 900), (10_000, 900)):
        assert least <= backoff(attempt).total_seconds() <= least * 1.1


@job(retry=RetryPolicy(attempts=3, backoff=told_backoff))
async def unlucky(_: str) -> None:
    raise ValueError("no luck")


async def test_crashes_cost_no_attempts(engine: Opening) -> None:
    """Only errors of the job itself count towards `attempts` and its back-off; `attempt` counts all executions."""
    asked.clear()
    async with engine() as e:
        handle = await e.app.insert(unlucky, "x")
        for _ in range(5):
            await e.rows.fetch(
                "update @.instances set status = 'executing', claims = claims + 1, locked_by = 'dead', "
                "lease_expires_at = now() - interval '1 s' where id = $1",
                handle.id,
            )
            await e.rows.fetch("select from @.reap(10)")
        assert (await e.rows.row(handle))["attempt"] == 5
        async with e.worker(unlucky):
            assert await e.end(handle) == Failed(handle.id, "ValueError: no luck (attempt 3 of 3)")
        row = await e.rows.row(handle)
        assert (row["attempt"], row["step_errors"], row["crashes"]) == (7, 2, 0)
        assert asked == [0, 1]


class Unlucky(Machine):
    @step
    async def work(self, n: int, ctx: Context) -> Outcome[None]:
        raise ValueError("no luck")

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[None]:
        return Retry(state) if ctx.step_errors < 2 else Fail(f"{ctx.step_errors} errors, attempt {ctx.attempt}")


async def test_a_machine_can_count_its_own_errors(engine: Opening) -> None:
    """Crashes are in `ctx.attempt` alone."""
    async with engine() as e:
        handle = await e.app.insert(Unlucky.work, 1)
        await e.rows.fetch("update @.instances set attempt = 5 where id = $1", handle.id)
        async with e.worker(Unlucky()):
            assert await e.end(handle) == Failed(handle.id, "2 errors, attempt 7")


async def test_a_retried_job_has_all_its_attempts_again(engine: Opening) -> None:
    """`retry` forgets the errors of a job that has failed."""
    asked.clear()
    async with engine() as e, e.worker(unlucky):
        handle = await e.app.insert(unlucky, "x")
        assert isinstance(await e.end(handle), Failed)
        await e.app.retry(handle.id)
        await e.rows.when(lambda: _has(asked, 4))
        assert asked == [0, 1, 0, 1]


async def _has(found: list[int], count: int) -> bool:
    return len(found) >= count
