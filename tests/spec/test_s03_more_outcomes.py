"""Section 3, continued: who may return an outcome, and what may be in one."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.spec import HOUR, MOMENT, Kid, Opening, Play, State, failed, finished, go

from gen_durable import Await, Context, Done, Fail, Next, Outcome, Retry, ScheduleChildren, Start
from gen_durable.errors import EncodeError, InvalidOutcome, TooLarge
from gen_durable.telemetry import StepCommitted


def broken(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
    raise ValueError("broken")


OUTCOMES: dict[str, tuple[Callable[[Play], Outcome[Any]], dict[str, Any]]] = {
    "Next": (lambda p: Next(p.b, {"n": 1}, queue="aside"), {"status": "runnable", "step": "b", "attempt": 0}),
    "Retry": (lambda p: Retry({"n": 1}, delay=HOUR), {"status": "runnable", "step": "a", "attempt": 1}),
    "Await": (lambda p: Await(go, then=p.b, state={"n": 1}), {"status": "awaiting_signal", "awaits": ["go"]}),
    "ScheduleChildren": (
        lambda p: ScheduleChildren([Start(Kid.k, {}, queue="aside")], then=p.b, state={"n": 1}),
        {"status": "awaiting_children", "step": "b", "children_pending": 1},
    ),
    "Done": (lambda p: Done({"n": 1}), {"status": "done", "step": "a"}),
    "Fail": (lambda p: Fail("given up"), {"status": "failed", "last_error": "given up"}),
}


@pytest.mark.parametrize("kind", OUTCOMES)
async def test_the_error_handler_may_return_any_outcome(engine: Opening, kind: str) -> None:
    """What `on_error` returns is committed just as if the step itself had returned it."""
    make, expected = OUTCOMES[kind]
    async with engine() as e:
        async with e.worker(Play(a=broken, on_error=lambda p, s, c, error: make(p))):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id, outcome=kind)
        row = await e.row(handle)
        assert {column: row[column] for column in expected} == expected
        if kind not in ("Done", "Fail"):
            assert json.loads(row["state"]) == {"n": 1}


async def test_the_user_computes_the_delay_from_the_attempt(engine: Opening) -> None:
    """The attempt is told to the step and to `on_error`, who compute the delay, and the engine takes it as it is."""
    async with engine() as e:
        told: list[int] = []

        def later(_play: Play, state: State, ctx: Context, _error: Exception) -> Outcome[Any]:
            told.append(ctx.attempt)
            return Retry(state, delay=timedelta(milliseconds=20 * 2**ctx.attempt))

        waited: list[timedelta] = []

        async def body(_play: Play, state: State, ctx: Context) -> Outcome[Any]:
            row = await e.row(ctx.id)
            waited.append(row["updated_at"] - row["eligible_at"])
            return broken(_play, state, ctx) if ctx.attempt < 3 else Done(ctx.attempt)

        play = Play(a=body, on_error=later)
        async with e.worker(play):
            assert await finished(await e.start()) == 3
        assert told == [0, 1, 2]
        assert all(lateness >= timedelta(0) for lateness in waited), "a step was claimed before it was due"


UNSTORABLE: dict[str, tuple[object, type[Exception]]] = {
    "an object": ({"x": object()}, EncodeError),
    "a NUL character": ({"x": "a\0b"}, EncodeError),
    "NaN": ({"x": float("nan")}, EncodeError),
    "a lone surrogate": ({"x": "\ud800"}, EncodeError),
    "too large": ({"x": "x" * 1_100_000}, TooLarge),
}


def storing(play: Play, how: str, value: Any) -> Outcome[Any]:
    """An outcome with a value in one of the places that a value can be in."""
    ways: dict[str, Callable[[], Outcome[Any]]] = {
        "Next": lambda: Next(play.b, value),
        "Retry": lambda: Retry(value),
        "Await": lambda: Await(go, state=value),
        "ScheduleChildren": lambda: ScheduleChildren([], then=play.b, state=value),
        "child": lambda: ScheduleChildren([Start(Kid.k, {}), Start(Kid.k, value)], then=play.b, state={}),
    }
    return ways[how]()


PLACES = ["Next", "Retry", "Await", "ScheduleChildren", "child"]


@pytest.mark.parametrize("how", PLACES)
async def test_a_state_that_cannot_be_stored_is_the_steps_error(engine: Opening, how: str) -> None:
    """What a step returns is looked at while its error handler can still answer; it never becomes a crash."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: storing(p, how, UNSTORABLE[s["what"]][0]), on_error=lambda p, s, c, error: Done("handled")
        )
        async with e.worker(play):
            for what, (_, expected) in UNSTORABLE.items():
                handle = await e.start({"what": what})
                assert await finished(handle) == "handled"
                state, _, raised = play.script.errors[-1]
                assert isinstance(raised, expected), (what, raised)
                assert state == {"what": what}
                assert await e.children(handle) == []
                assert (await e.row(handle))["crashes"] == 0


