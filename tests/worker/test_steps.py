"""How steps are called: on the loop or in threads, with their context, for at most their time."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.engine import Opening, seconds

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
    RetryPolicy,
    ScheduleChildren,
    Start,
    step,
)
from gen_durable.errors import StepTimeout

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class Places(Machine):
    """Where each kind of step runs."""

    @step
    async def on_loop(self, _: None, ctx: Context) -> Outcome[tuple[str, str]]:
        asyncio.get_running_loop()
        return Done((threading.current_thread().name, tenant.get()))

    @step
    def in_thread(self, _: None, ctx: Context) -> Outcome[tuple[str, str]]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return Done((threading.current_thread().name, tenant.get()))
        return Fail("there is a loop in this thread")


async def test_where_steps_run(engine: Opening) -> None:
    """`async def` steps run on the worker's loop, `def` steps in threads, both with the starter's context variables."""
    tenant.set("acme")
    async with engine() as e, e.worker(Places()):
        loop = await e.end(await e.app.insert(Places.on_loop, None))
        thread = await e.end(await e.app.insert(Places.in_thread, None))
    assert isinstance(loop, Finished)
    assert isinstance(thread, Finished)
    assert tuple(loop.result) == (threading.current_thread().name, "acme")
    assert thread.result[0] != threading.current_thread().name
    assert thread.result[1] == "acme"


class Leaky(Machine):
    """Sets a context variable and looks whether somebody else's is there."""

    @step
    async def first(self, name: str, ctx: Context) -> Outcome[str]:
        before = tenant.get()
        tenant.set(name)
        return Done(before)

    @step
    def second(self, name: str, ctx: Context) -> Outcome[str]:
        before = tenant.get()
        tenant.set(name)
        return Done(before)


async def test_context_does_not_leak(engine: Opening) -> None:
    """What one instance sets in its context is not seen by another, on the loop or in a reused thread."""
    async with engine() as e, e.worker(Leaky(), queues={"default": 1}):
        for start in (Leaky.first, Leaky.second):
            for name in ("a", "b"):
                handle = await e.app.insert(start, name)
                assert await e.end(handle) == Finished(handle.id, "nobody")


async def test_a_thread_does_not_hold_up_the_loop(engine: Opening) -> None:
    """While a `def` step sleeps, `async def` steps of the same worker go on."""
    async with engine() as e, e.worker(Slow(), Places()):
        slow = await e.app.insert(Slow.sync, 0.6)
        await e.rows.until(slow, status="executing")
        await e.end(await e.app.insert(Places.on_loop, None))
        assert (await e.rows.row(slow))["status"] == "executing"
        await e.end(slow)


class Slow(Machine):
    """Steps that are too slow for their timeout; `on_error` tells what it was told."""

    @step(timeout=seconds(0.15))
    async def late(self, length: float, ctx: Context) -> Outcome[str]:
        await asyncio.sleep(length)
        return Done("in time")

    @step(timeout=seconds(0.15))
    def late_sync(self, length: float, ctx: Context) -> Outcome[str]:
        time.sleep(length)
        return Done("in time")

    @step(timeout=seconds(5))
    async def own(self, length: float, ctx: Context) -> Outcome[str]:
        async with asyncio.timeout(length):
            await asyncio.sleep(5)
        return Done("in time")

    @step
    def sync(self, length: float, ctx: Context) -> Outcome[str]:
        time.sleep(length)
        return Done("slept")

    async def on_error(self, state: float, ctx: Context, error: Exception) -> Outcome[str]:
        return Done(f"{type(error).__name__} in {ctx.step}")


async def test_a_timeout_reaches_on_error(engine: Opening) -> None:
    """A step over its time ends as `StepTimeout` in `on_error`, soon after its time, whether async or sync."""
    async with engine() as e, e.worker(Slow()):
        began = time.monotonic()
        late = await e.app.insert(Slow.late, 30.0)
        late_sync = await e.app.insert(Slow.late_sync, 1.0)
        assert await e.end(late) == Finished(late.id, "StepTimeout in late")
        assert await e.end(late_sync) == Finished(late_sync.id, "StepTimeout in late_sync")
        assert time.monotonic() - began < 1
        quick = await e.app.insert(Slow.late, 0.0)
        assert await e.end(quick) == Finished(quick.id, "in time")


