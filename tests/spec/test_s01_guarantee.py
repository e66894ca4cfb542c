"""Section 1, the guarantee: an outcome is committed before anything proceeds from it, and a step runs at least once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.programs.doomed import Effects, Plan
from tests.support.spec import BRIEF, Dooming, Kid, Opening, Play, State, finished, go

from gen_durable import Await, Context, Done, Next, Outcome, ScheduleChildren, Start
from gen_durable.telemetry import StepCommitted


@pytest.mark.parametrize("run_ahead_steps", [0, 32], ids=["picked again", "run ahead"])
async def test_the_new_state_is_committed_before_the_next_step_runs(engine: Opening, run_ahead_steps: int) -> None:
    """Whoever reads the database while the next step runs finds that step and its new state there."""
    async with engine() as e:
        seen: list[tuple[str, Any, int]] = []

        async def look(_play: Play, _state: State, ctx: Context) -> Outcome[None]:
            row = await e.row(ctx.id)
            seen.append((row["step"], json.loads(row["state"]), row["seq"]))
            return Done()

        play = Play(a=lambda p, s, c: Next(p.b, {"n": s["n"] + 1}), b=lambda p, s, c: Next(p.c, {"n": 10}), c=look)
        async with e.worker(play, run_ahead_steps=run_ahead_steps):
            await finished(await e.start({"n": 1}))
        assert seen == [("c", {"n": 10}, 2)]
        assert [(v.step, v.state) for v in play.script.visits] == [("a", {"n": 1}), ("b", {"n": 2}), ("c", {"n": 10})]


async def test_the_result_is_committed_before_a_waiter_is_told(engine: Opening) -> None:
    """An end that `wait` reports can be read by everybody."""
    async with engine() as e, e.worker(Play(a=lambda p, s, c: Done(s["n"]))):
        for n in range(20):
            handle = await e.start({"n": n})
            assert await finished(handle) == n
            row = await e.row(handle)
            assert (row["status"], row["result"]) == ("done", str(n))


async def test_children_run_only_after_their_parents_outcome_is_committed(engine: Opening) -> None:
    """What a step causes elsewhere follows the commit as well: a child that runs finds its parent parked."""
    async with engine() as e:
        found: list[str] = []

        async def look(_kid: Kid, _state: State, ctx: Context) -> Outcome[None]:
            assert ctx.parent_id is not None
            found.append((await e.row(ctx.parent_id))["status"])
            return Done()

        play = Play(
            a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {}) for _ in range(5)], then=p.b, state=s),
            b=lambda p, s, c: Done(len(c.children)),
        )
        async with e.worker(play, Kid(k=look)):
            assert await finished(await e.start()) == 5
        assert found == ["awaiting_children"] * 5


async def test_a_step_that_died_before_its_commit_runs_again_from_scratch(engine: Opening, doomed: Dooming) -> None:
    """A worker killed in the middle of a step leaves nothing of it in the row: the step begins anew, same state."""
    async with engine() as e, doomed() as process:
        handle = await e.app.insert(Effects.prepare, Plan(dies_in="prepare"))
        await process.die()
        assert (await e.row(handle))["status"] == "executing"
        async with e.worker(Effects(process.journal), **BRIEF):
            assert await finished(handle) == "attempt 0"
        assert process.effects() == [
            "prepare begins, prepared False, attempt 0",
            "prepare begins, prepared False, attempt 1",
            "prepare ends",
            "act begins, prepared True, attempt 0",
            "act ends",
        ]


async def test_the_whole_step_runs_again_and_no_step_before_it(engine: Opening, doomed: Dooming) -> None:
    """The unit of re-execution is one step: its effects happen twice, those of a committed step do not."""
    async with engine() as e, doomed() as process:
        handle = await e.app.insert(Effects.prepare, Plan(dies_in="act"))
        await process.die()
        async with e.worker(Effects(process.journal), **BRIEF):
            assert await finished(handle) == "attempt 1"
        assert process.effects() == [
            "prepare begins, prepared False, attempt 0",
            "prepare ends",
            "act begins, prepared True, attempt 0",
            "act begins, prepared True, attempt 1",
            "act ends",
        ]


async def test_delivery_is_not_exactly_once(engine: Opening) -> None:
    """A signal that is sent twice without a dedup key comes twice: the engine does not guess that it was meant once."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Await(go, then=p.b, state=s), b=lambda p, s, c: Done(len(c.take_all(go))))
        async with e.worker(play):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id, outcome="Await")
        assert [await handle.signal(go, {"n": 1}) for _ in range(2)] == [True, True]
        async with e.worker(play):
            assert await finished(handle) == 2


async def test_a_step_that_runs_ahead_gets_what_was_committed(engine: Opening) -> None:
    """The next step works on the committed JSON, not on objects that the last step still has in its hands."""
    async with engine() as e:
        shared: list[State] = []

        def first(play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            state: State = {"pair": (1, 2)}
            shared.append(state)
            return Next(play.b, state)

        play = Play(a=first, b=lambda p, s, c: Done(s))
        async with e.worker(play):
            assert await finished(await e.start()) == {"pair": [1, 2]}
        (visit,) = play.script.of("b")
        assert visit.state == {"pair": [1, 2]}
        assert visit.state is not shared[0]
