"""The events of limits: who waits, for what, and who was let back."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.engine import NEVER, Opening, seconds

from gen_durable import Concurrency, Finished, Rate, Start, job
from gen_durable.telemetry import PartitionContended, RowsBlocked, RowsThrottled, RowsUnblocked

gates: dict[str, asyncio.Event] = {}


@job
async def hold(gate: str) -> None:
    await gates[gate].wait()


@job
async def quick(n: int) -> int:
    return n


async def one_by_one(e: Any, count: int, **options: Any) -> list[Any]:
    """Not as a batch: of that, those that surely cannot run would come in waiting already, without a word."""
    return [await e.app.insert(quick, n, **options) for n in range(count)]


async def test_blocked_and_unblocked(engine: Opening) -> None:
    """A pick tells how many must wait for a slot, by the key of the limit; and which queue some came back into."""
    gates["g"] = asyncio.Event()
    async with engine() as e:
        await e.app.set_limit("l", Concurrency(1))
        await e.app.insert(hold, "g", limit=("l", "acme"))
        async with e.worker(hold, quick):
            await e.rows.when(lambda: there(e, "status = 'executing'", 1))
            handles = await one_by_one(e, 3, limit=("l", "acme"))
            await e.rows.when(lambda: there(e, "blocked_on = 'slot/l/acme'", 3))
            blocked = await e.seen.until(RowsBlocked)
            assert {event.limit for event in blocked} == {"l/acme"}
            await e.rows.when(lambda: told(e, 3))
            assert e.seen.of(RowsThrottled) == []
            gates["g"].set()
            for handle in handles:
                assert isinstance(await e.end(handle), Finished)


async def there(e: Any, where: str, count: int) -> bool:
    return bool(await e.rows.count(where) == count)


async def told(e: Any, count: int) -> bool:
    return sum(int(event.count) for event in e.seen.of(RowsBlocked)) == count


async def test_throttled(engine: Opening) -> None:
    """A pick tells how many must wait for a token. Those that wait are told by nobody twice."""
    async with engine() as e:
        await e.app.set_limit("r", Rate(1, NEVER * 24, burst=2))
        await one_by_one(e, 6, limit="r")
        async with e.worker(quick, poll_interval=seconds(0.05)):
            throttled = await e.seen.until(RowsThrottled)
            await e.rows.when(lambda: there(e, "status = 'done'", 2))
            await asyncio.sleep(0.3)  # further picks have nothing to tell
            throttled = e.seen.of(RowsThrottled)
        assert {event.limit for event in throttled} == {"r"}
        assert sum(event.count for event in throttled) == 4
        assert e.seen.of(RowsBlocked) == []


async def test_unblocked_by_a_pick_and_by_a_sweep(engine: Opening) -> None:
    """A pick that finds tokens for those that wait tells of their queue; so does a sweep that finds a slot free."""
    async with engine() as e:
        await e.app.set_limit("r", Rate(20, seconds(1)))
        handles = await e.app.insert_many([Start(quick, n, limit="r") for n in range(8)])
        async with e.worker(quick):
            for handle in handles:
                await e.end(handle)
        assert RowsUnblocked("default") in e.seen.of(RowsUnblocked)
        e.seen.events.clear()

        await e.app.set_limit("l", Concurrency(1))
        lost = await e.app.insert(quick, 1, limit="l")
        await e.rows.fetch("update @.instances set blocked_on = 'slot/l' where id = $1", lost.id)
        async with e.worker(quick, reap_interval=seconds(0.1)):
            await e.seen.until(RowsUnblocked)
            assert isinstance(await e.end(lost), Finished)
        assert e.seen.of(PartitionContended) == []
