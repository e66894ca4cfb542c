"""Signals that come early, late, and in packs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from gen_durable import Await, Context, Done, Durable, Finished, Machine, Next, Outcome, Signal, Worker, step

page = Signal("page", int)
other = Signal("other", int)


class Collector(Machine):
    """Waits for one page, or gathers a pack of three."""

    def __init__(self) -> None:
        self.runs = 0

    @step
    async def start(self, wanted: int, ctx: Context) -> Outcome[list[int]]:
        return Await(page, then=self.gather, state=wanted)

    @step
    async def gather(self, wanted: int, ctx: Context) -> Outcome[list[int]]:
        self.runs += 1
        if len(ctx.awaited) < wanted:
            return Await(page, state=wanted)
        return Next(self.finish, ctx.take_all(page))

    @step
    async def finish(self, pages: list[int], ctx: Context) -> Outcome[list[int]]:
        return Done(sorted(pages))


async def test_a_signal_that_comes_before_the_first_step_wakes_the_first_await(dsn: str, schema: str) -> None:
    """A signal that lay in the inbox when the parking step began was shown to it, but has woken nobody: it must."""
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(Collector.start, 1)
        await app.signal(handle, page, 7)
        async with Worker(app, machines=[Collector()]):
            assert await handle.wait(timedelta(seconds=10)) == Finished(handle.id, [7])


@pytest.mark.parametrize("pause", [0, 0.001, 0.003, 0.01])
async def test_signals_at_every_moment_of_parking_are_found(dsn: str, schema: str, pause: float) -> None:
    """Two hundred instances are signalled while they are being inserted, claimed and parked: none sleeps on."""
    lazy = timedelta(seconds=60)  # no poll comes to the rescue
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[Collector()], poll_interval=lazy, max_poll_interval=lazy),
    ):

        async def one(n: int) -> object:
            handle = await app.insert(Collector.start, 1)
            await asyncio.sleep(pause * (n % 4))
            await app.signal(handle, page, n)
            return await handle.wait(timedelta(seconds=20))

        endings = await asyncio.gather(*(one(n) for n in range(200)))
        assert all(isinstance(ending, Finished) for ending in endings)


async def test_collecting_a_pack_does_not_spin(dsn: str, schema: str) -> None:
    """A step that awaits again is woken by new signals only: as many runs as signals, not more."""
    collector = Collector()
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[collector]):
        handle = await app.insert(Collector.start, 3)
        for n in (3, 1, 2):
            await app.signal(handle, other, n)
            await app.signal(handle, page, n)
            await asyncio.sleep(0.05)
        assert await handle.wait(timedelta(seconds=10)) == Finished(handle.id, [1, 2, 3])
        assert collector.runs <= 3


class Twice(Machine):
    """Waits for a page and then for the other."""

    @step
    async def first(self, n: int, ctx: Context) -> Outcome[int]:
        return Await(page, then=self.second, state=n)

    @step
    async def second(self, n: int, ctx: Context) -> Outcome[int]:
        return Await(other, then=self.last, state=n)

    @step
    async def last(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)


async def test_a_delivery_does_not_hide_the_row_that_another_has_just_woken(dsn: str, schema: str) -> None:
    """Two signals on each other's heels, sent from elsewhere: the second one's lock must not cost the first its wake.

    The picker that hears of the first skips a row which the second has locked; so the second has to ring too.
    """
    lazy = timedelta(seconds=60)  # no poll comes to the rescue
    async with (
        Durable(dsn, schema=schema) as app,
        Durable(dsn, schema=schema) as elsewhere,
        Worker(app, machines=[Twice()], queues={"default": 50}, poll_interval=lazy, max_poll_interval=lazy),
    ):
        handles = [await app.insert(Twice.first, n) for n in range(60)]

        async def both(n: int) -> object:
            await elsewhere.signal(handles[n].id, page, n)
            await elsewhere.signal(handles[n].id, other, n)
            return await handles[n].wait(timedelta(seconds=5))

        endings = [
            ending for batch in range(0, 60, 6) for ending in await asyncio.gather(*map(both, range(batch, batch + 6)))
        ]
        assert all(isinstance(ending, Finished) for ending in endings)
