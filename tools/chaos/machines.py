"""The machines of the load. Each step records its start; every result carries the number of its outcomes."""

from __future__ import annotations

import asyncio
import secrets
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg

from gen_durable import (
    Await,
    Concurrency,
    Context,
    Done,
    Fail,
    Machine,
    Next,
    Outcome,
    Rate,
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    step,
)
from gen_durable.errors import OutcomeRejected
from tools.chaos.effects import Effects

SLOTS = 3
TOKENS, BURST = 20, 5
LIMITS: dict[str, Concurrency | Rate] = {
    "narrow": Concurrency(SLOTS),
    "paced": Rate(TOKENS, timedelta(seconds=1), burst=BURST),
}
QUEUES = {"default": 5, "gates": 2, "doomed": 1, "hostile": 2}
PER_WORKER = sum(QUEUES.values())


@dataclass(frozen=True)
class Work:
    """So many steps, each with a nap; `done` of them are committed, and `value` is made of them."""

    steps: int
    naps: tuple[int, ...] = (0,)  # milliseconds, in turn
    done: int = 0
    value: int = 0
    errors: int = 0  # outcomes that led nowhere

    @property
    def nap(self) -> float:
        return self.naps[self.done % len(self.naps)] / 1000

    def further(self) -> Work:
        return replace(self, done=self.done + 1, value=(self.value * 31 + self.done + 1) % 1_000_003)

    def outcome(self) -> Sum:
        """What comes of it in the end."""
        work = self
        for _ in range(self.steps):
            work = work.further()
        return Sum(self.steps, work.value)


@dataclass(frozen=True)
class Sum:
    """How many outcomes were committed, and what they add up to."""

    steps: int
    value: int


@dataclass(frozen=True)
class Box:
    """The letters that have come so far."""

    steps: int = 0
    got: tuple[int, ...] = ()


@dataclass(frozen=True)
class Family:
    """The children to be started."""

    children: tuple[Work, ...]


@dataclass(frozen=True)
class Joined:
    """What the children came to."""

    steps: int
    children: int
    value: int


@dataclass(frozen=True)
class Delays:
    """Seconds until the next step, and until a wait is given up."""

    delay: float
    timeout: float


@dataclass(frozen=True)
class Doom:
    """What an instance does until it is cancelled: linger, park or wait for children that park."""

    way: str


class Flop(Exception):
    """What flaky steps raise."""


ping = Signal("ping", int)
bye = Signal("bye", int)
never = Signal("never", int)


