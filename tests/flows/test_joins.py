"""Joins that do not wait for all: through a worker, as a user sees them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine import Opening, engine, seconds

from gen_durable import (
    Cancelled,
    Context,
    Done,
    Fail,
    Finished,
    Machine,
    Outcome,
    ScheduleChildren,
    Start,
    step,
)
from gen_durable.errors import InputError, InvalidOutcome
from gen_durable.outcomes import OnChildFailure

__all__ = ["engine"]


class Runner(Machine):
    """Runs for so many seconds; a negative number fails at once."""

    @step
    async def run(self, pace: float, ctx: Context) -> Outcome[float]:
        if pace < 0:
            return Fail("fell")
        await asyncio.sleep(pace)
        return Done(pace)


class Race(Machine):
    """Starts runners, and tells how each stands when it goes on."""

    def __init__(self, **barrier: Any) -> None:
        self.barrier = barrier

    @step
    async def start(self, paces: list[float], ctx: Context) -> Outcome[list[str]]:
        runners = [Start(Runner.run, pace) for pace in paces]
        return ScheduleChildren(runners, then=self.finish, state=paces, **self.barrier)

    @step
    async def finish(self, paces: list[float], ctx: Context) -> Outcome[list[str]]:
        return Done([child.status.value for child in ctx.children])


async def race(engine: Opening, paces: list[float], **barrier: Any) -> tuple[list[str], list[str]]:
    """How the runners stood when the race went on, and a little later."""
    async with engine() as e, e.worker(Race(**barrier), Runner(), queues={"default": 50}):
        handle = await e.app.insert(Race.start, paces)
        ending = await e.end(handle)
        assert isinstance(ending, Finished)

        async def over() -> bool:
            return await e.rows.count("status = 'executing'") == 0

        try:
            async with asyncio.timeout(0.4):
                await e.rows.when(over)
        except TimeoutError:
            pass
        rows = await e.rows.fetch("select status::text from @.instances where parent_id is not null order by id")
        late = [row[0] for row in rows]
        for row in await e.rows.fetch("select id from @.instances where finished_at is null"):
            await e.app.cancel(row["id"])
        await e.rows.when(over)
        return ending.result, late


async def test_any(engine: Opening) -> None:
    shown, late = await race(engine, [60, 0.05, -1], join="any")
    assert shown == ["executing", "done", "failed"]
    assert late == ["executing", "done", "failed"]


async def test_any_and_the_rest_is_cancelled(engine: Opening) -> None:
    shown, late = await race(engine, [60, 0.05, 60], join="any", cancel_rest=True)
    assert shown[1] == "done"
    assert late == ["cancelled", "done", "cancelled"]


async def test_two_of_four(engine: Opening) -> None:
    shown, _ = await race(engine, [0.05, -1, 0.1, 60], join=2)
    assert shown == ["done", "failed", "done", "executing"]


async def test_two_that_cannot_be_had(engine: Opening) -> None:
    shown, _ = await race(engine, [60, -1, -1], join=2)
    assert shown[1:] == ["failed", "failed"]


async def test_a_timeout(engine: Opening) -> None:
    shown, late = await race(engine, [60, 0], timeout=seconds(0.2))
    assert shown == late == ["executing", "done"]


async def test_a_timeout_that_cancels_the_rest(engine: Opening) -> None:
    shown, late = await race(engine, [60, 0], timeout=seconds(0.2), cancel_rest=True)
    assert shown[1] == "done"
    assert late == ["cancelled", "done"]


@pytest.mark.parametrize(("how", "rest"), [("wake", "executing"), ("cancel_rest", "cancelled")])
async def test_a_failure(engine: Opening, how: OnChildFailure, rest: str) -> None:
    shown, late = await race(engine, [60, -1], on_child_failure=how)
    assert shown[1] == "failed"
    assert late == [rest, "failed"]


async def test_a_failure_that_is_waited_for(engine: Opening) -> None:
    shown, _ = await race(engine, [0.1, -1])
    assert shown == ["done", "failed"]


async def test_a_cancelled_child_is_shown_as_such(engine: Opening) -> None:
    async with engine() as e, e.worker(Race(), Runner(), queues={"default": 50}):
        handle = await e.app.insert(Race.start, [60, 0])
        await e.rows.until(handle, status="awaiting_children")
        child = int(await e.rows.value("select min(id) from @.instances where parent_id is not null"))
        await e.app.cancel(child, reason="enough")
        assert await e.end(handle) == Finished(handle.id, ["cancelled", "done"])
        assert await e.end(e.app.handle(child, Runner.run)) == Cancelled(child, "enough")


@pytest.mark.parametrize(
    ("barrier", "words"),
    [
        ({"join": 0}, "'all', 'any' or a number"),
        ({"join": "some"}, "'all', 'any' or a number"),
        ({"join": True}, "'all', 'any' or a number"),
        ({"join": 3}, "can never be reached by 2"),
        ({"on_child_failure": "cry"}, "'wait', 'wake' or 'cancel_rest'"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
    ],
)
def test_what_cannot_be_meant_is_refused(barrier: Any, words: str) -> None:
    with pytest.raises((InvalidOutcome, InputError), match=words):
        ScheduleChildren([Start(Runner.run, 1.0)] * 2, then=Race().finish, state=[], **barrier)
