"""Section 11, children: one outcome that spawns a batch and parks its parent until every one of them has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.spec import HOUR, MOMENT, Engine, Gate, Handle, Kid, Opening, Play, State, failed, finished, ids

from gen_durable import Context, Done, Fail, Next, Outcome, Retry, ScheduleChildren, Start, Status
from gen_durable.errors import EncodeError
from gen_durable.telemetry import StepCommitted


def parent(children: Callable[[], list[Start[Any]]], **bodies: Any) -> Play:
    """A machine that spawns at a, and at b tells how its children ended."""
    told = {"b": lambda p, s, c: Done([child.status.value for child in c.children])}
    return Play(a=lambda p, s, c: ScheduleChildren(children(), then=p.b, state={"spawned": True}), **(told | bodies))


async def spawned(e: Engine, play: Play) -> Handle[Any]:
    """A parent whose children wait in a queue that no worker serves."""
    async with e.worker(play):
        handle = await e.start({"spawned": False})
        await e.until(StepCommitted, id=handle.id, outcome="ScheduleChildren")
    return handle


def aside(count: int) -> list[Start[Any]]:
    return [Start(Kid.k, {"n": n}, queue="aside") for n in range(count)]


async def test_a_child_takes_the_options_of_an_ordinary_insert(engine: Opening) -> None:
    """Machine, version, step, state, queue, priority, keys, scope and time: each is the child's own."""
    async with engine() as e:
        moment = await e.now() + timedelta(days=1)
        options: dict[str, Any] = {"queue": "q", "priority": -2, "partition_key": "p", "schedule_at": moment}
        one = Start(Kid.grown, {"n": 1}, unique_key=b"u", unique_scope=["runnable", "done"], **options)
        handle = await spawned(e, parent(lambda: [one, Start(Kid.k, {"n": 2}, delay=HOUR)]))
        first, second = await e.children(handle)
        assert (first["fsm"], first["fsm_version"], first["step"], first["state"]) == ("Kid", 1, "grown", '{"n": 1}')
        assert (first["queue"], first["priority"], first["partition_key"]) == ("q", -2, "p")
        assert (first["unique_key"], first["unique_scope"]) == (b"u", ["runnable", "done"])
        assert first["eligible_at"] == moment
        assert HOUR <= second["eligible_at"] - second["inserted_at"] < HOUR + MOMENT
        assert (second["queue"], second["step"]) == ("default", "k")


async def test_every_child_carries_its_parents_id(engine: Opening) -> None:
    """The engine stamps it, in the row and for the child's own steps."""
    async with engine() as e:
        kid = Kid(k=lambda k, s, c: Done(c.parent_id))
        play = parent(lambda: [Start(Kid.k, {}) for _ in range(3)], b=lambda p, s, c: Done(c.results(Kid.k)))
        async with e.worker(play, kid):
            handle = await e.start()
            assert await finished(handle) == [handle.id] * 3
        assert len(await e.children(handle)) == 3
        assert (await e.row(handle))["parent_id"] is None


async def test_the_parent_goes_on_at_the_next_step_and_never_spawns_again(engine: Opening) -> None:
    """The step that spawned does not run a second time, not even after a crash behind the barrier."""
    async with engine() as e:
        play = parent(lambda: aside(2))
        handle = await spawned(e, play)
        async with e.worker(Kid(k=lambda k, s, c: Done()), queues={"aside": 2}):
            await e.until(StepCommitted, machine="Kid", times=2)
        (claim,) = await e.claim(lease=0.0)
        assert (claim.step, claim.state) == ("b", '{"spawned": true}')
        await e.reap()
        async with e.worker(play):
            assert await finished(handle) == ["done", "done"]
        assert [visit.step for visit in play.script.visits] == ["a", "b"]
        assert len(await e.children(handle)) == 2


async def test_spawning_and_parking_are_one_commit(engine: Opening) -> None:
    """Children and the parked parent appear together, and the children are runnable from that moment."""
    async with engine() as e:
        handle = await spawned(e, parent(lambda: aside(3)))
        row, children = await e.row(handle), await e.children(handle)
        assert (row["status"], row["step"], row["children_pending"]) == ("awaiting_children", "b", 3)
        assert json.loads(row["state"]) == {"spawned": True}
        for child in children:
            assert (child["status"], child["inserted_at"]) == ("runnable", row["updated_at"])


