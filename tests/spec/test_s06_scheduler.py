"""Section 6, the scheduler: what is picked, in which order, by whom, and how a claim is kept and lost."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from tests.support.spec import BRIEF, HOUR, Engine, Gate, Handle, Kid, Opening, Play, State, finished, go, ids

from gen_durable import Await, Context, Done, Next, Outcome, Retry, Start
from gen_durable.core.services import services_of
from gen_durable.store.types import Commit
from gen_durable.telemetry import ClaimLost, ClaimsReaped, QueueDrained, StepCommitted, UnknownStepsFound

NEVER = timedelta(seconds=60)


async def aged(e: Engine, *ages: float, **options: Any) -> list[int]:
    """Instances that have been due for so many seconds."""
    now = await e.now()
    starts = [Start(Play.a, {}, schedule_at=now - timedelta(seconds=age), **options) for age in ages]
    return ids(await e.app.insert_many(starts))


async def test_only_runnable_rows_that_are_due_are_picked(engine: Opening) -> None:
    """A row that is parked, executing, ended, or due later is not claimed."""
    async with engine() as e:
        async with e.worker(Play(a=lambda p, s, c: Done() if s["ends"] else Await(go, state=s))):
            await finished(await e.start({"ends": True}))
            parked = await e.start({"ends": False})
            await e.until(StepCommitted, id=parked.id)
        due, later = await e.start(), await e.start(delay=HOUR)
        assert [claim.id for claim in await e.claim(10)] == [due.id]
        assert await e.claim(10) == []
        assert (await e.row(later))["status"] == "runnable"


async def test_rows_are_picked_by_priority_and_then_by_age(engine: Opening) -> None:
    """Lower priorities come first, and among equals the one that has been due the longest."""
    async with engine() as e:
        young, old = await aged(e, 10, 20)
        urgent_young, urgent_old = await aged(e, 1, 5, priority=-1)
        (late,) = await aged(e, 3600, priority=7)
        order = [urgent_old, urgent_young, old, young, late]
        assert [claim.id for claim in await e.claim(3)] == order[:3]
        assert [claim.id for claim in await e.claim(3)] == order[3:]


async def test_rows_run_in_the_order_of_the_pick(engine: Opening) -> None:
    """A worker with one slot runs what waits in that same order."""
    async with engine() as e:
        young, old = await aged(e, 10, 20)
        (urgent,) = await aged(e, 1, priority=-1)
        play = Play(a=lambda p, s, c: Done())
        async with e.worker(play, queues={"default": 1}):
            await e.until(StepCommitted, times=3)
        assert [visit.ctx.id for visit in play.script.visits] == [urgent, old, young]


async def test_a_row_that_another_transaction_holds_is_passed_over(engine: Opening) -> None:
    """A pick does not wait for a locked row: it takes the others, and that one later."""
    async with engine() as e:
        first, second = await e.start(), await e.start()
        async with e.db.transaction():
            await e.fetch("select from @.instances where id = $1 for update", first.id)
            assert [claim.id for claim in await e.claim(10)] == [second.id]
        assert [claim.id for claim in await e.claim(10)] == [first.id]


async def test_no_row_is_claimed_twice(engine: Opening) -> None:
    """Any number of pickers share a queue without talking to each other."""
    async with engine() as e:
        await e.app.insert_many([Start(Play.a, {}) for _ in range(200)])
        taken = await asyncio.gather(*(e.claim(30, worker=f"w{n}") for n in range(10)))
        while more := await e.claim(50):
            taken.append(more)
        claimed = [claim.id for claims in taken for claim in claims]
        assert len(claimed) == len(set(claimed)) == 200


async def test_a_claim_is_a_lease(engine: Opening) -> None:
    """A claimed row is executing, names its worker, and has a lease as long as was asked for."""
    async with engine() as e:
        gate = Gate()

        async def body(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            await gate.pass_through()
            return Done()

        worker = e.worker(Play(a=body), lease_ttl=timedelta(seconds=30))
        async with worker:
            handle = await e.start()
            await gate.arrival()
            row = await e.row(handle)
            gate.opened.set()
            assert (row["status"], row["locked_by"]) == ("executing", worker.name)
            assert row["lease_expires_at"] - row["updated_at"] == timedelta(seconds=30)
            assert (row["claims"], row["attempt"]) == (1, 0)
            await finished(handle)


async def test_a_step_runs_outside_of_any_transaction(engine: Opening) -> None:
    """While a step runs, the engine has no transaction open and holds no lock on its row."""
    async with engine() as e:
        gate = Gate()

        async def body(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            await gate.pass_through()
            return Done()

        async with e.worker(Play(a=body)):
            handle = await e.start()
            await gate.arrival()
            open_ones = await e.fetch(
                "select pid from pg_stat_activity where application_name = 'gen_durable' "
                "and state like 'idle in transaction%' and query like '%@%'"  # not the sessions of other tests
            )
            await e.fetch("select from @.instances where id = $1 for update nowait", handle.id)
            gate.opened.set()
            assert open_ones == []
            await finished(handle)


async def test_a_heartbeat_keeps_the_lease_of_a_long_step(engine: Opening) -> None:
    """A step may take longer than its lease: the lease is extended, and nobody takes the row away."""
    async with engine() as e:
        leases: list[Any] = []

        async def body(_play: Play, _state: State, ctx: Context) -> Outcome[Any]:
            first = (await e.row(ctx.id))["lease_expires_at"]
            await e.fetch("select pg_sleep_until($1)", first + timedelta(milliseconds=200))
            leases.extend([first, (await e.row(ctx.id))["lease_expires_at"]])
            return Done(ctx.attempt)

        play = Play(a=body)
        async with e.worker(play, **BRIEF):
            assert await finished(await e.start()) == 0
        assert leases[1] > leases[0]
        assert len(play.script.visits) == 1
        assert e.events(ClaimsReaped) == []


async def test_a_blocked_loop_does_not_lose_its_lease(engine: Opening) -> None:
    """Even a step that never awaits keeps its claim beyond its lease: heartbeats do not need the loop."""
    async with engine() as e:

        def body(_play: Play, _state: State, ctx: Context) -> Outcome[Any]:
            time.sleep(1.5)
            return Done(ctx.attempt)

        async with e.worker(Play(a=body), **BRIEF):
            handle = await e.start()
            assert await finished(handle) == 0
        assert (await e.row(handle))["claims"] == 1


async def test_the_reaper_takes_back_only_what_has_run_out(engine: Opening) -> None:
    """Rows whose lease holds, and rows that nobody has claimed, are left alone."""
    async with engine() as e:
        dead, alive, free = await e.start(), await e.start(), await e.start()
        assert [claim.id for claim in await e.claim(1, lease=0.0)] == [dead.id]
        assert [claim.id for claim in await e.claim(1, lease=60.0)] == [alive.id]
        assert [row.id for row in await e.reap()] == [dead.id]
        assert [(await e.row(h))["status"] for h in (dead, alive, free)] == ["runnable", "executing", "runnable"]
        assert (await e.row(free))["attempt"] == 0


async def test_an_outcome_of_a_lost_claim_changes_nothing(engine: Opening) -> None:
    """A worker that comes back after its lease ran out has no say: only the claim of now may commit."""
    async with engine() as e:
        handle = await e.start({"n": 1})
        (old,) = await e.claim(lease=0.0, worker="w")
        await e.reap()
        (new,) = await e.claim(worker="w")
        flushed = await e.flush(Commit(old.id, old.epoch, old.seq, "done", value='"late"'))
        assert flushed.stale_ids == {handle.id}
        row = await e.row(handle)
        assert (row["status"], row["result"], row["seq"]) == ("executing", None, 0)
        flushed = await e.flush(Commit(new.id, new.epoch, new.seq, "done", value='"in time"'))
        assert flushed.stale_ids == frozenset()
        assert (await e.row(handle))["result"] == '"in time"'


class Stalled:
    """A step that is stuck in its first execution, and tells when it is stopped."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.stopped = asyncio.Event()
        self.play = Play(a=self.body)

    async def body(self, _play: Play, _state: State, ctx: Context) -> Outcome[Any]:
        if ctx.claim == 1:
            try:
                await self.gate.pass_through()
            except asyncio.CancelledError:
                self.stopped.set()
                raise
        return Done(ctx.attempt)

    async def lose(self, e: Engine, handle: Handle[Any], queue: str = "default") -> None:
        """Let the lease run out under the running step, and move the row to a queue."""
        await self.gate.arrival()
        await e.fetch(
            "update @.instances set lease_expires_at = now() - interval '1 s', queue = $2 where id = $1",
            handle.id,
            queue,
        )
        assert len(await e.reap()) == 1

    async def stopping(self) -> None:
        async with asyncio.timeout(3):
            await self.stopped.wait()


