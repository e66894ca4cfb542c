"""Section 8, what the engine leaves to its users; and one thing that it does not: it collects what has ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.spec import Engine, Gate, Kid, Opening, Play, State, failed, finished

from gen_durable import (
    Context,
    Done,
    Fail,
    Machine,
    Outcome,
    Retention,
    Retry,
    ScheduleChildren,
    Start,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.errors import NotFound
from gen_durable.telemetry import ClaimsReaped, InstanceDeadLettered, InstancesCollected, StepCommitted

SWEEP: dict[str, Any] = {"gc_interval": timedelta(milliseconds=50), "gc_retention": timedelta(0)}


class First(Machine, name="Versioned", version=1):
    """The machine as it was when the instance began."""

    @step
    async def run(self, state: State, ctx: Context) -> Outcome[str]:
        return Done(f"code of version 1, row of version {ctx.version}")


class Second(Machine, name="Versioned", version=2):
    """The machine as it is deployed now."""

    @step
    async def run(self, state: State, ctx: Context) -> Outcome[str]:
        return Done(f"code of version 2, row of version {ctx.version}")


def broken(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
    raise ValueError("broken")


async def test_the_engine_does_not_cap_the_retries_of_a_machine(engine: Opening) -> None:
    """There is only a counter: a handler that replays is taken at its word, far beyond any usual number of attempts."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: broken(p, s, c) if c.attempt < 60 else Done(c.attempt),
            on_error=lambda p, s, c, error: Retry(s),
        )
        async with e.worker(play):
            assert await finished(await e.start()) == 60


async def test_the_engine_does_not_cap_crashes_by_itself(engine: Opening) -> None:
    """Unless a worker is told to give up, a row that keeps killing its workers keeps being tried."""
    async with engine() as e:
        handle = await e.start()
        for _ in range(25):
            assert len(await e.claim(lease=0.0)) == 1
            assert len(await e.reap()) == 1
        row = await e.row(handle)
        assert (row["status"], row["attempt"], row["crashes"]) == ("runnable", 25, 25)


async def test_a_cap_on_crashes_that_was_asked_for_fails_the_row(engine: Opening) -> None:
    """With `max_crashes` a poison row ends as failed, and it is told; its parent is released like by any other end."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {}, queue="aside")], then=p.b, state=s),
            b=lambda p, s, c: Done([child.status.value for child in c.children]),
        )
        reaping = {"max_crashes": 3, "reap_interval": timedelta(milliseconds=50)}
        async with e.worker(play, **reaping):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id, outcome="ScheduleChildren")
            (child,) = await e.children(handle)
            for crash in range(3):
                assert e.events(InstanceDeadLettered) == []
                assert [claim.id for claim in await e.claim(lease=0.0, aside=1)] == [child["id"]]
                await e.until(ClaimsReaped, times=crash + 1)
            assert await finished(handle) == ["failed"]
            dead = await e.until(InstanceDeadLettered)
        assert (dead.id, dead.machine, dead.step, dead.crashes) == (child["id"], "Kid", "k", 3)
        assert "crash" in (await e.row(child["id"]))["last_error"]


async def test_the_parent_of_a_row_that_was_given_up_runs_at_once(engine: Opening) -> None:
    """A join by the reaper wakes like any other: the parent does not wait for the next poll."""
    async with engine() as e:
        woken: list[timedelta] = []

        async def joined(_play: Play, _state: State, ctx: Context) -> Outcome[Any]:
            woken.append(await e.now() - (await e.row(ctx.id))["eligible_at"])
            return Done()

        play = Play(a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {}, queue="aside")], then=p.b, state=s), b=joined)
        options: dict[str, Any] = {"max_crashes": 3, "reap_interval": timedelta(milliseconds=50)}
        async with e.worker(play, poll_interval=timedelta(seconds=3), **options):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id, outcome="ScheduleChildren")
            for crash in range(3):
                await e.claim(lease=0.0, aside=1)
                await e.until(ClaimsReaped, times=crash + 1)
            await e.until(InstanceDeadLettered)
            await finished(handle)
        assert woken[0] < timedelta(seconds=1)


async def test_an_instance_finishes_on_its_version(engine: Opening) -> None:
    """Versions run side by side: a row is run by the code of the version that it was started with."""
    async with engine() as e:
        old, new = await e.app.insert(First.run, {}), await e.app.insert(Second.run, {})
        async with e.worker(First(), Second()):
            assert await finished(old) == "code of version 1, row of version 1"
            assert await finished(new) == "code of version 2, row of version 2"


async def test_an_instance_is_not_migrated_to_another_version(engine: Opening) -> None:
    """A worker that only has the new version leaves the old rows as they are."""
    async with engine() as e:
        old, new = await e.app.insert(First.run, {}), await e.app.insert(Second.run, {})
        async with e.worker(Second()):
            await finished(new)
        row = await e.row(old)
        assert (row["fsm_version"], row["status"], row["claims"]) == (1, "runnable", 0)


async def test_failing_a_parent_does_not_touch_its_children(engine: Opening) -> None:
    """There is no cascade downwards: the children are as they ended."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {"n": n}) for n in range(3)], then=p.b, state=s),
            b=lambda p, s, c: Fail("the parent gives up"),
        )
        async with e.worker(play, Kid(k=lambda k, s, c: Done(s["n"]))):
            handle = await e.start()
            assert await failed(handle) == "the parent gives up"
        rows = await e.children(handle)
        assert [(row["status"], row["result"], row["last_error"]) for row in rows] == [
            ("done", str(n), None) for n in range(3)
        ]


