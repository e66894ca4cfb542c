"""Every event fires with the right fields, and listening or not listening harms nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from tests.support.engine import BRIEF, Opening, seconds

import gen_durable.telemetry
from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Finished,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)
from gen_durable.engine.heartbeat import Heartbeat
from gen_durable.telemetry import (
    ClaimLost,
    ClaimsReaped,
    Event,
    EventLoopBlocked,
    InstancesCollected,
    PartitionContended,
    QueueDrained,
    QueueLoadMeasured,
    RowsPicked,
    StaleOutcome,
    StepCommitted,
)

go = Signal("go")


class Tour(Machine, version=5):
    """Every outcome once."""

    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        return Next(self.again, n) if ctx.attempt == 0 else Fail("no")

    @step
    async def again(self, n: int, ctx: Context) -> Outcome[int]:
        return Retry(n) if ctx.attempt == 0 else Await(go, then=self.fan, state=n)

    @step
    async def fan(self, n: int, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(double, n)], then=self.end, state=n)

    @step
    async def end(self, n: int, ctx: Context) -> Outcome[int]:
        await asyncio.sleep(0.05)
        return Done(n)


@job
async def double(number: int) -> int:
    return number * 2


@job
async def hold(gate: str) -> None:
    running[gate].set()
    await gates[gate].wait()


running: dict[str, asyncio.Event] = {}
gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> str:
    running[name], gates[name] = asyncio.Event(), asyncio.Event()
    return name


async def test_step_stopped(engine: Opening) -> None:
    """One event per committed outcome: who, which step, what it decided, at which attempt, for how long."""
    async with engine() as e, e.worker(Tour(), double):
        handle = await e.app.insert(Tour.begin, 1)
        await handle.signal(go)
        await e.end(handle)
        stopped = [s for s in await e.seen.until(StepCommitted, count=6) if s.id == handle.id]
        assert [(s.machine, s.version) for s in stopped] == [("Tour", 5)] * 5
        assert [(s.step, s.outcome, s.attempt) for s in stopped] == [
            ("begin", "Next", 0),
            ("again", "Retry", 0),
            ("again", "Await", 1),
            ("fan", "ScheduleChildren", 0),
            ("end", "Done", 0),
        ]
        assert 0.05 <= stopped[-1].duration < 2
        (child,) = [s for s in e.seen.of(StepCommitted) if s.machine == "double"]
        assert (child.step, child.outcome) == ("run", "Done")


async def test_picked_and_saturation(engine: Opening) -> None:
    """Each pick tells what came of what was asked, by whom; and how full the queue is with it."""
    name = gate("picked")
    async with engine() as e:
        handles = await e.app.insert_many([Start(hold, name, queue="q")] * 3)
        async with e.worker(hold, queues={"q": 2, "idle": 3}, prefetch=1) as worker:
            (picked,) = await e.seen.until(RowsPicked, lambda p: p.count > 0)
            assert picked == RowsPicked("q", 3, 3, worker.name)
            assert RowsPicked("idle", 0, 4, worker.name) in e.seen.of(RowsPicked)
            gates[name].set()
            for handle in handles:
                await e.end(handle)


async def test_saturation_shows_a_full_queue(engine: Opening) -> None:
    """A queue whose slots and buffer are taken is told as full: otherwise the gauge could never show it."""
    name = gate("full")
    async with engine() as e:
        await e.app.insert_many([Start(hold, name)] * 5)
        async with e.worker(hold, queues={"default": 2}, prefetch=1):
            await running[name].wait()
            try:
                assert QueueLoadMeasured("default", 2, 1, 2, 1) in e.seen.of(QueueLoadMeasured)
            finally:
                gates[name].set()


async def test_partition_contended(engine: Opening) -> None:
    """Due rows passed over because their key is busy are counted."""
    name = gate("contended")
    async with engine() as e, e.worker(hold):
        first = await e.app.insert(hold, name, partition_key="p")
        await running[name].wait()
        for _ in range(3):
            await e.app.insert(hold, name, partition_key="p")
            await e.seen.until(PartitionContended)
            e.seen.events.clear()
        gates[name].set()
        await e.end(first)


async def test_reaped_and_swept(engine: Opening) -> None:
    """A reap names the ids that were taken back, a sweep how many rows were deleted."""
    async with engine() as e:
        dead = await e.rows.fetch("""
            insert into @.instances (fsm, step, state, status, claims, locked_by, lease_expires_at)
            select 'double', 'run', '1', 'executing', 1, 'dead', now() - interval '1 minute' from generate_series(1, 3)
            returning id
        """)
        async with e.worker(double, gc_interval=seconds(0.1), gc_retention=seconds(0), **BRIEF):
            (reaped,) = await e.seen.until(ClaimsReaped)
            assert sorted(reaped.ids) == sorted(row["id"] for row in dead)
            assert sum(swept.count for swept in await e.seen.until(InstancesCollected)) <= 3


async def test_lease_was_lost(engine: Opening) -> None:
    """A beat that finds the claim taken over tells so and cancels the task; the step's outcome does not count."""
    name = gate("lost")
    async with engine() as e, e.worker(hold, **(BRIEF | {"reap_interval": None})):
        handle = await e.app.insert(hold, name)
        await running[name].wait()
        await e.rows.fetch("update @.instances set claims = claims + 1, locked_by = 'thief' where id = $1", handle.id)
        (lost,) = await e.seen.until(ClaimLost)
        assert lost == ClaimLost(handle.id, "hold", "run")
        gates[name].set()
        other = await e.app.insert(hold, name)
        await e.end(other)
        row = await e.rows.row(handle)
        assert (row["status"], row["locked_by"], row["seq"]) == ("executing", "thief", 0)