async def test_a_worker_that_lost_its_claim_stops_its_step(engine: Opening) -> None:
    """When a heartbeat finds a claim taken over, the step's task is cancelled and its outcome does not count."""
    async with engine() as e:
        stalled = Stalled()
        async with e.worker(
            stalled.play, poll_interval=HOUR, max_poll_interval=HOUR, **(BRIEF | {"reap_interval": None})
        ):
            handle = await e.start()
            # In a queue that this worker does not serve, or it could claim its row again before the other does.
            await stalled.lose(e, handle, queue="elsewhere")
            (claim,) = await e.claim(worker="another", elsewhere=1)
            await stalled.stopping()
            await e.until(ClaimLost, id=handle.id)
        row = await e.row(handle)
        assert (row["status"], row["locked_by"], row["seq"]) == ("executing", "another", 0)
        await e.flush(Commit(claim.id, claim.epoch, claim.seq, "done", value="1"))
        assert await finished(handle) == 1


async def test_a_worker_that_claims_its_own_lost_row_stops_the_first_step(engine: Opening) -> None:
    """The same holds when the worker itself has claimed the row anew: the execution of the lost claim is stopped."""
    async with engine() as e:
        stalled = Stalled()
        lease = {"lease_ttl": timedelta(seconds=3), "heartbeat_interval": timedelta(seconds=1), "reap_interval": None}
        async with e.worker(stalled.play, **lease):
            handle = await e.start()
            await stalled.lose(e, handle)
            services_of(e.app).notifier.wake("default")
            assert await finished(handle) == 1
            try:
                await stalled.stopping()
            finally:
                stalled.gate.opened.set()