async def test_a_batch_that_cannot_be_spawned_spawns_nothing(engine: Opening) -> None:
    """One child that cannot be stored is the parent's error, and its siblings are not made either."""
    async with engine() as e:
        play = parent(
            lambda: [Start(Kid.k, {}), Start(Kid.k, {"x": object()})],
            on_error=lambda p, s, c, error: Done(type(error).__name__),
        )
        async with e.worker(play):
            handle = await e.start()
            assert await finished(handle) == EncodeError.__name__
        assert await e.children(handle) == []


async def test_a_child_that_ends_at_once_finds_the_barrier(engine: Opening) -> None:
    """However quick the children are, no parent is left behind."""
    async with engine() as e:
        play, kid = parent(lambda: [Start(Kid.k, {}) for _ in range(2)]), Kid(k=lambda k, s, c: Done())
        async with e.worker(play, kid, queues={"default": 30}), e.worker(play, kid, queues={"default": 30}):
            handles = await e.app.insert_many([Start(Play.a, {}) for _ in range(60)])
            for handle in handles:
                assert await finished(handle) == ["done", "done"]


async def test_only_children_that_were_inserted_are_waited_for(engine: Opening) -> None:
    """A child whose key is taken, by a stranger or by a sibling, is dropped and not counted."""
    async with engine() as e:
        stranger = await e.app.insert(Kid.k, {}, unique_key="taken", queue="elsewhere")
        keys = ["taken", "free", "free", None]
        play = parent(lambda: [Start(Kid.k, {"n": n}, unique_key=key, queue="aside") for n, key in enumerate(keys)])
        handle = await spawned(e, play)
        assert (await e.row(handle))["children_pending"] == 2
        assert [json.loads(child["state"])["n"] for child in await e.children(handle)] == [1, 3]
        async with e.worker(play, Kid(k=lambda k, s, c: Done()), queues={"default": 1, "aside": 1}):
            assert await finished(handle) == ["done", "done"]
        assert (await e.row(stranger))["parent_id"] is None


@pytest.mark.parametrize("why", ["an empty list", "all duplicates"])
async def test_without_children_the_parent_goes_straight_on(engine: Opening, why: str) -> None:
    """Nothing was inserted, so the barrier is satisfied as it is made: the next step runs at once."""
    async with engine() as e:
        await e.app.insert(Kid.k, {}, unique_key="taken", queue="elsewhere")
        children = [] if why == "an empty list" else [Start(Kid.k, {}, unique_key="taken") for _ in range(2)]
        play = parent(lambda: children)
        async with e.worker(play):
            handle = await e.start()
            assert await finished(handle) == []
        assert [visit.step for visit in play.script.visits] == ["a", "b"]
        assert (await e.row(handle))["children_pending"] == 0


async def test_a_child_that_runs_again_joins_once(engine: Opening) -> None:
    """A child that crashes has not joined; it does when its end is committed, however often it had to run."""
    async with engine() as e:
        handle = await spawned(e, parent(lambda: aside(2)))
        for _ in range(3):
            assert len(await e.claim(lease=0.0, aside=2)) == 2
            await e.reap()
            assert (await e.row(handle))["children_pending"] == 2
        kid = Kid(k=lambda k, s, c: Retry(s) if c.attempt < 5 else Done())
        async with e.worker(kid, queues={"aside": 2}):
            await e.until(StepCommitted, machine="Kid", outcome="Done", times=2)
        row = await e.row(handle)
        assert (row["status"], row["children_pending"]) == ("runnable", 0)


async def test_only_an_end_releases_a_slot(engine: Opening) -> None:
    """A child that goes on to another step, replays or waits is still waited for."""
    async with engine() as e:
        handle = await spawned(e, parent(lambda: aside(3)))
        outcomes: list[Callable[[Kid], Outcome[Any]]] = [
            lambda k: Next(k.grown, {}, delay=HOUR),
            lambda k: Retry({}, delay=HOUR),
            lambda k: ScheduleChildren([Start(Kid.grown, {}, queue="elsewhere")], then=k.grown, state={}),
        ]
        async with e.worker(Kid(k=lambda k, s, c: outcomes[s["n"]](k)), queues={"aside": 3}):
            await e.until(StepCommitted, machine="Kid", times=3)
        row = await e.row(handle)
        assert (row["status"], row["children_pending"]) == ("awaiting_children", 3)