class Writing(Machine):
    """A machine that has the file of its process."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects


class Chain(Writing):
    """Step after step, by one claim if it can be; in turn on the loop, in a thread, and by a claim of its own."""

    @step
    async def work(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            await asyncio.sleep(work.nap)
            after = work.further()
            if after.done == work.steps:
                return Done(Sum(after.done, after.value))
            if after.done % 5 == 3:
                return Next(self.thread, after)
            return Next(self.work, after, run_ahead=after.done % 4 != 0)

    @step
    def thread(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            threading.Event().wait(work.nap)  # not time.sleep, which fails where libfaketime is loaded
            after = work.further()
            return Done(Sum(after.done, after.value)) if after.done == work.steps else Next(self.work, after)


class Mailbox(Writing):
    """Takes letters until it is said good-bye to."""

    @step
    async def wait(self, box: Box, ctx: Context) -> Outcome[Box]:
        with self.effects.of(ctx):
            return Await([ping, bye], then=self.take, state=replace(box, steps=box.steps + 1))

    @step
    async def take(self, box: Box, ctx: Context) -> Outcome[Box]:
        with self.effects.of(ctx):
            taken = Box(box.steps + 1, box.got + tuple(ctx.take_all(ping)))
            return Done(taken) if ctx.take(bye) is not None else Next(self.wait, taken)


class Parent(Writing):
    """Starts children, waits for them, adds them up."""

    @step
    async def split(self, family: Family, ctx: Context) -> Outcome[Joined]:
        with self.effects.of(ctx):
            children = [Start(Chain.work, work) for work in family.children]
            return ScheduleChildren(children, then=self.join, state=family)

    @step
    async def join(self, family: Family, ctx: Context) -> Outcome[Joined]:
        with self.effects.of(ctx):
            values = [result.value async for result in ctx.stream_results(Chain.work)]
            return Done(Joined(2, len(values), sum(values)))


class Turn(Writing, queue="gates"):
    """Has a partition key: one at a time, in order."""

    @step
    async def take(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            await asyncio.sleep(work.nap)
            return Done(work.outcome())


class Narrow(Writing, queue="gates"):
    """Runs under a limit of concurrency."""

    @step(limit="narrow")
    async def squeeze(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            await asyncio.sleep(work.nap)
            return Done(work.outcome())


class Paced(Writing, queue="gates"):
    """Runs under a limit of rate."""

    @step(limit="paced")
    async def tick(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            return Done(work.outcome())


class Timer(Writing):
    """Waits by the database's clock: for a delay, then for a signal that never comes."""

    @step
    async def start(self, delays: Delays, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            return Next(self.later, delays, delay=timedelta(seconds=delays.delay))

    @step
    async def later(self, delays: Delays, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            return Await(never, then=self.woken, state=delays, timeout=timedelta(seconds=delays.timeout))

    @step
    async def woken(self, delays: Delays, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            return Done(Sum(3, 0 if ctx.take(never) is None else 1))


async def draw(nap: float) -> str:
    """An activity: its answer is another each time that it is called."""
    await asyncio.sleep(nap)
    return secrets.token_hex(8)


class Book(Writing):
    """Draws a receipt, marks that it has, and writes it in a row of its own in the transaction of each outcome."""

    @step(transactional=True)
    async def write(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            marked = ctx.last_checkpoint
            receipt = await ctx.run("receipt", draw, work.nap)
            if marked not in {None, receipt}:
                raise AssertionError(f"marked {marked}, drawn {receipt}")
            await ctx.checkpoint(receipt)
            row = (ctx.id, ctx.seq, ctx.visit, receipt)
            await ctx.connection.execute(
                "insert into chaos.book (id, seq, visit, receipt) values ($1, $2, $3, $4)", *row
            )
            await asyncio.sleep(work.nap)
            after = work.further()
            if after.done == work.steps:
                return Done(Sum(after.done + after.errors, after.value))
            return Next(self.write, after)

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Sum]:
        # A full disk or a lock timeout hits its own statements, too.
        if isinstance(error, OutcomeRejected | asyncpg.PostgresError):
            return Retry(replace(state, errors=state.errors + 1), delay=timedelta(milliseconds=200))
        return Fail(error)


class Flaky(Writing):
    """Raises now and then."""

    @step
    async def work(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            if ctx.attempt % 2 == 0:
                raise Flop("not this time")
            return Done(Sum(work.errors + 1, work.outcome().value))

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Sum]:
        return Retry(replace(state, errors=state.errors + 1), delay=timedelta(milliseconds=50))


class Relay(Writing):
    """Starts another with its end."""

    @step
    async def hand(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            return Done(Sum(1, work.steps), spawn=[Start(Chain.work, work, metadata={"by": ctx.id})])


class Doomed(Writing, queue="doomed"):
    """Does not end by itself."""

    @step
    async def begin(self, doom: Doom, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            match doom.way:
                case "park":
                    return Await(never, then=self.linger, state=doom)
                case "family":
                    below = [Start(Doomed.begin, Doom(way)) for way in ("park", "linger", "park")]
                    return ScheduleChildren(below, then=self.linger, state=doom)
                case _:
                    return Next(self.linger, doom)

    @step
    async def linger(self, doom: Doom, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            await asyncio.sleep(0.5)
            return Next(self.linger, doom)


def machines(effects: Effects) -> list[Machine]:
    """All of them, for a worker."""
    several = (Chain, Mailbox, Parent, Turn, Narrow, Paced, Timer, Book, Flaky, Relay, Doomed)
    return [machine(effects) for machine in several]
