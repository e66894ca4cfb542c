"""Workers with different machines on one queue, as in every rolling deploy: each row wakes the worker that can run it.

A worker with free slots takes the wake-up for itself; if it does not know the step, another process must hear of the
row at once, not with its next poll.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine import NEVER, Engine, Opening, seconds, soon

from gen_durable import Await, Context, Done, Finished, Machine, Next, Outcome, ScheduleChildren, Signal, Start, step
from gen_durable.core.services import services_of
from gen_durable.telemetry import RowsPicked

go = Signal("go", None)
AT_ONCE = 1.0  # a fraction of the poll interval, on a machine that is busy with other tests
SILENT: dict[str, Any] = {"poll_interval": NEVER, "max_poll_interval": NEVER, "reap_interval": None}
began: dict[str, float] = {}
begun = asyncio.Event()


def note(name: str) -> None:
    began[name] = time.monotonic()
    begun.set()


class Left(Machine):
    """Known to the first worker."""

    @step
    async def start(self, name: str, ctx: Context) -> Outcome[None]:
        note(name)
        return Done()

    @step
    async def parent(self, name: str, ctx: Context) -> Outcome[None]:
        return ScheduleChildren([Start(Right.start, f"{name}-child")], then=Left.start, state=name)


class Right(Machine):
    """Known to the second worker."""

    @step
    async def start(self, name: str, ctx: Context) -> Outcome[None]:
        note(name)
        return Done()

    @step
    async def wait(self, name: str, ctx: Context) -> Outcome[None]:
        return Await(go, then=Right.start, state=name)

    @step
    async def leave(self, name: str, ctx: Context) -> Outcome[None]:
        return Next(Right.start, name, delay=seconds(0.2))


@asynccontextmanager
async def two_workers(engine: Opening, **left_options: Any) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two engines as two processes are, with one worker each, that do not poll and have heard of each other."""
    async with (
        engine() as left,
        engine() as right,
        left.worker(Left(), **SILENT | left_options),
        right.worker(Right(), **SILENT),
    ):
        for one in (left, right):
            listener = services_of(one.app).notifier.listener
            assert listener is not None
            await soon(listener.listening.wait())
            await one.seen.until(RowsPicked)
        await asyncio.sleep(0.2)  # the picks that follow a new listener
        yield left, right


async def check_begun(name: str, since: float) -> None:
    """A step began within `AT_ONCE` seconds."""
    async with asyncio.timeout(10):
        while name not in began:
            begun.clear()
            await begun.wait()
    assert began[name] - since < AT_ONCE


async def test_an_insert_beside_the_wrong_worker(engine: Opening) -> None:
    """In both directions, and again at once, and beside a row that the local worker takes."""
    async with two_workers(engine) as (left, right):
        for n in range(3):
            await left.app.insert(Right.start, f"insert-right-{n}")
            since = time.monotonic()
            await right.app.insert(Left.start, f"insert-left-{n}")
            await check_begun(f"insert-right-{n}", since)
            await check_begun(f"insert-left-{n}", since)
        await left.app.insert_many([Start(Left.start, "mixed-left"), Start(Right.start, "mixed-right")])
        since = time.monotonic()
        await check_begun("mixed-left", since)
        await check_begun("mixed-right", since)


async def test_a_flush_that_makes_a_row_of_another_worker_runnable(engine: Opening) -> None:
    """The child runs there, and its end wakes the parent here."""
    async with two_workers(engine) as (left, _):
        since = time.monotonic()
        handle = await left.app.insert(Left.parent, "parent")
        await check_begun("parent-child", since)
        await check_begun("parent", since + AT_ONCE)
        assert isinstance(await left.end(handle), Finished)


async def test_a_signal_beside_the_wrong_worker(engine: Opening) -> None:
    async with two_workers(engine) as (left, right):
        handle = await right.app.insert(Right.wait, "signal")
        await right.rows.until(handle, status="awaiting_signal")
        await left.app.signal(handle.id, go)
        since = time.monotonic()
        await check_begun("signal", since)


async def test_a_claim_reaped_by_the_wrong_worker(engine: Opening) -> None:
    async with two_workers(engine, reap_interval=seconds(0.1)) as (left, _):
        since = time.monotonic()
        await left.rows.value(
            "insert into @.instances (fsm, step, state, status, claims, locked_by, lease_expires_at)"
            " values ('Right', 'start', '\"reaped\"', 'executing', 1, 'gone', now()) returning id"
        )
        await check_begun("reaped", since + 0.2)


async def test_a_delayed_row_beside_the_wrong_worker(engine: Opening) -> None:
    """The other worker learns of the row when it is inserted, and so picks when it is due."""
    async with two_workers(engine) as (left, _):
        since = time.monotonic()
        await left.app.insert(Right.start, "delayed", delay=timedelta(seconds=0.5))
        await check_begun("delayed", since + 0.5)


@pytest.fixture(autouse=True)
def nothing_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event belongs to the loop of one test."""
    began.clear()
    monkeypatch.setattr(sys.modules[__name__], "begun", asyncio.Event())