async def test_the_last_child_releases_the_parent(engine: Opening) -> None:
    """The decrement that reaches zero makes the parent runnable at its next step, due at that moment."""
    async with engine() as e:
        play = parent(lambda: aside(3))
        handle = await spawned(e, play)
        async with e.worker(Kid(k=lambda k, s, c: Done()), queues={"aside": 1}):
            await e.until(StepCommitted, machine="Kid", times=3)
        row = await e.row(handle)
        assert (row["status"], row["step"], row["children_pending"], row["attempt"]) == ("runnable", "b", 0, 0)
        assert row["eligible_at"] == max(child["finished_at"] for child in await e.children(handle))


async def test_siblings_that_end_together_all_count(engine: Opening) -> None:
    """Concurrent ends wait for each other on the parent's row: none is lost, and the parent runs once."""
    async with engine() as e:
        play, kid = parent(lambda: [Start(Kid.k, {}) for _ in range(60)]), Kid(k=lambda k, s, c: Done())
        async with e.worker(play, kid, queues={"default": 20}), e.worker(play, kid, queues={"default": 20}):
            assert await finished(await e.start()) == ["done"] * 60
        assert len(play.script.of("b")) == 1


async def test_the_parent_sees_what_became_of_each_child(engine: Opening) -> None:
    """Per child: id, machine, status, result and last error, in the order in which they were started."""
    async with engine() as e:
        kid = Kid(k=lambda k, s, c: Fail("no stock") if s["n"] == 1 else Done({"sum": s["n"]}))
        play = parent(lambda: [Start(Kid.k, {"n": n}) for n in range(3)])
        async with e.worker(play, kid):
            handle = await e.start()
            await finished(handle)
        children = play.script.of("b")[0].ctx.children
        assert ids(children) == [row["id"] for row in await e.children(handle)]  # type: ignore[arg-type]
        assert {(child.machine, child.version) for child in children} == {("Kid", 1)}
        assert [child.status for child in children] == [Status.DONE, Status.FAILED, Status.DONE]
        assert [child.result for child in children] == [{"sum": 0}, None, {"sum": 2}]
        assert [child.last_error for child in children] == [None, "no stock", None]


async def test_the_parent_sees_the_state_in_which_each_child_ended(engine: Opening) -> None:
    """A child's last state is told as well, failed or not."""
    async with engine() as e:
        kid = Kid(k=lambda k, s, c: Next(k.grown, {"n": s["n"] + 10}), grown=lambda k, s, c: Fail("no stock"))
        play = parent(lambda: [Start(Kid.k, {"n": n}) for n in range(3)])
        async with e.worker(play, kid):
            await finished(await e.start())
        children: Any = play.script.of("b")[0].ctx.children
        assert [child.state for child in children] == [{"n": 10}, {"n": 11}, {"n": 12}]


async def test_children_are_not_deleted_on_reading(engine: Opening) -> None:
    """They stay as ended rows after their parent has ended, and whoever runs the step again reads the same."""
    async with engine() as e:
        play = parent(
            lambda: [Start(Kid.k, {"n": n}) for n in range(3)],
            b=lambda p, s, c: Retry(s) if c.attempt < 2 else Done(len(c.children)),
        )
        async with e.worker(play, Kid(k=lambda k, s, c: Done(s["n"]))):
            handle = await e.start()
            assert await finished(handle) == 3
        seen = [[(child.id, child.result) for child in visit.ctx.children] for visit in play.script.of("b")]
        assert seen[0] == seen[1] == seen[2]
        assert [row["status"] for row in await e.children(handle)] == ["done"] * 3


async def test_a_crash_behind_the_barrier_reads_the_same_children(engine: Opening) -> None:
    """The step that was reaped gets its children again."""
    async with engine() as e:
        play = parent(lambda: aside(2))
        handle = await spawned(e, play)
        async with e.worker(Kid(k=lambda k, s, c: Done(s["n"])), queues={"aside": 2}):
            await e.until(StepCommitted, machine="Kid", times=2)
        (first,) = await e.claim(lease=0.0)
        await e.reap()
        (second,) = await e.claim(lease=0.0)
        await e.reap()
        assert first.children == second.children
        assert [child.result for child in first.children] == [0, 1]
        async with e.worker(play):
            assert await finished(handle) == ["done", "done"]


