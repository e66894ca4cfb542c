"""Calls that come while others are under way share the next transaction; each gets its own answer or error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gen_durable.core import call_grouper
from gen_durable.core.call_grouper import CallGrouper
from gen_durable.errors import DatabaseUnavailable, InputError


class Doubler(CallGrouper[int, int]):
    """Answers a number with its double: refuses negative ones, 13 is locked, 99 loses its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[list[int]] = []
        self.alone: list[int] = []
        self.go_on = asyncio.Event()
        self.unlocked = asyncio.Event()

    async def run_together(self, calls: Sequence[int]) -> list[int | None]:
        self.groups.append(list(calls))
        await self.go_on.wait()
        if any(call < 0 for call in calls):
            raise InputError("negative")
        if 99 in calls:
            raise DatabaseUnavailable("lost; it may or may not have been executed")
        return [None if call == 13 else call * 2 for call in calls]

    async def run_alone(self, call: int) -> int:
        self.alone.append(call)
        if call < 0:
            raise InputError(f"negative: {call}")
        if call == 13:
            await self.unlocked.wait()
        return call * 2

    def may_run_twice(self, call: int) -> bool:
        return call % 2 == 0


async def start(doubler: Doubler, *calls: int) -> list[asyncio.Task[int]]:
    """Start calls in this order; the first is under way alone."""
    tasks = []
    for call in calls:
        tasks.append(asyncio.create_task(doubler.run(call)))
        await asyncio.sleep(0)
    return tasks


async def test_calls_behind_the_first_go_together() -> None:
    doubler = Doubler()
    tasks = await start(doubler, 1, 2, 3)
    doubler.go_on.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6]
    assert doubler.groups == [[1], [2, 3]]
    assert await doubler.run(4) == 8
    assert doubler.groups == [[1], [2, 3], [4]], "a call that nothing is under way before runs at once"
    assert doubler.alone == []


async def test_a_refused_call_fails_alone() -> None:
    doubler = Doubler()
    tasks = await start(doubler, 1, 2, -3, 4, -5)
    doubler.go_on.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["2", "4", "negative: -3", "8", "negative: -5"]


async def test_the_error_of_a_first_call_is_its_own() -> None:
    doubler = Doubler()
    tasks = await start(doubler, -1, 2)
    doubler.go_on.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["negative", "4"]


@pytest.mark.parametrize("calls", [(13, 2, 3), (1, 13, 3)], ids=["the first", "another"])
async def test_a_call_that_waits_for_a_lock_holds_up_no_other(calls: tuple[int, ...]) -> None:
    doubler = Doubler()
    tasks = await start(doubler, *calls)
    doubler.go_on.set()
    locked = tasks.pop(calls.index(13))
    assert await asyncio.gather(*tasks) == [call * 2 for call in calls if call != 13]
    assert await doubler.run(5) == 10
    assert not locked.done()
    doubler.unlocked.set()
    assert await locked == 26


async def test_after_a_lost_answer_only_what_may_run_twice_is_repeated() -> None:
    doubler = Doubler()
    tasks = await start(doubler, 1, 99, 2, 3)
    doubler.go_on.set()
    one, lost, repeated, unsure = await asyncio.gather(*tasks, return_exceptions=True)
    assert (one, repeated) == (2, 4)
    assert doubler.alone == [2]
    assert isinstance(lost, DatabaseUnavailable)
    assert isinstance(unsure, DatabaseUnavailable)


async def test_a_caller_that_gives_up_is_not_sent() -> None:
    doubler = Doubler()
    tasks = await start(doubler, 1, 2, 3)
    tasks[1].cancel()
    await asyncio.sleep(0)
    doubler.go_on.set()
    assert await asyncio.gather(*tasks[::2]) == [2, 6]
    assert doubler.groups == [[1], [3]]


async def test_a_first_caller_that_gives_up_does_not_stop_the_others() -> None:
    doubler = Doubler()
    tasks = await start(doubler, 1, 2, 3)
    tasks[0].cancel()
    await asyncio.sleep(0)
    doubler.go_on.set()
    assert await asyncio.gather(*tasks[1:]) == [4, 6]


async def test_a_cancelled_task_of_the_library_is_an_error_for_its_callers() -> None:
    """Code that cancels every task of its loop does not leave callers waiting."""
    doubler = Doubler()
    tasks = await start(doubler, 1, 2, 3)
    tasks[0].cancel()
    await asyncio.sleep(0)
    (group,) = doubler._tasks
    await asyncio.sleep(0)
    group.cancel()
    answers = await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseUnavailable] * 2
    doubler.go_on.set()
    assert await doubler.run(4) == 8


async def test_a_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_grouper, "MAX_GROUP", 2)
    doubler = Doubler()
    tasks = await start(doubler, 1, 2, 3, 4)
    doubler.go_on.set()
    assert await asyncio.gather(*tasks) == [2, 4, 6, 8]
    assert doubler.groups == [[1], [2, 3], [4]]


async def test_close_waits_for_calls() -> None:
    doubler = Doubler()
    tasks = await start(doubler, 1, 13)
    doubler.go_on.set()
    await tasks[0]
    await asyncio.sleep(0)
    closing = asyncio.create_task(doubler.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    doubler.unlocked.set()
    await closing
    assert await tasks[1] == 26
