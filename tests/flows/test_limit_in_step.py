"""`ctx.limit`: a limit around one call inside a step. The same slots and tokens as those of whole steps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.support.limits import Database, database

from gen_durable import (
    Concurrency,
    Context,
    Done,
    Durable,
    Fail,
    Failed,
    Finished,
    Machine,
    Outcome,
    Rate,
    Start,
    Worker,
    step,
)
from gen_durable.errors import InputError, StepCancelled, StepTimeout, UnknownLimit
from gen_durable.limits import Policy
from gen_durable.testing import make_context

SOON = timedelta(seconds=20)
TICKETS = "select count(*) from @schema.step_slots"


class Crowd:
    """How many are inside, and how many were at most; steps in threads too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.entered = 0

    @contextmanager
    def member(self) -> Any:
        with self._lock:
            self.now += 1
            self.entered += 1
            self.most = max(self.most, self.now)
        yield
        with self._lock:
            self.now -= 1


class Shop(Machine):
    """Steps that hold the limit "l" as a whole, or ask for it inside; and what can go wrong there."""

    def __init__(self) -> None:
        self.crowd = Crowd()
        self.at: list[float] = []
        self.errors: list[Exception] = []
        self.go = asyncio.Event()

    @step(limit="l")
    async def whole(self, seconds: float, ctx: Context) -> Outcome[int]:
        with self.crowd.member():
            await asyncio.sleep(seconds)
        return Done(1)

    @step
    async def part(self, seconds: float, ctx: Context) -> Outcome[int]:
        async with ctx.limit("l"):
            with self.crowd.member():
                await asyncio.sleep(seconds)
        return Done(2)

    @step
    def threaded(self, seconds: float, ctx: Context) -> Outcome[int]:
        with ctx.limit("l"), self.crowd.member():
            time.sleep(seconds)
        return Done(3)

    @step(limit="l")
    async def again(self, seconds: float, ctx: Context) -> Outcome[int]:
        async with ctx.limit("l"):
            with self.crowd.member():
                await asyncio.sleep(seconds)
        return Done(4)

    @step
    async def metered(self, name: str, ctx: Context) -> Outcome[int]:
        async with ctx.limit(name, "tenant"):
            self.at.append(time.monotonic())
        return Done(5)

    @step
    async def broken(self, how: str, ctx: Context) -> Outcome[int]:
        async with ctx.limit("l"):
            if how == "raises":
                raise ValueError("no")
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(10)
        return Done(0)

    @step(timeout=timedelta(seconds=0.3))
    async def impatient(self, n: int, ctx: Context) -> Outcome[int]:
        async with ctx.limit("l"):
            return Done(6)

    @step
    async def holder(self, n: int, ctx: Context) -> Outcome[int]:
        async with ctx.limit("l"):
            await self.go.wait()
        return Done(7)

    @step
    async def heavy(self, weight: int, ctx: Context) -> Outcome[int]:
        async with ctx.limit("r", weight=weight):
            return Done(8)

    @step
    async def wrongly(self, n: int, ctx: Context) -> Outcome[int]:
        with ctx.limit("l"):
            return Done(9)

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[int]:
        self.errors.append(error)
        return Fail(error)


Run = Callable[..., Any]


@pytest.fixture
def run(dsn: str, schema: str) -> Run:
    """Run a test's body with a worker that has a limit "l" of two slots, and "r" of fifty tokens a second."""

    async def run_it(body: Callable[[Durable, Database, Shop], Any], slots: int = 2) -> None:
        shop = Shop()
        limits: dict[str, Policy] = {"l": Concurrency(slots), "r": Rate(50, timedelta(seconds=1))}
        async with database(dsn, schema) as db, Durable(dsn, schema=schema) as app:
            async with Worker(app, machines=[shop], queues={"default": 20}, threads=20, limits=limits):
                await body(app, db, shop)
            assert await db.value(TICKETS) == 0

    return run_it


async def test_whole_steps_and_parts_of_steps_share_the_slots(run: Run) -> None:
    """Steps under the limit, `async with` in steps, `with` in threads: two at a time, all together; all get through."""

    async def body(app: Durable, db: Database, shop: Shop) -> None:
        starts = [Start(kind, 0.02) for kind in (Shop.whole, Shop.part, Shop.threaded) for _ in range(8)]
        handles = await app.insert_many(starts)
        endings = await asyncio.gather(*(handle.wait(SOON) for handle in handles))
        assert all(isinstance(ending, Finished) for ending in endings)
        assert (shop.crowd.entered, shop.crowd.most) == (24, 2)

    await run(body)


async def test_a_step_that_has_the_slot_does_not_wait_for_itself(run: Run) -> None:
    """With one slot, a step under the limit that asks for it once more goes on."""

    async def body(app: Durable, db: Database, shop: Shop) -> None:
        handles = await app.insert_many([Start(Shop.again, 0.01) for _ in range(4)])
        endings = await asyncio.gather(*(handle.wait(SOON) for handle in handles))
        assert all(isinstance(ending, Finished) for ending in endings)
        assert shop.crowd.most == 1

    await run(body, slots=1)


