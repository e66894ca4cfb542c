"""Section 3, the outcomes: each row of the table, and each of its columns: effect, attempt, eligible_at.

The step under test ends its first execution in a replay, so that the attempt counter stands at 1 when the outcome under
test is committed. `updated_at` is the moment of that commit by the database's clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.support.spec import HOUR, MOMENT, Engine, Kid, Opening, Play, State, failed, finished, go, other

from gen_durable import Await, Context, Done, Fail, Next, Outcome, Retry, ScheduleChildren, Start
from gen_durable.telemetry import StepCommitted

Maker = Callable[[Play], Outcome[Any]]


async def committed(e: Engine, outcome: Maker, kind: str, times: int = 1) -> asyncpg.Record:
    """The row after an outcome of the second execution of a step; the worker is gone by then."""

    def body(play: Play, state: State, ctx: Context) -> Outcome[Any]:
        return outcome(play) if ctx.attempt == 1 else Retry({"first": True})

    async with e.worker(Play(a=body)):
        handle = await e.start()
        await e.until(StepCommitted, id=handle.id, outcome=kind, times=times)
    row = await e.row(handle)
    assert (row["locked_by"], row["lease_expires_at"]) == (None, None)
    return row


async def test_next_goes_to_the_step_with_its_state(engine: Opening) -> None:
    """Next, effect: the row is runnable at the named step and has the new state."""
    async with engine() as e:
        row = await committed(e, lambda p: Next(p.b, {"n": 2}, queue="aside"), "Next")
        assert (row["status"], row["step"], json.loads(row["state"])) == ("runnable", "b", {"n": 2})


async def test_next_resets_the_attempt(engine: Opening) -> None:
    """Next, attempt: the counter belongs to the current step and begins at 0, in the row and for the step."""
    async with engine() as e:
        assert (await committed(e, lambda p: Next(p.b, {}, queue="aside"), "Next"))["attempt"] == 0
    async with engine() as e:
        play = Play(a=lambda p, s, c: Retry(s) if c.attempt < 2 else Next(p.b, s), b=lambda p, s, c: Done(c.attempt))
        async with e.worker(play):
            assert await finished(await e.start()) == 0


async def test_next_is_due_at_once(engine: Opening) -> None:
    """Next, eligible_at: the moment of the commit."""
    async with engine() as e:
        row = await committed(e, lambda p: Next(p.b, {}, queue="aside"), "Next")
        assert row["eligible_at"] == row["updated_at"]


async def test_replay_runs_the_same_step_with_its_state(engine: Opening) -> None:
    """Retry, effect: the row is runnable at the step it is at, with the state that was returned."""
    async with engine() as e:
        row = await committed(e, lambda p: Retry({"n": 3}, delay=HOUR), "Retry", times=2)
        assert (row["status"], row["step"], json.loads(row["state"])) == ("runnable", "a", {"n": 3})


async def test_replay_counts_the_attempt(engine: Opening) -> None:
    """Retry, attempt: one more each time, in the row and for the step."""
    async with engine() as e:
        assert (await committed(e, lambda p: Retry({}, delay=HOUR), "Retry", times=2))["attempt"] == 2
        play = Play(a=lambda p, s, c: Retry(s) if c.attempt < 4 else Done())
        async with e.worker(play):
            await finished(await e.start())
        assert [visit.ctx.attempt for visit in play.script.visits] == [0, 1, 2, 3, 4]


async def test_replay_is_due_after_its_delay(engine: Opening) -> None:
    """Retry, eligible_at: the moment of the commit plus the delay."""
    async with engine() as e:
        row = await committed(e, lambda p: Retry({}, delay=timedelta(minutes=90)), "Retry", times=2)
        assert timedelta(0) <= row["eligible_at"] - row["updated_at"] - timedelta(minutes=90) < MOMENT


async def test_a_replay_does_not_run_before_its_delay_is_over(engine: Opening) -> None:
    """Retry, eligible_at: the second execution begins when the delay has passed, and soon then."""
    async with engine() as e:
        clock: list[Any] = []

        async def body(_play: Play, state: State, ctx: Context) -> Outcome[Any]:
            clock.append(await e.now())
            return Retry(state, delay=timedelta(milliseconds=300)) if ctx.attempt == 0 else Done()

        async with e.worker(Play(a=body)):
            await finished(await e.start())
        assert timedelta(milliseconds=300) <= clock[1] - clock[0] < timedelta(seconds=3)


async def test_the_engine_computes_no_backoff(engine: Opening) -> None:
    """A replay without a delay is due at once, however often it has been: backing off is the user's to compute."""
    async with engine() as e:
        due: list[bool] = []

        async def body(_play: Play, state: State, ctx: Context) -> Outcome[Any]:
            row = await e.row(ctx.id)
            due.append(row["eligible_at"] <= row["updated_at"])
            return Retry(state) if ctx.attempt < 12 else Done()

        async with e.worker(Play(a=body)):
            await finished(await e.start())
        assert due == [True] * 13


async def test_await_parks_on_the_name(engine: Opening) -> None:
    """Await, effect: the row is parked with the new state and keeps the name that it waits for."""
    async with engine() as e:
        row = await committed(e, lambda p: Await(go, state={"n": 4}), "Await")
        assert (row["status"], row["awaits"], row["step"]) == ("awaiting_signal", ["go"], "a")
        assert json.loads(row["state"]) == {"n": 4}


