"""Inbox, children and activities that are too large for a pick are read before the step, completely and in order."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.engine import Opening, seconds

from gen_durable import (
    Await,
    Context,
    Done,
    Finished,
    Machine,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)

part = Signal("part", str)
go = Signal("go", int)
SIZE = 700_000
COUNT = 9


@job
async def echo(value: str) -> str:
    return value


def value(number: int) -> str:
    return f"{number:03}" + "x" * SIZE


EXPECTED = [value(n) for n in range(COUNT)]


class Large(Machine):
    """Each way to a large claim; the result is whether everything was there."""

    def __init__(self) -> None:
        self.calls = 0

    @step
    async def wait(self, _: int, ctx: Context) -> Outcome[bool]:
        return Await(go, then=self.receive, state=0)

    @step
    async def receive(self, _: int, ctx: Context) -> Outcome[bool]:
        return Done([part.codec.decode(s.payload) for s in ctx.inbox if s.name == part.name] == EXPECTED)

    @step
    async def split(self, _: int, ctx: Context) -> Outcome[bool]:
        return ScheduleChildren([Start(echo, one) for one in EXPECTED], then=self.join, state=0)

    @step
    async def join(self, _: int, ctx: Context) -> Outcome[bool]:
        return Done(ctx.results(echo) == EXPECTED)

    @step
    async def act(self, _: int, ctx: Context) -> Outcome[bool]:
        found = [await ctx.run(f"a{n}", self.call, n) for n in range(COUNT)]
        return Retry(0) if ctx.attempt == 0 else Done(found == EXPECTED and self.calls == COUNT)

    async def call(self, number: int) -> str:
        self.calls += 1
        return value(number)

    @step(transactional=True)
    async def act_in_transaction(self, _: int, ctx: Context) -> Outcome[bool]:
        found = [await ctx.run(f"a{n}", self.call, n) for n in range(COUNT)]
        return Retry(0) if ctx.attempt == 0 else Done(found == EXPECTED and self.calls == COUNT)


async def test_a_large_inbox(engine: Opening) -> None:
    async with engine() as e:
        handle = await e.app.insert(Large.wait, 0)
        for one in EXPECTED:
            await handle.signal(part, one)
        async with e.worker(Large()):
            await handle.signal(go, 1)
            assert await handle.wait(seconds(60)) == Finished(handle.id, True)


async def test_large_children(engine: Opening) -> None:
    async with engine() as e, e.worker(Large(), echo):
        handle = await e.app.insert(Large.split, 0)
        assert await handle.wait(seconds(60)) == Finished(handle.id, True)


@pytest.mark.parametrize("step_", [Large.act, Large.act_in_transaction])
async def test_large_activities(engine: Opening, step_: Any) -> None:
    """No activity is called again."""
    async with engine() as e, e.worker(Large()):
        handle = await e.app.insert(step_, 0)
        assert await handle.wait(seconds(60)) == Finished(handle.id, True)


@job(queue="other")
async def quick(_: int) -> float:
    return time.monotonic()


async def test_claims_that_are_read_do_not_keep_a_pick_waiting(engine: Opening) -> None:
    """While a page of an inbox cannot be read, because its table is locked, jobs of another queue run."""
    async with engine() as e, e.worker(Large(), quick, queues={"default": 5, "other": 5}):
        handle = await e.app.insert(Large.wait, 0)
        for one in EXPECTED:
            await handle.signal(part, one)
        await e.rows.until(handle, status="awaiting_signal")
        definition = await e.rows.value("select pg_get_functiondef('@.inbox_page'::regproc)")
        slow = definition.replace("\nbegin\n", "\nbegin\n  perform pg_catalog.pg_sleep(3);\n", 1)
        assert slow != definition
        await e.rows.connection.execute(slow)
        try:
            await handle.signal(go, 1)
            await e.rows.until(handle, status="executing")
            began = time.monotonic()
            other = await e.app.insert(quick, 1)
            async with asyncio.timeout(30):
                await other.result()
            assert time.monotonic() - began < 2.5
        finally:
            await e.rows.connection.execute(definition)
        assert await handle.wait(seconds(60)) == Finished(handle.id, True)
