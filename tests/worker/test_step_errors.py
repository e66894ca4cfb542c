"""Whatever a step does wrong is that step's error: it reaches `on_error`, and the worker goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from tests.support.engine import BRIEF, Opening, seconds

from gen_durable import (
    Context,
    Done,
    Fail,
    Failed,
    Finished,
    Machine,
    Next,
    Outcome,
    Retry,
    Start,
    step,
)
from gen_durable.errors import GenDurableError


class Other(Machine):
    @step
    async def elsewhere(self, _: str, ctx: Context) -> Outcome[str]:
        return Done("elsewhere")


class Hostile(BaseException):
    """Not even an Exception."""


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Endless(Exception):
    def __str__(self) -> str:
        return str(self)


class ExitsInStr(Exception):
    """Ends the process that formats it."""

    def __str__(self) -> str:
        raise SystemExit(7)

    __repr__ = __str__


class InterruptsInStr(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class EndsIteration(StopIteration):
    def __repr__(self) -> str:
        raise SystemExit(7)

    __str__ = __repr__


def boom(error: BaseException) -> Any:
    raise error


def cancel_self() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


DEEDS: dict[str, Callable[[], Any]] = {
    "exits": lambda: sys.exit(3),
    "interrupts": lambda: boom(KeyboardInterrupt()),
    "generator exit": lambda: boom(GeneratorExit()),
    "hostile": lambda: boom(Hostile("grr")),
    "cancelled": lambda: boom(asyncio.CancelledError()),
    "stop iteration": lambda: next(iter([])),
    "stop async iteration": lambda: boom(StopAsyncIteration()),
    "mute": lambda: boom(Mute()),
    "exits in str": lambda: boom(ExitsInStr()),
    "interrupts in str": lambda: boom(InterruptsInStr()),
    "recurses in str": lambda: boom(Endless()),
    "stop iteration that exits in repr": lambda: boom(EndsIteration()),
    "group": lambda: boom(ExceptionGroup("several", [ValueError("a")])),
    "returns None": lambda: None,
    "returns a state": lambda: {"x": 1},
    "returns a class": lambda: Done,
    "returns a job's result": lambda: 42,
    "unencodable": lambda: Done(object()),
    "nul": lambda: Done("a\0b"),
    "not a number": lambda: Done(float("nan")),
    "huge": lambda: Done("x" * 2_000_000),
    "step of another machine": lambda: Next(Other().elsewhere, "x"),
    "wrong state for the next step": lambda: Next(Wild().fine, 5),  # type: ignore[arg-type]
    "no step": lambda: Next(len, "x"),  # type: ignore[arg-type]
    "negative delay": lambda: Retry("x", delay=seconds(-1)),
}


class Wild(Machine):
    """Does what it is told; its `on_error` ends the instance with what it was told."""

    @step
    async def on_loop(self, deed: str, ctx: Context) -> Outcome[str]:
        return DEEDS[deed]()  # type: ignore[no-any-return]

    @step
    def in_thread(self, deed: str, ctx: Context) -> Outcome[str]:
        return DEEDS[deed]()  # type: ignore[no-any-return]

    @step
    async def fine(self, word: str, ctx: Context) -> Outcome[str]:
        return Done(word)

    @step
    async def cancels_itself(self, deed: str, ctx: Context) -> Outcome[str]:
        cancel_self()
        if deed == "and awaits":
            await asyncio.sleep(0)
        if deed == "and goes on":
            return Next(self.fine, "went on")
        return Done("ended")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        assert isinstance(error, Exception)
        return Done(f"handled {type(error).__name__}")


EXPECTED = {
    "exits": "StepCancelled",
    "interrupts": "StepCancelled",
    "generator exit": "StepCancelled",
    "hostile": "StepCancelled",
    "cancelled": "StepCancelled",
    "stop iteration": "RuntimeError",
    "stop async iteration": "StopAsyncIteration",
    "mute": "Mute",
    "exits in str": "ExitsInStr",
    "interrupts in str": "InterruptsInStr",
    "recurses in str": "Endless",
    "stop iteration that exits in repr": "RuntimeError",
    "group": "ExceptionGroup",
    "unencodable": "EncodeError",
    "nul": "EncodeError",
    "not a number": "EncodeError",
    "huge": "TooLarge",
    "wrong state for the next step": "EncodeError",
    "negative delay": "InputError",
}


async def run_deeds(engine: Opening, start: Any, deeds: list[str]) -> dict[str, object]:
    """What became of an instance per deed, and of an innocent one after them all."""
    async with engine() as e, e.worker(Wild(), queues={"default": 5}, **BRIEF):
        handles = await e.app.insert_many([Start(start, deed) for deed in deeds])
        ends = await asyncio.gather(*(handle.wait(seconds(4)) for handle in handles))
        innocent = await e.app.insert(Wild.fine, "innocent")
        assert await e.end(innocent) == Finished(innocent.id, "innocent")
        return {deed: getattr(end, "result", end) for deed, end in zip(deeds, ends, strict=True)}


async def test_on_the_loop(engine: Opening) -> None:
    """No deed of an `async def` step ends the worker; each reaches `on_error` as an ordinary exception."""
    found = await run_deeds(engine, Wild.on_loop, list(DEEDS))
    assert found == {deed: f"handled {EXPECTED.get(deed, 'InvalidOutcome')}" for deed in DEEDS}


async def test_in_a_thread(engine: Opening) -> None:
    """No deed of a `def` step ends the worker or is waited for without end; each reaches `on_error`."""
    deeds = [deed for deed in DEEDS if deed != "stop iteration"]
    found = await run_deeds(engine, Wild.in_thread, deeds)
    assert found == {deed: f"handled {EXPECTED.get(deed, 'InvalidOutcome')}" for deed in deeds}


async def test_stop_iteration_in_a_thread(engine: Opening) -> None:
    """`next()` on an empty iterator in a `def` step is an error like any other: the step must not hang."""
    found = await run_deeds(engine, Wild.in_thread, ["stop iteration"])
    assert str(found["stop iteration"]).startswith("handled ")


async def test_a_step_that_cancels_its_own_task(engine: Opening) -> None:
    """It is that step's error, or no error if it went on to return; the instance always gets on."""
    async with engine() as e, e.worker(Wild(), **BRIEF):
        awaits = await e.app.insert(Wild.cancels_itself, "and awaits")
        assert await awaits.wait(seconds(4)) == Finished(awaits.id, "handled StepCancelled")
        ends = await e.app.insert(Wild.cancels_itself, "and ends")
        ended = await ends.wait(seconds(4))
        assert ended in (Finished(ends.id, "ended"), Finished(ends.id, "handled StepCancelled"))


