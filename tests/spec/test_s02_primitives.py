"""Section 2, the three primitives: a durable step, a durable await, durable children; and what they are made into."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.support.spec import PATIENCE, Gate, Kid, Opening, Play, State, differing, failed, finished, go

from gen_durable import Await, Context, Done, Machine, Next, Outcome, ScheduleChildren, Start, step
from gen_durable.errors import InvalidOutcome
from gen_durable.telemetry import StepCommitted


class Threaded(Machine):
    """A step written as a plain function."""

    @step
    def work(self, state: State, ctx: Context) -> Outcome[bool]:
        return Done(threading.current_thread() is threading.main_thread())


async def test_a_durable_step_ends_with_an_outcome(engine: Opening) -> None:
    """A step is user code that completes by returning what becomes of the instance."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Next(p.b, s), b=lambda p, s, c: Done({"n": 1}))
        async with e.worker(play):
            assert await finished(await e.start()) == {"n": 1}


async def test_a_plain_function_is_a_step_and_runs_in_a_thread(engine: Opening) -> None:
    """A `def` step completes like any other, without standing in the way of the worker's loop."""
    async with engine() as e, e.worker(Threaded()):
        assert await finished(await e.app.insert(Threaded.work, {})) is False


async def test_anything_but_an_outcome_does_not_complete_a_step(engine: Opening) -> None:
    """A return value that is no outcome is the step's error: nothing is committed as if it were one."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: {"status": "done"})  # type: ignore[dict-item,return-value]
        async with e.worker(play):
            assert "InvalidOutcome" in await failed(await e.start())
        assert [type(error) for _, _, error in play.script.errors] == [InvalidOutcome]


async def test_a_durable_await_parks_without_holding_a_worker(engine: Opening) -> None:
    """Any number of parked instances leave a worker's single slot to others."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s) if s["parks"] else Done("free"),
            b=lambda p, s, c: Done("woken"),
        )
        async with e.worker(play, queues={"default": 1}):
            parked = [await e.start({"parks": True}) for _ in range(5)]
            assert await finished(await e.start({"parks": False})) == "free"
            assert [(await e.row(h))["status"] for h in parked] == ["awaiting_signal"] * 5
            await parked[3].signal(go, {})
            assert await finished(parked[3]) == "woken"


async def test_a_wake_up_only_changes_the_status(engine: Opening) -> None:
    """A signal makes a parked row runnable, and touches nothing of what the machine has decided."""
    async with engine() as e:
        async with e.worker(Play(a=lambda p, s, c: Await(go, then=p.b, state={"n": 7}))):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id)
        before = await e.row(handle)
        await handle.signal(go, {})
        after = await e.row(handle)
        assert (before["status"], after["status"]) == ("awaiting_signal", "runnable")
        derived = {"due_at", "parked_step"}  # generated from the status
        assert differing(before, after) == {"status", "eligible_at", "has_signals", "updated_at"} | derived


async def test_durable_children_park_their_parent_until_every_one_has_ended(engine: Opening) -> None:
    """A parent sleeps, without a slot, until the last of its children is at its end."""
    async with engine() as e:
        gate = Gate()

        async def last(_kid: Kid, state: State, _ctx: Context) -> Outcome[Any]:
            if state["waits"]:
                await gate.pass_through()
            return Done()

        play = Play(
            a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {"waits": n == 2}) for n in range(3)], then=p.b, state=s),
            b=lambda p, s, c: Done([child.status.value for child in c.children]),
        )
        async with e.worker(play, Kid(k=last), queues={"default": 1}):
            handle = await e.start()
            await gate.arrival()
            async with asyncio.timeout(PATIENCE):
                while (row := await e.row(handle))["children_pending"] > 1:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.01)
            assert (row["status"], row["children_pending"]) == ("awaiting_children", 1)
            gate.opened.set()
            assert await finished(handle) == ["done"] * 3


async def test_waking_a_parent_only_reads_its_children(engine: Opening) -> None:
    """The join changes no child: their rows are the same after their parent has ended as they were at their own end."""
    async with engine() as e:
        rows: list[Any] = []

        async def look(_play: Play, _state: State, ctx: Context) -> Outcome[Any]:
            rows.extend(await e.children(ctx.id))
            return Done()

        play = Play(a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {}) for _ in range(3)], then=p.b, state=s), b=look)
        async with e.worker(play, Kid(k=lambda k, s, c: Done(1))):
            handle = await e.start()
            await finished(handle)
        assert await e.children(handle) == rows
        assert len(rows) == 3


async def test_a_child_is_otherwise_an_ordinary_instance(engine: Opening) -> None:
    """A child has its own id and handle, takes signals, awaits, and goes from step to step."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {}, unique_key="kid")], then=p.b, state=s),
            b=lambda p, s, c: Done(c.results(Kid.k)),
        )
        kid = Kid(k=lambda k, s, c: Await(go, then=k.grown, state=s), grown=lambda k, s, c: Done(c.take(go)))
        async with e.worker(play, kid):
            handle = await e.start()
            await e.until(StepCommitted, machine="Kid", outcome="Await")
            child = e.app.handle((await e.app.get("kid")).id, Kid.k)
            assert await e.app.signal("kid", go, {"n": 3})
            assert await finished(child) == {"n": 3}
            assert await finished(handle) == [{"n": 3}]


async def test_the_primitives_compose(engine: Opening) -> None:
    """Steps, awaits and children follow each other in one machine, in any order that its code says."""
    async with engine() as e:

        def second(play: Play, state: State, ctx: Context) -> Outcome[Any]:
            got = ctx.take(go)
            assert got is not None
            return ScheduleChildren([Start(Kid.k, {"n": n}) for n in range(got["n"])], then=play.c, state=state)

        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s), b=second, c=lambda p, s, c: Done(sum(c.results(Kid.k)))
        )
        async with e.worker(play, Kid(k=lambda k, s, c: Done(s["n"]))):
            handle = await e.start()
            await handle.signal(go, {"n": 4})
            assert await finished(handle) == 6