async def test_stale_outcome(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outcome for a claim that was taken over changes nothing and is told."""
    monkeypatch.setattr(Heartbeat, "start", lambda _: None)  # no beat shall find out first
    name = gate("stale")
    async with engine() as e, e.worker(hold, reap_interval=None):
        handle = await e.app.insert(hold, name)
        await running[name].wait()
        await e.rows.fetch("update @.instances set claims = claims + 1, locked_by = 'thief' where id = $1", handle.id)
        gates[name].set()
        (stale,) = await e.seen.until(StaleOutcome)
        assert stale == StaleOutcome(handle.id, "hold", "run")
        row = await e.rows.row(handle)
        assert (row["status"], row["seq"], row["result"]) == ("executing", 0, None)
        assert e.seen.of(StepCommitted) == []


async def test_drained(engine: Opening) -> None:
    """Stopping tells per queue how many rows were given back and how many steps were still under way."""
    name = gate("drained")
    async with engine() as e:
        await e.app.insert_many([Start(hold, name, queue="q")] * 4)
        async with e.worker(hold, queues={"q": 1, "idle": 1}, prefetch=2, drain_timeout=seconds(0.2)):
            await running[name].wait()
        assert sorted(e.seen.of(QueueDrained), key=lambda d: d.queue) == [
            QueueDrained("idle", 0, 0),
            QueueDrained("q", 2, 1),
        ]


@job
async def block(length: float) -> None:
    time.sleep(length)  # noqa: ASYNC251  # what must not be done


async def test_loop_lag(engine: Opening) -> None:
    """A step that blocks the loop is noticed, and how long it blocked."""
    async with engine() as e, e.worker(block, **BRIEF):
        await e.end(await e.app.insert(block, 0.7))
        found = await e.seen.until(EventLoopBlocked, lambda lag: lag.seconds > 0.3)
        assert found[0].seconds < 2


async def test_a_raising_subscriber_harms_nothing(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """Its errors are logged once, other subscribers hear everything, and the engine works on."""
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("subscriber trouble")

    async with engine() as e:
        e.app.events.subscribe(broken)
        e.app.events.subscribe(heard.append)
        async with e.worker(double):
            for n in range(5):
                handle = await e.app.insert(double, n)
                assert await e.end(handle) == Finished(handle.id, n * 2)
    assert len([event for event in heard if isinstance(event, StepCommitted)]) == 5
    lines = [record for record in caplog.records if record.name == "gen_durable.telemetry"]
    assert len(lines) == 1
    assert lines[0].levelno == logging.ERROR


async def test_unsubscribing(engine: Opening) -> None:
    """The function that `subscribe` returns ends it, and may be called twice."""
    heard: list[Event] = []
    async with engine() as e, e.worker(double):
        unsubscribe = e.app.events.subscribe(heard.append)
        unsubscribe()
        unsubscribe()
        await e.end(await e.app.insert(double, 1))
    assert heard == []


async def test_no_event_is_made_for_nobody(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a subscriber no event object is made at all."""

    def emit(self: Any, event: Event) -> None:
        raise AssertionError(f"made for nobody: {event}")

    async with engine() as e:
        e.app.events._subscriptions = ()
        e.app.events.active = False
        monkeypatch.setattr(gen_durable.telemetry.Events, "emit", emit)
        async with e.worker(Tour(), double, gc_interval=seconds(0.1), gc_retention=seconds(0), **BRIEF):
            handle = await e.app.insert(double, 2)
            assert await e.end(handle) == Finished(handle.id, 4)
            tour = await e.app.insert(Tour.begin, 1)
            await tour.signal(go)
            await e.end(tour)


@job
async def wait_long(_: int) -> None:
    await asyncio.sleep(60)


async def test_the_duration_of_a_cancelled_step_is_its_own(engine: Opening) -> None:
    """It is measured from the start of the step, as of every other."""
    async with engine() as e, e.worker(wait_long):
        handle = await e.app.insert(wait_long, 1)
        await e.rows.until(handle, status="executing")
        await asyncio.sleep(0.1)
        await e.app.cancel(handle.id)
        (event,) = await e.seen.until(StepCommitted)
        assert event.outcome == "Cancel"
        assert 0.1 <= event.duration < 30
        (transition,) = await e.app.history(handle)
        assert 0.1 <= transition.duration < 30
        row = await handle.get()
        assert row.finished_at is not None
        assert transition.started_at >= row.inserted_at - seconds(1)
        assert transition.started_at + seconds(transition.duration) <= row.finished_at + seconds(0.05)


async def test_an_instance_that_is_cancelled_before_its_step_has_no_duration(engine: Opening) -> None:
    async with engine() as e, e.worker(wait_long, queues={"default": 1}, prefetch=1):
        first = await e.app.insert(wait_long, 1)
        second = await e.app.insert(wait_long, 2)
        await e.rows.until(second, status="executing")
        await second.cancel()
        (event,) = await e.seen.until(StepCommitted)
        assert (event.id, event.outcome, event.duration) == (second.id, "Cancel", 0.0)
        await first.cancel()
        await e.end(first)


class Slow(Machine):
    """Steps of 60 ms. The database refuses the result "refused"."""

    @step(transactional=True)
    async def writes(self, how: str, ctx: Context) -> Outcome[str]:
        await asyncio.sleep(0.06)
        if how == "raises":
            raise ValueError(how)
        return Done(how)

    @step
    async def returns(self, how: str, ctx: Context) -> Outcome[str]:
        await asyncio.sleep(0.06)
        return Done("refused")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        return Done("refused" if state == "refused twice" else "answered")


async def test_the_duration_of_a_step_does_not_depend_on_how_its_outcome_is_found(engine: Opening) -> None:
    """In a transaction, by `on_error` after a rollback, and after the database refused one outcome or two."""
    async with engine() as e, e.worker(Slow()):
        await e.rows.fetch("""alter table @.instances add constraint refuse check (result <> '"refused"')""")
        cases = [
            (Slow.writes, "returns", "Done"),
            (Slow.writes, "raises", "Done"),
            (Slow.returns, "refused once", "Done"),
            (Slow.returns, "refused twice", "Fail"),
        ]
        for start, how, outcome in cases:
            handle = await e.app.insert(start, how)
            (event,) = await e.seen.until(StepCommitted, lambda event, id_=handle.id: event.id == id_)  # type: ignore[misc]
            (transition,) = await e.app.history(handle)
            assert (event.outcome, transition.outcome) == (outcome, outcome), how
            assert 0.06 <= event.duration < 20, how
            assert 0.06 <= transition.duration < 20, how
            assert transition.started_at >= (await handle.get()).inserted_at - seconds(1), how
        await e.rows.fetch("alter table @.instances drop constraint refuse")