async def test_a_step_that_cancels_its_own_task_and_goes_on(engine: Opening) -> None:
    """A pending cancellation must not strand the instance between two steps of a run-ahead chain."""
    async with engine() as e, e.worker(Wild(), **BRIEF):
        handle = await e.app.insert(Wild.cancels_itself, "and goes on")
        ended = await handle.wait(seconds(4))
        assert ended in (Finished(handle.id, "went on"), Finished(handle.id, "handled StepCancelled"))


class Worse(Machine):
    """Its `on_error` is no better than its step."""

    @step
    async def work(self, how: str, ctx: Context) -> Outcome[str]:
        raise ValueError("first trouble")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        match state:
            case "raises":
                raise KeyError("second trouble")
            case "exits":
                sys.exit(1)
            case "none":
                return None  # type: ignore[return-value]
            case "unencodable":
                return Done(object())  # type: ignore[arg-type]
            case _:
                return Fail(error)


async def test_on_error_that_fails(engine: Opening) -> None:
    """When `on_error` fails too, the instance is failed with both errors told."""
    async with engine() as e, e.worker(Worse()):
        for how, second in (
            ("raises", "KeyError: 'second trouble'"),
            ("exits", "SystemExit: 1"),
            ("none", "InvalidOutcome"),
            ("unencodable", "EncodeError"),
        ):
            ended = await e.end(await e.app.insert(Worse.work, how))
            assert isinstance(ended, Failed)
            assert "ValueError: first trouble" in ended.error
            assert second in ended.error
        plain = await e.app.insert(Worse.work, "stops")
        assert await e.end(plain) == Failed(plain.id, "ValueError: first trouble")


class SyncHandler(Machine):
    """An `on_error` without async."""

    @step
    def work(self, _: None, ctx: Context) -> Outcome[str]:
        if ctx.attempt < 2:
            raise GenDurableError(f"attempt {ctx.attempt}")
        return Done(f"attempt {ctx.attempt}")

    def on_error(self, state: None, ctx: Context, error: Exception) -> Outcome[str]:
        return Retry(state)


async def test_a_plain_on_error(engine: Opening) -> None:
    """`on_error` may be a plain function; `Retry` counts attempts, and the last error stays until it is over."""
    async with engine() as e, e.worker(SyncHandler()):
        handle = await e.app.insert(SyncHandler.work, None)
        assert await e.end(handle) == Finished(handle.id, "attempt 2")
        assert (await handle.get()).last_error is None