async def test_await_with_then_parks_at_the_step_to_come(engine: Opening) -> None:
    """Await, effect: with `then` the row waits at the step that the signal will run."""
    async with engine() as e:
        row = await committed(e, lambda p: Await({go, other}, then=p.b, state={}), "Await")
        assert (row["status"], row["awaits"], row["step"]) == ("awaiting_signal", ["go", "other"], "b")


async def test_await_leaves_the_attempt_of_the_same_step(engine: Opening) -> None:
    """Await, attempt: parking within a step does not count and does not reset; only leaving the step does."""
    async with engine() as e:
        assert (await committed(e, lambda p: Await(go, state={}), "Await"))["attempt"] == 1


async def test_await_is_not_due_until_it_is_woken(engine: Opening) -> None:
    """Await, eligible_at: a parked row cannot be picked; the signal makes it due at that moment."""
    async with engine() as e:
        row = await committed(e, lambda p: Await(go, state={}), "Await")
        assert await e.claim(10) == []
        await e.app.signal(row["id"], go, {})
        woken = await e.row(row["id"])
        assert (woken["status"], woken["eligible_at"]) == ("runnable", woken["updated_at"])
        assert [claim.id for claim in await e.claim(10)] == [row["id"]]


async def test_schedule_children_spawns_and_parks_at_the_step_to_come(engine: Opening) -> None:
    """ScheduleChildren, effect: the children are there, and the row waits for them at the named step."""
    async with engine() as e:
        children = [Start(Kid.k, {"n": n}, queue="aside") for n in range(3)]
        row = await committed(e, lambda p: ScheduleChildren(children, then=p.b, state={"n": 5}), "ScheduleChildren")
        assert (row["status"], row["step"], row["children_pending"]) == ("awaiting_children", "b", 3)
        assert json.loads(row["state"]) == {"n": 5}
        assert [json.loads(child["state"])["n"] for child in await e.children(row["id"])] == [0, 1, 2]


async def test_schedule_children_resets_the_attempt(engine: Opening) -> None:
    """ScheduleChildren, attempt: it leads to another step, so the counter begins at 0."""
    async with engine() as e:
        children = [Start(Kid.k, {}, queue="aside")]
        row = await committed(e, lambda p: ScheduleChildren(children, then=p.b, state={}), "ScheduleChildren")
        assert row["attempt"] == 0


async def test_schedule_children_is_due_when_the_barrier_is_released(engine: Opening) -> None:
    """ScheduleChildren, eligible_at: not due while children live; due at the moment in which the last one ends."""
    async with engine() as e:
        children = [Start(Kid.k, {}, queue="aside")]
        row = await committed(e, lambda p: ScheduleChildren(children, then=p.b, state={}), "ScheduleChildren")
        assert await e.claim(10) == []
        async with e.worker(Kid(k=lambda k, s, c: Done()), queues={"aside": 1}):
            await e.until(StepCommitted, machine="Kid")
        (child,) = await e.children(row["id"])
        released = await e.row(row["id"])
        assert (released["status"], released["step"]) == ("runnable", "b")
        assert released["eligible_at"] == child["finished_at"]


async def test_done_ends_with_a_result(engine: Opening) -> None:
    """Done, effect: the row is done, its result recorded, its state as it was."""
    async with engine() as e:
        row = await committed(e, lambda p: Done({"sum": 6}), "Done")
        assert (row["status"], json.loads(row["result"])) == ("done", {"sum": 6})
        assert json.loads(row["state"]) == {"first": True}
        assert row["finished_at"] == row["updated_at"]


async def test_stop_ends_with_a_reason(engine: Opening) -> None:
    """Fail, effect: the row has failed, with the reason as its last error and no result; its state as it was."""
    async with engine() as e:
        row = await committed(e, lambda p: Fail("no stock"), "Fail")
        assert (row["status"], row["last_error"], row["result"]) == ("failed", "no stock", None)
        assert json.loads(row["state"]) == {"first": True}
        assert row["finished_at"] == row["updated_at"]


@pytest.mark.parametrize(("outcome", "kind"), [(Done(), "Done"), (Fail("no"), "Fail")], ids=["done", "fail"])
async def test_an_end_leaves_attempt_and_eligible_at(engine: Opening, outcome: Outcome[Any], kind: str) -> None:
    """Done and Fail, attempt and eligible_at: both stay as the last execution found them."""
    async with engine() as e:
        before: list[Any] = []

        async def body(_play: Play, state: State, ctx: Context) -> Outcome[Any]:
            if ctx.attempt == 0:
                return Retry(state)
            row = await e.row(ctx.id)
            before.append((row["attempt"], row["eligible_at"]))
            return outcome

        async with e.worker(Play(a=body)):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id, outcome=kind)
        row = await e.row(handle)
        assert before == [(1, row["eligible_at"])]
        assert row["attempt"] == 1


async def test_an_ended_instance_never_runs_again(engine: Opening) -> None:
    """Done and Fail are terminal: nothing picks the row, and no signal reaches it."""
    async with engine() as e:
        async with e.worker(Play(a=lambda p, s, c: Done() if s["ok"] else Fail("no"))):
            done, stopped = await e.start({"ok": True}), await e.start({"ok": False})
            await finished(done)
            assert await failed(stopped) == "no"
        assert await e.claim(10) == []
        assert await e.reap() == []
