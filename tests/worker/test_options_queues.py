"""queues, prefetch and min_demand: how much a worker takes at a time."""

from __future__ import annotations

import asyncio

from tests.support.engine import BRIEF, NEVER, Engine, Opening, soon

from gen_durable import Finished, Start, job
from gen_durable.telemetry import RowsPicked, StepCommitted


class Crowd:
    """Counts who is inside; everybody waits for the gate."""

    def __init__(self) -> None:
        self.inside: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.gate = asyncio.Event()
        self.changed = asyncio.Event()

    async def enter(self, name: str) -> None:
        self.inside[name] = self.inside.get(name, 0) + 1
        self.most[name] = max(self.most.get(name, 0), self.inside[name])
        self.changed.set()
        await self.gate.wait()
        self.inside[name] -= 1

    async def until(self, name: str, count: int) -> None:
        async with asyncio.timeout(10):
            while self.inside.get(name, 0) < count:
                self.changed.clear()
                await self.changed.wait()


crowds: dict[str, Crowd] = {}


@job
async def visit(place: str) -> None:
    crowd, _, name = place.partition("/")
    await crowds[crowd].enter(name)


async def test_concurrency_is_reached_and_not_exceeded(engine: Opening) -> None:
    """With 20 rows and 4 slots exactly 4 run at once, and no row beyond them is claimed."""
    crowd = crowds["reach"] = Crowd()
    async with engine() as e:
        handles = await e.app.insert_many([Start(visit, "reach/a")] * 20)
        async with e.worker(visit, queues={"default": 4}):
            await soon(crowd.until("a", 4))
            assert await e.rows.count("status = 'executing'") == 4
            assert await e.rows.count("claims > 0") == 4
            crowd.gate.set()
            for handle in handles:
                await e.end(handle)
    assert crowd.most == {"a": 4}


async def test_several_queues_have_slots_of_their_own(engine: Opening) -> None:
    """A queue that is full takes nothing from the others, and a queue that is not named is not served."""
    crowd = crowds["several"] = Crowd()
    async with engine() as e:
        starts = [Start(visit, f"several/{q}", queue=q) for q in ("one", "two", "three") for _ in range(6)]
        handles = await e.app.insert_many(starts)
        async with e.worker(visit, queues={"one": 1, "two": 3}):
            await crowd.until("one", 1)
            await crowd.until("two", 3)
            crowd.gate.set()
            for handle in handles[:12]:
                await e.end(handle)
            assert await e.rows.count("queue = 'three' and status = 'runnable' and claims = 0") == 6
    assert crowd.most == {"one": 1, "two": 3}


async def test_prefetch_fills_a_buffer(engine: Opening) -> None:
    """With prefetch rows are claimed ahead into a buffer, and run from it without another pick."""
    crowd = crowds["prefetch"] = Crowd()
    async with engine() as e:
        handles = await e.app.insert_many([Start(visit, "prefetch/a")] * 8)
        async with e.worker(visit, queues={"default": 2}, prefetch=4, poll_interval=NEVER, max_poll_interval=NEVER):
            await crowd.until("a", 2)
            assert await e.rows.count("status = 'executing'") == 6
            assert e.seen.of(RowsPicked)[0].demand == 6
            crowd.gate.set()
            for handle in handles:
                await e.end(handle)
    assert crowd.most == {"a": 2}
    assert sum(picked.count for picked in e.seen.of(RowsPicked)) == 8


async def test_buffered_rows_are_beaten_too(engine: Opening) -> None:
    """A row that waits in the buffer for several leases is still ours, and runs once."""
    crowd = crowds["buffer"] = Crowd()
    async with engine() as e:
        handles = await e.app.insert_many([Start(visit, "buffer/a")] * 3)
        async with e.worker(visit, queues={"default": 1}, prefetch=2, **BRIEF):
            await crowd.until("a", 1)
            await leases_renewed(e, times=3)
            assert await e.rows.count("status = 'executing' and claims = 1 and attempt = 0") == 3
            crowd.gate.set()
            for handle in handles:
                await e.end(handle)
        assert await e.rows.count("claims = 1 and crashes = 0") == 3


async def leases_renewed(e: Engine, times: int) -> None:
    """Wait until every executing row has been given a later lease so many times."""
    oldest = "select min(lease_expires_at) from @.instances where status = 'executing'"
    for _ in range(times):
        before = await e.rows.value(oldest)

        async def later(before: object = before) -> bool:
            return bool(await e.rows.value(oldest) > before)

        await e.rows.when(later)


@job
async def count(number: int) -> int:
    return number


async def test_min_demand_gathers_slots(engine: Opening) -> None:
    """With min_demand = concurrency a worker picks only when all its slots are free: in rounds, not one by one."""
    async with engine() as e:
        handles = await e.app.insert_many(Start(count, n) for n in range(12))
        async with e.worker(count, queues={"default": 4}, min_demand=4, prefetch=0):
            for n, handle in enumerate(handles):
                assert await e.end(handle) == Finished(handle.id, n)
            await e.seen.until(StepCommitted, count=12)
    taken = [picked for picked in e.seen.of(RowsPicked) if picked.count]
    assert [(picked.demand, picked.count) for picked in taken] == [(4, 4)] * 3


async def test_min_demand_one_does_not_wait(engine: Opening) -> None:
    """By default one free slot is enough for a pick: a slow neighbour holds nobody up."""
    crowd = crowds["neighbour"] = Crowd()
    async with engine() as e:
        slow = await e.app.insert(visit, "neighbour/slow")
        async with e.worker(visit, count, queues={"default": 2}, prefetch=0):
            await crowd.until("slow", 1)
            for handle in await e.app.insert_many(Start(count, n) for n in range(5)):
                await e.end(handle)
            assert max(picked.demand for picked in e.seen.of(RowsPicked) if picked.count) <= 2
            crowd.gate.set()
            await e.end(slow)


async def test_more_rows_than_one_pick(engine: Opening) -> None:
    """A deep queue with many slots is taken in as large picks as there are slots."""
    async with engine() as e:
        handles = await e.app.insert_many(Start(count, n) for n in range(300))
        async with e.worker(count, queues={"default": 100}):
            for handle in handles:
                await e.end(handle)
    assert e.seen.of(RowsPicked)[0].count == 100