async def test_failing_a_child_does_not_touch_its_parent_or_its_siblings(engine: Opening) -> None:
    """There is no cascade upwards or sideways: the others go on, and the parent sleeps until they have ended."""
    async with engine() as e:
        gate = Gate()

        async def body(_kid: Kid, state: State, _ctx: Context) -> Outcome[Any]:
            if state["fails"]:
                return Fail("no")
            await gate.pass_through()
            return Done("well")

        play = Play(
            a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {"fails": f}) for f in (True, False)], then=p.b, state=s),
            b=lambda p, s, c: Done([child.status.value for child in c.children]),
        )
        async with e.worker(play, Kid(k=body)):
            handle = await e.start()
            await e.until(StepCommitted, machine="Kid", outcome="Fail")
            await gate.arrival()
            row = await e.row(handle)
            assert (row["status"], row["children_pending"]) == ("awaiting_children", 1)
            gate.opened.set()
            assert await finished(handle) == ["failed", "done"]


async def test_a_child_outlives_its_parent(engine: Opening) -> None:
    """A parent that is gone altogether takes no child with it: the child runs to its own end."""
    async with engine() as e:
        async with e.worker(
            Play(a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {}, queue="aside")], then=p.b, state=s))
        ):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id)
        (child,) = await e.children(handle)
        await e.fetch("delete from @.instances where id = $1", handle.id)
        async with e.worker(Kid(k=lambda k, s, c: Done("alone")), queues={"aside": 1}):
            assert await finished(e.app.handle(child["id"], Kid.k)) == "alone"


async def ended_pair(e: Engine) -> tuple[int, int]:
    """One instance that is done and one that has failed."""
    async with e.worker(Play(a=lambda p, s, c: Done() if s["ok"] else Fail("no")), gc_interval=None):
        done, stopped = await e.start({"ok": True}), await e.start({"ok": False})
        await finished(done)
        await failed(stopped)
    return done.id, stopped.id


async def test_ended_instances_are_swept_after_their_retention(engine: Opening) -> None:
    """Collecting what has ended is the engine's own work; what lives is not touched, however old."""
    async with engine() as e:
        done, stopped = await ended_pair(e)
        living = await e.start(queue="aside")
        services = services_of(e.app)
        assert (await services.pool.run(services.statements.gc(3600.0, 3600.0, 3600.0, 1000))).deleted == 0
        assert {row["id"] for row in await e.fetch("select id from @.instances")} == {done, stopped, living.id}
        async with e.worker(queues={}, **SWEEP):
            assert (await e.until(InstancesCollected)).count == 2
        assert [row["id"] for row in await e.fetch("select id from @.instances")] == [living.id]
        with pytest.raises(NotFound):
            await e.app.get(done)


async def test_retention_is_set_per_status(engine: Opening) -> None:
    """What is done may go while what has failed is kept for somebody to look at."""
    async with engine() as e:
        _, stopped = await ended_pair(e)
        keep = Retention(done=timedelta(0), failed=None)
        async with e.worker(queues={}, gc_interval=timedelta(milliseconds=50), gc_retention=keep):
            await e.until(InstancesCollected)
        assert [row["id"] for row in await e.fetch("select id from @.instances")] == [stopped]


async def test_children_are_not_swept_while_their_parent_lives(engine: Opening) -> None:
    """A parent that is still to read its children finds them, whatever the retention."""
    async with engine() as e:
        gate = Gate()

        async def body(_kid: Kid, state: State, _ctx: Context) -> Outcome[Any]:
            if state["last"]:
                await gate.pass_through()
            return Done()

        play = Play(
            a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {"last": n == 2}) for n in range(3)], then=p.b, state=s),
            b=lambda p, s, c: Done(len(c.children)),
        )
        async with e.worker(play, Kid(k=body), **SWEEP):
            handle = await e.start()
            await e.until(StepCommitted, machine="Kid", times=2)
            await e.app.insert(Kid.k, {"last": False})
            assert (await e.until(InstancesCollected)).count == 1
            assert len(await e.children(handle)) == 3
            gate.opened.set()
            await e.until(StepCommitted, id=handle.id, outcome="Done")
        assert len(play.script.of("b")[0].ctx.children) == 3