@pytest.mark.parametrize("how", PLACES)
async def test_a_state_that_the_next_step_cannot_read_is_the_steps_error(engine: Opening, how: str) -> None:
    """A state that does not fit the step it is for is refused when it is returned, not found when nobody can help."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: storing(p, how, "text"), on_error=lambda p, s, c, error: Done("handled"))
        async with e.worker(play, Kid()):
            handle = await e.start()
            stopped = await e.until(StepCommitted, id=handle.id)
        assert stopped.outcome == "Done", f"committed as {stopped.outcome}"
        assert isinstance(play.script.errors[0][2], EncodeError)


@pytest.mark.parametrize("result", [object(), float("inf"), "\0"], ids=["an object", "infinity", "a NUL character"])
async def test_a_result_that_cannot_be_stored_is_the_steps_error(engine: Opening, result: object) -> None:
    """The same holds for what `Done` carries."""
    play = Play(a=lambda p, s, c: Done(result), on_error=lambda p, s, c, error: Done("handled"))
    async with engine() as e, e.worker(play):
        assert await finished(await e.start()) == "handled"


async def test_a_step_of_another_machine_is_the_steps_error(engine: Opening) -> None:
    """An instance cannot go on in a machine that it is not of."""
    async with engine() as e:
        kid = Kid()
        play = Play(a=lambda p, s, c: Next(kid.k, s))
        async with e.worker(play):
            assert "InvalidOutcome" in await failed(await e.start())
        assert isinstance(play.script.errors[0][2], InvalidOutcome)


async def test_a_bad_outcome_does_not_harm_its_batch_mates(engine: Opening) -> None:
    """Outcomes are committed in groups, but each stands for itself, also one that only the database can refuse."""
    async with engine() as e:
        # A rule that only the database knows: whatever breaks it is found at the commit, in a batch with others.
        await e.fetch("alter table @.instances add constraint no_13 check (coalesce(state ->> 'n', '') <> '13')")

        def body(play: Play, state: State, _ctx: Context) -> Outcome[Any]:
            return Next(play.b, {"n": str(state["i"])})

        play = Play(a=body, b=lambda p, s, c: Done(s["n"]))
        async with e.worker(play, queues={"default": 50}):
            starts = [Start(Play.a, {"i": i}) for i in range(40)]
            handles = await e.app.insert_many(starts)
            for i, handle in enumerate(handles):
                if i == 13:
                    assert "OutcomeRejected" in await failed(handle)
                else:
                    assert await finished(handle) == str(i)
        assert [state for state, _, _ in play.script.errors] == [{"i": 13}]


async def test_next_takes_options_for_the_way_on(engine: Opening) -> None:
    """A transition can change the queue, the priority, the partition key, and be due later; else they stay."""
    async with engine() as e:
        changed = Next[Any](Play.b.__get__(Play()), {}, queue="q2", priority=-3, partition_key="k2", delay=HOUR)
        async with e.worker(Play(a=lambda p, s, c: changed)):
            handle = await e.start(partition_key="k1", priority=5)
            await e.until(StepCommitted, id=handle.id)
        row = await e.row(handle)
        assert (row["queue"], row["priority"], row["partition_key"]) == ("q2", -3, "k2")
        assert HOUR <= row["eligible_at"] - row["updated_at"] < HOUR + MOMENT
        async with e.worker(Play(a=lambda p, s, c: Next(p.b, {}, delay=HOUR))):
            handle = await e.start(partition_key="k1", priority=5)
            await e.until(StepCommitted, id=handle.id)
        row = await e.row(handle)
        assert (row["queue"], row["priority"], row["partition_key"]) == ("default", 5, "k1")