async def test_a_failed_child_releases_its_slot_and_the_parent_decides(engine: Opening) -> None:
    """The barrier waits for ends, not for success: the engine passes no failure on by itself."""
    async with engine() as e:
        kid = Kid(k=lambda k, s, c: Fail("no stock"))
        tolerant = parent(lambda: [Start(Kid.k, {})])
        async with e.worker(tolerant, kid):
            assert await finished(await e.start()) == ["failed"]
        strict = parent(lambda: [Start(Kid.k, {})], b=lambda p, s, c: Fail(f"child: {c.children[0].last_error}"))
        async with e.worker(strict, kid):
            assert await failed(await e.start()) == "child: no stock"


async def test_a_hanging_child_hangs_its_parent(engine: Opening) -> None:
    """The join is all or nothing: most children ended is not enough, and nothing gives up by itself."""
    async with engine() as e:
        gate = Gate()

        async def body(_kid: Kid, state: State, _ctx: Context) -> Outcome[Any]:
            if state["n"] == 0:
                await gate.pass_through()
            return Done()

        async with e.worker(parent(lambda: [Start(Kid.k, {"n": n}) for n in range(5)]), Kid(k=body)):
            handle = await e.start()
            await gate.arrival()
            await e.until(StepCommitted, machine="Kid", times=4)
            row = await e.row(handle)
            assert (row["status"], row["children_pending"], row["await_deadline"]) == ("awaiting_children", 1, None)
            gate.opened.set()
            await finished(handle)


async def test_children_may_have_children(engine: Opening) -> None:
    """Each level is a barrier of its own."""
    async with engine() as e:
        depth = 3

        def descend(play: Play, state: State, _ctx: Context) -> Outcome[Any]:
            if state["depth"] == depth:
                return Done(1)
            below = [Start(Play.a, {"depth": state["depth"] + 1}) for _ in range(2)]
            return ScheduleChildren(below, then=play.b, state=state)

        play = Play(a=descend, b=lambda p, s, c: Done(1 + sum(c.results(Play.a))))
        async with e.worker(play):
            assert await finished(await e.start({"depth": 0})) == 2 ** (depth + 1) - 1


async def test_a_parent_sees_the_children_of_its_last_round(engine: Opening) -> None:
    """A machine may fan out again and again; each time it is shown those that it has just waited for."""
    async with engine() as e:

        def again(play: Play, state: State, ctx: Context) -> Outcome[Any]:
            totals = [*state["totals"], ctx.results(Kid.k)]
            if len(totals) == 3:
                return Done(totals)
            children = [Start(Kid.k, {"n": 10 * len(totals) + n}) for n in range(len(totals))]
            return ScheduleChildren(children, then=play.a, state={"totals": totals})

        async with e.worker(Play(a=again), Kid(k=lambda k, s, c: Done(s["n"]))):
            handle = await e.start({"totals": []})
            assert await finished(handle) == [[], [10], [20, 21]]


async def test_steps_beyond_the_join_are_not_shown_the_children(engine: Opening) -> None:
    """Children belong to the step that waited for them; a later step has what that step put in the state."""
    async with engine() as e:
        play = parent(
            lambda: [Start(Kid.k, {})],
            b=lambda p, s, c: Next(p.c, {"n": len(c.children)}),
            c=lambda p, s, c: Done([s["n"], len(c.children)]),
        )
        for steps in (0, 32):
            async with e.worker(play, Kid(k=lambda k, s, c: Done()), run_ahead_steps=steps):
                assert await finished(await e.start()) == [1, 0]


async def test_a_large_family_joins(engine: Opening) -> None:
    """Hundreds of children in one outcome, ended by several workers in batches, release their parent once."""
    async with engine() as e:
        play = parent(lambda: [Start(Kid.k, {"n": n}) for n in range(800)], b=lambda p, s, c: Done(len(c.children)))
        kid = Kid(k=lambda k, s, c: Done(s["n"]) if s["n"] % 7 else Fail("seven"))
        async with e.worker(play, kid, queues={"default": 100}):
            handle = await e.start()
            async with asyncio.timeout(30):
                assert await finished(handle) == 800