async def test_a_timeout_of_the_step_itself(engine: Opening) -> None:
    """A `TimeoutError` that the step's own code raised is not taken for the step's timeout."""
    async with engine() as e, e.worker(Slow()):
        handle = await e.app.insert(Slow.own, 0.05)
        assert await e.end(handle) == Finished(handle.id, "TimeoutError in own")


async def test_a_timeout_without_an_on_error(engine: Opening) -> None:
    """It is an exception for the retry policy; the reason of the failure names the step and its limit."""
    async with engine() as e, e.worker(Bounded()):
        handle = await e.app.insert(Bounded.work, None)
        expected = f"{StepTimeout.__name__}: step Bounded.work ran longer than its timeout of 0.1 s (attempt 1 of 1)"
        assert await e.end(handle) == Failed(handle.id, expected)


class Bounded(Machine, retry=RetryPolicy(attempts=1)):
    @step(timeout=seconds(0.1))
    async def work(self, _: None, ctx: Context) -> Outcome[None]:
        await asyncio.sleep(30)
        return Done()


@dataclass
class Bag:
    """A state that can be changed in place."""

    items: list[str] = field(default_factory=list)


class Mutant(Machine):
    """Goes on changing a state after it was returned."""

    kept: list[Bag]

    def __init__(self) -> None:
        self.kept = []

    @step
    async def first(self, bag: Bag, ctx: Context) -> Outcome[list[str]]:
        bag.items.append("first")
        self.kept.append(bag)
        asyncio.get_running_loop().call_soon(bag.items.append, "too late")
        return Next(self.second, bag)

    @step
    async def second(self, bag: Bag, ctx: Context) -> Outcome[list[str]]:
        assert bag is not self.kept[0]
        self.kept[0].items.append("much too late")
        return Next(self.third, bag)

    @step
    def third(self, bag: Bag, ctx: Context) -> Outcome[list[str]]:
        return Done(bag.items)


async def test_the_next_step_gets_what_was_committed(engine: Opening) -> None:
    """On a run-ahead chain each step's state is decoded from what was committed, not the object that was returned."""
    async with engine() as e, e.worker(Mutant(), run_ahead_time=seconds(60)):
        handle = await e.app.insert(Mutant.first, Bag(["start"]))
        assert await e.end(handle) == Finished(handle.id, ["start", "first"])
        row = await e.rows.row(handle)
        assert (row["claims"], row["seq"]) == (1, 3)


class Forgetful(Machine):
    """Spoils its state in place and then raises; tries once more."""

    @step
    async def work(self, bag: Bag, ctx: Context) -> Outcome[list[str]]:
        bag.items.append("spoilt")
        if ctx.attempt == 0:
            raise ValueError("half done")
        return Done(bag.items)

    async def on_error(self, state: Bag, ctx: Context, error: Exception) -> Outcome[Any]:
        return Retry(state)


async def test_on_error_gets_the_committed_state(engine: Opening) -> None:
    """`on_error` is told the state as it is in the row, not what the failed execution made of it."""
    async with engine() as e, e.worker(Forgetful()):
        handle = await e.app.insert(Forgetful.work, Bag(["start"]))
        assert await e.end(handle) == Finished(handle.id, ["start", "spoilt"])


class Brood(Machine):
    @step
    async def begin(self, _: None, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(Brood.child, None)], then=self.join, state=None)

    @step
    async def child(self, _: None, ctx: Context) -> Outcome[int]:
        return Done(1)

    @step
    async def join(self, _: None, ctx: Context) -> Outcome[int]:
        return Done(sum(ctx.results(Brood.child)))


async def test_none_is_a_state(engine: Opening) -> None:
    """A step whose state is None can be inserted, gone on to and started as a child."""
    async with engine() as e, e.worker(Brood()):
        handle = await e.app.insert(Brood.begin, None)
        assert await e.end(handle) == Finished(handle.id, 1)