async def test_a_worker_takes_only_from_its_queues(engine: Opening) -> None:
    """Queues separate loads: what is in another queue is not this worker's business."""
    async with engine() as e:
        mine, not_mine = await e.start(queue="mine"), await e.start(queue="other")
        async with e.worker(Play(a=lambda p, s, c: Done(c.queue)), queues={"mine": 2}):
            assert await finished(mine) == "mine"
        row = await e.row(not_mine)
        assert (row["status"], row["claims"]) == ("runnable", 0)


async def test_concurrency_is_the_number_of_slots_per_queue(engine: Opening) -> None:
    """A queue's slots are all used, and never more."""
    async with engine() as e:
        full = asyncio.Event()
        play = Play()

        async def body(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            if play.script.running == 3:
                full.set()
            await full.wait()
            return Done()

        play.script.bodies["a"] = body
        handles = await e.app.insert_many([Start(Play.a, {}) for _ in range(12)])
        async with e.worker(play, queues={"default": 3}, prefetch=5):
            for handle in handles:
                await finished(handle)
        assert play.script.most_running == 3


TIMERS: dict[str, Any] = {
    "Retry": lambda p: Retry({}, delay=timedelta(milliseconds=300)),
    "Next": lambda p: Next(p.b, {}, delay=timedelta(milliseconds=300)),
    "Await": lambda p: Await(go, then=p.b, state={}, timeout=timedelta(milliseconds=300)),
}


@pytest.mark.parametrize("kind", ["insert", *TIMERS])
async def test_delays_and_deadlines_fire_on_time(engine: Opening, kind: str) -> None:
    """The worker sleeps until the next due moment, not for a poll period, whoever made the row wait."""
    async with engine() as e:
        clock: dict[str, Any] = {}

        async def first(play: Play, state: State, ctx: Context) -> Outcome[Any]:
            if kind != "insert" and ctx.attempt == 0:
                return TIMERS[kind](play)
            clock["ran"] = await e.now()
            return Done()

        async def second(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            clock["ran"] = await e.now()
            return Done()

        async with e.worker(Play(a=first, b=second), poll_interval=timedelta(seconds=3)):
            handle = await e.start(delay=timedelta(milliseconds=300) if kind == "insert" else None)
            if kind != "insert":
                await e.until(StepCommitted, id=handle.id, outcome=kind)
            due = (await e.row(handle))["due_at"]
            await finished(handle)
        assert timedelta(0) <= clock["ran"] - due < timedelta(seconds=1)


async def test_a_stopping_worker_gives_back_what_it_has_not_begun(engine: Opening) -> None:
    """Rows that were only buffered are runnable again at once, and no attempt is counted against them."""
    async with engine() as e:
        gate = Gate()

        async def body(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            await gate.pass_through()
            return Done("ended in the drain")

        handles = await e.app.insert_many([Start(Play.a, {}) for _ in range(4)])
        worker = e.worker(Play(a=body), queues={"default": 1}, prefetch=3)
        await worker.start()
        await gate.arrival()
        stopping = asyncio.create_task(worker.stop())
        gate.opened.set()
        await stopping
        assert await finished(handles[0]) == "ended in the drain"
        drained = await e.until(QueueDrained)
        assert (drained.released, drained.in_flight) == (3, 0)
        for handle in handles[1:]:
            row = await e.row(handle)
            assert (row["status"], row["attempt"], row["crashes"], row["locked_by"]) == ("runnable", 0, 0, None)


async def test_a_step_that_outlasts_the_drain_is_given_back(engine: Opening) -> None:
    """A step that does not end in time is interrupted; its row is free at once and no attempt is burned."""
    async with engine() as e:
        gate = Gate()

        async def body(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            await gate.pass_through()
            return Done()

        async with e.worker(Play(a=body), drain_timeout=timedelta(milliseconds=100)):
            handle = await e.start()
            await gate.arrival()
        row = await e.row(handle)
        assert (row["status"], row["attempt"], row["locked_by"]) == ("runnable", 0, None)


async def test_an_unknown_machine_is_left_to_a_worker_that_knows_it(engine: Opening) -> None:
    """A row whose machine this worker was not given is reported, and neither failed nor touched."""
    async with engine() as e:
        handle = await e.start()
        known = await e.app.insert(Kid.k, {})
        async with e.worker(Kid(k=lambda k, s, c: Done("known"))):
            assert await finished(known) == "known"
            told = await e.until(UnknownStepsFound)
            assert (told.machine, told.version, told.step, told.count) == ("Play", 1, "a", 1)
        row = await e.row(handle)
        assert (row["status"], row["claims"], row["attempt"]) == ("runnable", 0, 0)
        async with e.worker(Play(a=lambda p, s, c: Done("found"))):
            assert await finished(handle) == "found"