@pytest.mark.parametrize(("how", "error"), [("raises", ValueError), ("cancels", StepCancelled)])
async def test_the_slot_of_a_step_that_fails_comes_back(run: Run, how: str, error: type[Exception]) -> None:
    """One that raises, or is cancelled from inside, leaves its slot to the next."""

    async def body(app: Durable, db: Database, shop: Shop) -> None:
        assert isinstance(await (await app.insert(Shop.broken, how)).wait(SOON), Failed)
        assert [type(e) for e in shop.errors] == [error]
        assert await db.value(TICKETS) == 0
        assert isinstance(await (await app.insert(Shop.part, 0.0)).wait(SOON), Finished)

    await run(body, slots=1)


async def test_a_step_that_gives_up_waiting_leaves_the_line(run: Run) -> None:
    """A step whose timeout comes while it waits for a slot is in nobody's way, and on_error is told."""

    async def body(app: Durable, db: Database, shop: Shop) -> None:
        holding = await app.insert(Shop.holder, 0)
        await db.until(TICKETS, 1)
        assert isinstance(await (await app.insert(Shop.impatient, 0)).wait(SOON), Failed)
        assert [type(e) for e in shop.errors] == [StepTimeout]
        await db.until(TICKETS, 1)
        shop.go.set()
        assert isinstance(await holding.wait(SOON), Finished)
        assert isinstance(await (await app.insert(Shop.part, 0.0)).wait(SOON), Finished)

    await run(body, slots=1)


async def test_a_worker_that_stops_while_a_step_waits_or_holds(dsn: str, schema: str) -> None:
    """Steps that are interrupted at the end of the drain leave nothing behind."""
    shop = Shop()
    async with database(dsn, schema) as db, Durable(dsn, schema=schema) as app:
        limits = {"l": Concurrency(1)}
        async with Worker(app, machines=[shop], limits=limits, drain_timeout=timedelta(seconds=0.1)):
            handles = await app.insert_many([Start(Shop.holder, n) for n in range(3)])
            await db.until(TICKETS, 3)
        assert await db.value(TICKETS) == 0
        shop.go.set()
        async with Worker(app, machines=[shop], limits=limits):
            endings = await asyncio.gather(*(handle.wait(SOON) for handle in handles))
        assert all(isinstance(ending, Finished) for ending in endings)


async def test_tokens_come_evenly_to_those_inside(run: Run) -> None:
    """Twenty entries at fifty a second: none before its moment, and the last not long after its own."""

    async def body(app: Durable, db: Database, shop: Shop) -> None:
        handles = await app.insert_many([Start(Shop.metered, "r") for _ in range(20)])
        await asyncio.gather(*(handle.wait(SOON) for handle in handles))
        took = [at - shop.at[0] for at in sorted(shop.at)]
        assert [n for n, seconds in enumerate(took) if seconds < n * 0.02 - 0.05] == []
        assert took[-1] < 19 * 0.02 + 1.5

    await run(body)


async def test_who_waits_for_a_limit_that_is_removed_goes_on(run: Run) -> None:
    """A limit that is gone holds nobody, be it one of slots or of tokens, and is nobody's error."""

    async def body(app: Durable, db: Database, shop: Shop) -> None:
        await app.set_limit("slow", Rate(1, timedelta(seconds=3)))
        holding = await app.insert(Shop.holder, 0)
        await db.until(TICKETS, 1)
        assert isinstance(await (await app.insert(Shop.metered, "slow")).wait(SOON), Finished)
        waiting = [await app.insert(Shop.part, 0.0), await app.insert(Shop.metered, "slow")]
        await db.until(TICKETS, 2)
        await db.until("select count(*) from @schema.instances where status = 'executing'", 3)
        await asyncio.sleep(0.3)  # by then it has asked for a token, which leaves no trace to wait for
        assert await app.remove_limit("l")
        assert await app.remove_limit("slow")
        for handle in waiting:
            assert isinstance(await handle.wait(SOON), Finished)
        assert shop.errors == []
        shop.go.set()
        assert isinstance(await holding.wait(SOON), Finished)

    await run(body, slots=1)


async def test_a_mistake_is_the_steps_own_error(run: Run) -> None:
    """An unknown limit, too much weight, and `with` where it would block the loop reach on_error, in words."""

    async def body(app: Durable, db: Database, shop: Shop) -> None:
        for start, error, words in (
            (Start(Shop.metered, "nope"), UnknownLimit, "Unknown limit 'nope'"),
            (Start(Shop.heavy, 2), InputError, "a weight of 2 is above the burst of limit r"),
            (Start(Shop.wrongly, 0), InputError, "async with"),
        ):
            (handle,) = await app.insert_many([start])
            ending = await handle.wait(SOON)
            assert isinstance(ending, Failed)
            assert isinstance(shop.errors[-1], error)
            assert words in ending.error

    await run(body)


def test_a_context_made_by_hand_has_no_limits() -> None:
    """Without a worker there is nobody to ask: the message says so."""
    with pytest.raises(InputError, match="needs a worker"):
        make_context(Shop.part).limit("l")
