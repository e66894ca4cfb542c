"""The machine that runs a program, and the heartbeat beside it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from gen_durable import Await, Context, Done, Fail, Machine, Next, Outcome, Retry, ScheduleChildren, Signal, Start, step
from gen_durable.errors import TooLarge
from gen_durable.jobs import job
from gen_durable.validation import MAX_PAYLOAD
from tools.fuzz_sizes.program import Op, Program, add
from tools.fuzz_sizes.values import Value

part = Signal("part", Any)
PERIOD = 0.1  # seconds from one heartbeat to the next
HEARTBEATS = "heartbeats"


@dataclass(frozen=True)
class State:
    """How far a program has come, the checksum so far, and a value that makes the state large."""

    program: Program
    at: int = 0
    checksum: int = 0
    filler: Any = None

    @property
    def op(self) -> Op:
        return self.program.ops[self.at]

    def after(self, filler: Any = None) -> State:
        """The state after the current action."""
        return State(self.program, self.at + 1, add(self.checksum, self.op), filler)


@dataclass(frozen=True)
class Result:
    """The checksum, and a value that makes the result large."""

    checksum: int
    filler: Any


class Expected(Exception):
    """An error that belongs to the program."""


class Wrong(Exception):
    """Something is not as it must be: the instance fails."""


@dataclass(frozen=True)
class Leaf:
    """A value, and its description."""

    value: Value
    filler: Any


@job(queue="sizes")
async def leaf(state: Leaf) -> Any:
    """A child or a spawned instance: verifies its state and returns the same value."""
    verify(state.filler, state.value, "the state of a child")
    return state.value.build()


def verify(found: Any, value: Value, what: str) -> None:
    if not value.matches(found):
        raise Wrong(f"{what} is not the {value.kind} of {value.size} bytes that was stored")


class Fuzz(Machine, queue="sizes"):
    """Runs a program, one action per step."""

    def __init__(self) -> None:
        self._activity_calls: Counter[tuple[int, int, str]] = Counter()

    @step
    async def run(self, state: State, ctx: Context) -> Outcome[Result]:
        """The next action, or the end. Actions in threads and waits have steps of their own."""
        self._verify_filler(state)
        if state.at == len(state.program.ops):
            return self._end(state)
        match state.op.action:
            case "await":
                return Await(part, then=self.receive, state=replace(state, filler=None))
            case "children":
                starts = [Start(leaf, Leaf(v, v.build())) for v in _values(state.op)]
                return ScheduleChildren(starts, then=self.join, state=replace(state, filler=None))
            case "activities" if not state.op.in_thread:
                return await self._activities(state, ctx)
            case "checkpoint" if not state.op.in_thread:
                await self._checkpoint(state, ctx)
                return Next(self.run, state.after())
            case _ if state.op.in_thread:
                return Next(self.run_in_thread, state)
            case _:
                return self._act(state, ctx)

    @step
    def run_in_thread(self, state: State, ctx: Context) -> Outcome[Result]:
        self._verify_filler(state)
        match state.op.action:
            case "activities":
                for n, value in enumerate(_values(state.op)):
                    call = self._activity(ctx, f"a{n}", value)
                    verify(ctx.sync.run(f"a{n}", call), value, "the result of an activity")
                return self._after_activities(state, ctx)
            case "checkpoint":
                found = ctx.last_checkpoint
                if found is None:
                    ctx.sync.checkpoint(state.op.value.build())
                    raise Expected
                verify(found, state.op.value, "the checkpoint")
                return Next(self.run, state.after())
            case _:
                return self._act(state, ctx)

    @step
    async def receive(self, state: State, ctx: Context) -> Outcome[Result]:
        if len(ctx.awaited) < state.op.count:
            return Await(part, then=self.receive, state=state)
        for n, received in enumerate(ctx.awaited):
            verify(part.codec.decode(received.payload), state.op.value.numbered(n), "a signal")
            await asyncio.sleep(0)
        return Next(self.run, state.after())

    @step
    async def join(self, state: State, ctx: Context) -> Outcome[Result]:
        count = 0
        async for result in ctx.stream_results(leaf):
            verify(result, state.op.value.numbered(count), "the result of a child")
            count += 1
            await asyncio.sleep(0)
        if count != state.op.count:
            raise Wrong(f"{count} results of {state.op.count} children")
        return Next(self.run, state.after())

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Result]:
        if isinstance(error, Expected) and ctx.attempt == 0:
            return Retry(state)
        if isinstance(error, TooLarge) and state.op.action == "refused":
            return Next(self.run, state.after())
        return Fail(error)

    def _verify_filler(self, state: State) -> None:
        if state.filler is not None:
            verify(state.filler, state.program.ops[state.at - 1].value, "the state")

    def _act(self, state: State, ctx: Context) -> Outcome[Result]:
        op = state.op
        match op.action:
            case "next":
                return Next(self.run, state.after(op.value.build()), run_ahead=op.value.salt % 2 == 0)
            case "spawn":
                starts = [Start(leaf, Leaf(v, v.build()), metadata={"by": ctx.id}) for v in _values(op)]
                return Next(self.run, state.after(), spawn=starts)
            case "refused":
                return Next(self.run, replace(state, filler="x" * MAX_PAYLOAD))
            case _:
                if ctx.attempt == 0:
                    raise Expected("e" * op.value.size)
                return Next(self.run, state.after(op.value.build()))

    async def _checkpoint(self, state: State, ctx: Context) -> None:
        found = ctx.last_checkpoint
        if found is None:
            await ctx.checkpoint(state.op.value.build())
            raise Expected
        verify(found, state.op.value, "the checkpoint")

    async def _activities(self, state: State, ctx: Context) -> Outcome[Result]:
        for n, value in enumerate(_values(state.op)):
            verify(await ctx.run(f"a{n}", self._activity(ctx, f"a{n}", value)), value, "the result of an activity")
            await asyncio.sleep(0)
        return self._after_activities(state, ctx)

    def _after_activities(self, state: State, ctx: Context) -> Outcome[Result]:
        """Let the step run again once: the results must come with its claim."""
        if ctx.attempt == 0:
            raise Expected
        if any(self._activity_calls.pop((ctx.id, ctx.visit, f"a{n}")) != 1 for n in range(state.op.count)):
            raise Wrong("an activity was called again")
        return Next(self.run, state.after())

    def _activity(self, ctx: Context, name: str, value: Value) -> Callable[[], Any]:
        def call() -> Any:
            self._activity_calls[ctx.id, ctx.visit, name] += 1
            return value.build()

        return call

    def _end(self, state: State) -> Outcome[Result]:
        program = state.program
        if program.error_size:
            return Fail(f"{state.checksum} " + "e" * program.error_size)
        return Done(Result(state.checksum, program.result.build()))


def _values(op: Op) -> list[Value]:
    return [op.value.numbered(n) for n in range(op.count)]


@dataclass(frozen=True)
class Heartbeat:
    """When the heartbeat is due, by a monotonic clock; None for the first one."""

    due_at: float | None = None


class Heartbeats(Machine, queue=HEARTBEATS):
    """A step every PERIOD seconds, until it is cancelled. Reports how late each one is."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report

    @step
    async def beat(self, heartbeat: Heartbeat, ctx: Context) -> Outcome[None]:
        now = time.monotonic()
        if heartbeat.due_at is not None:
            self._report(now - heartbeat.due_at)
        return Next(self.beat, Heartbeat(now + PERIOD), delay=timedelta(seconds=PERIOD))
