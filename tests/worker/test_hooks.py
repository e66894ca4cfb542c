"""`on_error` and `on_cancel`: a `def` runs in a thread of the worker, and neither runs for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.engine import Opening, seconds, soon

from gen_durable import (
    Cancelled,
    Context,
    Done,
    Failed,
    Finished,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Start,
    job,
    step,
)

ran_in: list[str] = []
entered = threading.Event()
release = threading.Event()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    ran_in.clear()
    entered.clear()
    release.clear()
    yield
    release.set()


def note_thread() -> None:
    ran_in.append(threading.current_thread().name)


def wait_for_release() -> None:
    note_thread()
    entered.set()
    assert release.wait(30)


class Blocking(Machine):
    """Its hooks block their thread until the test lets them go on."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    @step
    async def work(self, state: str, ctx: Context) -> Outcome[str]:
        raise ValueError("no")

    @step
    async def long(self, state: str, ctx: Context) -> Outcome[str]:
        self.began.set()
        await asyncio.sleep(3600)
        return Done("never")

    @step
    async def end(self, state: str, ctx: Context) -> Outcome[str]:
        return Done(f"ended with {state}")

    def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        wait_for_release()
        return Next(self.end, f"{state} after {error}")

    def on_cancel(self, state: str, ctx: Context, reason: str) -> None:
        wait_for_release()


@job
async def quick() -> str:
    return "quick"


async def test_a_def_on_error_does_not_block_the_event_loop(engine: Opening) -> None:
    """Other steps of the worker run meanwhile."""
    async with engine() as e, e.worker(Blocking(), quick):
        handle = await e.app.insert(Blocking.work, "x")
        await soon(asyncio.to_thread(entered.wait))
        other = await e.app.insert(quick)
        assert await e.end(other) == Finished(other.id, "quick")
        release.set()
        assert await e.end(handle) == Finished(handle.id, "ended with x after no")
        assert ran_in == ["gen_durable step"]


async def test_a_def_on_cancel_does_not_block_the_event_loop(engine: Opening) -> None:
    machine = Blocking()
    async with engine() as e, e.worker(machine, quick, cancel_timeout=seconds(30)):
        handle = await e.app.insert(Blocking.long, "x")
        await soon(machine.began.wait())
        await e.app.cancel(handle, reason="no")
        await soon(asyncio.to_thread(entered.wait))
        other = await e.app.insert(quick)
        assert await e.end(other) == Finished(other.id, "quick")
        release.set()
        assert await e.end(handle) == Cancelled(handle.id, "no")
        assert ran_in == ["gen_durable step"]


async def test_a_cancel_waits_for_a_def_on_error(engine: Opening) -> None:
    """A thread cannot be stopped: its answer is discarded, and only then `on_cancel` runs."""
    async with engine() as e, e.worker(Blocking(), cancel_timeout=seconds(30)):
        handle = await e.app.insert(Blocking.work, "x")
        await soon(asyncio.to_thread(entered.wait))
        await e.app.cancel(handle, reason="no")
        other = await e.app.insert(Blocking.end, "another")
        assert await e.end(other) == Finished(other.id, "ended with another")
        assert ran_in == ["gen_durable step"], "on_cancel must not run beside on_error"
        release.set()
        assert await e.end(handle) == Cancelled(handle.id, "no")
        assert len(ran_in) == 2


class Late(Machine, on_error_timeout=0.1):
    """Its `on_error` takes too long, in a thread or on the event loop."""

    @step
    async def in_thread(self, state: str, ctx: Context) -> Outcome[str]:
        raise ValueError("no")

    def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        wait_for_release()
        return Done("late")


class LateOnLoop(Machine, on_error_timeout=0.1):
    @step
    async def work(self, state: str, ctx: Context) -> Outcome[str]:
        raise ValueError("no")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        if state == "own":
            raise TimeoutError("of its own")
        await asyncio.sleep(3600)
        return Done("late")


@pytest.mark.parametrize("start", [Late.in_thread, LateOnLoop.work])
async def test_on_error_has_a_timeout(engine: Opening, start: Any) -> None:
    """The instance fails with both errors."""
    async with engine() as e, e.worker(Late(), LateOnLoop()):
        handle = await e.app.insert(start, "x")
        second = "StepTimeout: it took longer than its timeout of 0.1 s"
        assert await e.end(handle) == Failed(handle.id, f"ValueError: no (and then on_error raised {second})")


async def test_a_timeout_of_on_error_itself(engine: Opening) -> None:
    """A `TimeoutError` that its own code raised is not taken for its timeout."""
    async with engine() as e, e.worker(LateOnLoop()):
        handle = await e.app.insert(LateOnLoop.work, "own")
        second = "TimeoutError: of its own"
        assert await e.end(handle) == Failed(handle.id, f"ValueError: no (and then on_error raised {second})")


class LateCancel(Machine):
    def __init__(self) -> None:
        self.began = asyncio.Event()

    @step
    async def work(self, state: str, ctx: Context) -> Outcome[str]:
        self.began.set()
        await asyncio.sleep(3600)
        return Done("never")

    def on_cancel(self, state: str, ctx: Context, reason: str) -> None:
        wait_for_release()


async def test_a_def_on_cancel_has_a_timeout(engine: Opening) -> None:
    machine = LateCancel()
    async with engine() as e, e.worker(machine, cancel_timeout=seconds(0.1)):
        handle = await e.app.insert(LateCancel.work, "x")
        await soon(machine.began.wait())
        await e.app.cancel(handle, reason="no")
        expected = "no (and then on_cancel raised StepTimeout: it took longer than 0.1 s)"
        assert await e.end(handle) == Cancelled(handle.id, expected)


class Several(Machine):
    """Its `on_error` starts children from a generator, which belongs to its thread, and uses the journal."""

    @step
    async def work(self, count: int, ctx: Context) -> Outcome[int]:
        raise ValueError("no")

    @step
    async def collect(self, count: int, ctx: Context) -> Outcome[int]:
        return Done(len(ctx.results(quick)))

    def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
        def children() -> Iterator[Start[str]]:
            for _ in range(state):
                note_thread()
                yield Start(quick)

        ctx.sync.checkpoint("on_error was here")
        return ScheduleChildren(children(), then=self.collect, state=state)


async def test_a_generator_of_on_error_is_consumed_in_its_thread(engine: Opening) -> None:
    """Also the part that is encoded later, on the event loop, because there are many."""
    async with engine() as e, e.worker(Several(), quick):
        handle = await e.app.insert(Several.work, 1100)
        assert await e.end(handle) == Finished(handle.id, 1100)
        assert set(ran_in) == {"gen_durable step"}


class Wrapped(Machine):
    """Its `on_error` is a plain function that returns a coroutine."""

    @step
    async def work(self, state: str, ctx: Context) -> Outcome[str]:
        raise ValueError("no")

    def on_error(self, state: str, ctx: Context, error: Exception) -> Any:
        return self._handle(state)

    async def _handle(self, state: str) -> Outcome[str]:
        note_thread()
        return Done(f"handled {state}")


async def test_a_coroutine_of_a_def_on_error_runs_on_the_event_loop(engine: Opening) -> None:
    async with engine() as e, e.worker(Wrapped()):
        handle = await e.app.insert(Wrapped.work, "x")
        assert await e.end(handle) == Finished(handle.id, "handled x")
        assert ran_in == [threading.current_thread().name]
