"""The machines and jobs that are measured, and a worker that counts the instances it has ended."""

from __future__ import annotations

import asyncio
import time
from functools import cache
from typing import Any

from gen_durable import (
    Await,
    Context,
    Done,
    Durable,
    Job,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Signal,
    Start,
    Worker,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.step_registry import Registry
from tools.bench.process_main import Parent

CHAIN = ("first", "second", "third", "fourth", "fifth")
go_on = Signal[None]("go_on")


@job(history="off")
async def noop(number: int) -> int:
    return number


@job(history="off")
def noop_in_thread(number: int) -> int:
    return number


@job(history="off")
async def nap(milliseconds: int) -> int:
    await asyncio.sleep(milliseconds / 1000)
    return milliseconds


@job(history="off")
async def look_at_clock(number: int) -> float:
    return time.time()


class Chain(Machine, history="off"):
    """Five steps, one after the other."""

    @step
    async def first(self, number: int, ctx: Context) -> Outcome[int]:
        return Next(self.second, number)

    @step
    async def second(self, number: int, ctx: Context) -> Outcome[int]:
        return Next(self.third, number)

    @step
    async def third(self, number: int, ctx: Context) -> Outcome[int]:
        return Next(self.fourth, number)

    @step
    async def fourth(self, number: int, ctx: Context) -> Outcome[int]:
        return Next(self.fifth, number)

    @step
    async def fifth(self, number: int, ctx: Context) -> Outcome[int]:
        return Done(number)


class Recorded(Chain, history="transitions"):
    """The same, with a row of history for each step."""


class Fan(Machine, history="off"):
    """Starts the given number of children, and joins them."""

    @step
    async def spread(self, children: int, ctx: Context) -> Outcome[int]:
        return ScheduleChildren((Start(noop, n) for n in range(children)), then=self.gather, state=children)

    @step
    async def gather(self, children: int, ctx: Context) -> Outcome[int]:
        return Done(sum([1 async for _ in ctx.stream_children()]))


class Patient(Machine, history="off"):
    """Waits for a signal."""

    @step
    async def begin(self, number: int, ctx: Context) -> Outcome[int]:
        return Await(go_on, then=self.end, state=number)

    @step
    async def end(self, number: int, ctx: Context) -> Outcome[int]:
        return Done(number)


JOBS: tuple[Job[Any, Any], ...] = (noop, noop_in_thread, nap, look_at_clock)


def machines() -> list[Machine]:
    return [Chain(), Recorded(), Fan(), Patient()]


@cache
def known() -> list[str]:
    """The step names that a worker with all of these passes to a pick."""
    return Registry(machines(), JOBS).known_step_keys


def worker(app: Durable, **options: Any) -> Worker:
    """A worker with default settings, apart from `options`."""
    return Worker(app, machines=machines(), jobs=JOBS, **options)


async def work(parent: Parent, app: Durable, **options: Any) -> None:
    """A role: run everything and report the number of ended instances, until stopped."""
    count, at = 0, 0.0

    def ended(*_: object) -> None:
        nonlocal count, at
        count += 1
        at = time.monotonic()

    # Called once per committed end, and by no other code here: the cheapest place to count.
    services_of(app).completion_watcher.report_end = ended  # type: ignore[method-assign, assignment]
    await parent.wait_for_start()
    async with worker(app, **options):
        reported = 0
        stopped = asyncio.create_task(parent.wait_for_stop())
        while not stopped.done():
            await asyncio.sleep(0.01)
            if count != reported:
                reported = count
                parent.report(count, at)


async def fill(app: Durable, start: Start[Any], count: int) -> None:
    """Insert many instances of a kind."""
    for begin in range(0, count, 5000):
        await app.insert_many([start] * min(5000, count - begin))
