"""docs/howto/operate.md says how many connections a client and a worker open; pg_stat_activity says the same."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.support.engine import Engine, Opening, seconds

from gen_durable import Context, Done, Machine, Outcome, Start, job, step
from gen_durable.engine import runtime

TEXT = (Path(__file__).parents[2] / "docs/howto/operate.md").read_text()
PAGE = TEXT.split("\n## Plan the number of connections\n", 1)[1].split("\n## ", 1)[0]
TABLE = dict(re.findall(r"^\| ([^|]+) \| (\d+)(?: at most)?(?: \(`pool_size`\))? \|", PAGE, re.MULTILINE))
ALWAYS = [
    "picks of a worker",
    "commits of a worker",
    "heartbeats of a worker",
    "reaper, gc and history of a worker",
    "notifications of a worker",
]
OPEN = "select count(*) from pg_stat_activity where usename = current_user and application_name = 'gen_durable'"
held: list[asyncio.Event] = []
begun: list[int] = []


@job
async def quick(n: int) -> int:
    return n


class Writes(Machine):
    @step(transactional=True)
    async def hold(self, n: int, ctx: Context) -> Outcome[int]:
        await ctx.connection.execute("select 1")
        begun.append(n)
        await held[0].wait()
        return Done(n)


async def count(e: Engine) -> int:
    return int(await e.rows.connection.fetchval(OPEN))


def test_the_numbers_of_the_page() -> None:
    """They are those of the code, and add up to the maximum that it names."""
    assert int(TABLE["calls of a `Durable`"]) == 10
    assert int(TABLE["transactional steps of a worker"]) == runtime.TRANSACTION_CONNECTIONS
    assert int(TABLE["outcomes whose row is locked"]) == runtime.LOCKED_CONNECTIONS
    assert int(TABLE["outcomes above 100 KB and large fan-outs"]) == runtime.FAN_OUTS
    assert sum(int(TABLE[part]) for part in ALWAYS) == 5
    assert f"{sum(map(int, TABLE.values()))} at most by default" in PAGE


async def test_a_client(private: Opening) -> None:
    """None before its first call, one for reads one by one, one more to notify, at most pool_size at the same time."""
    async with private(pool_size=3) as e:
        assert await count(e) == 0
        for _ in range(3):
            await e.app.list()
        assert await count(e) == 1
        for n in range(3):
            await e.app.insert(quick, n)
        assert await count(e) <= 2
        await asyncio.gather(*(e.app.insert(quick, n) for n in range(20)))
        assert await count(e) <= 2, "concurrent inserts share a connection"
        await asyncio.gather(*(e.app.list() for _ in range(20)))
        assert await count(e) == 3


async def test_a_worker(private: Opening) -> None:
    """One for each part that always runs, and one for each transactional step at the same time."""
    held[:], begun[:] = [asyncio.Event()], []
    async with private(pool_size=1) as e:
        options = {"heartbeat_interval": seconds(0.1), "lease_ttl": seconds(30), "queues": {"default": 50}}
        options["reap_interval"] = seconds(5)
        async with e.worker(quick, Writes(), **options):
            await e.end(await e.app.insert(quick, 1))
            await e.app.insert(Writes.hold, 0)
            await e.rows.when(lambda: _has_begun(1))
            always = sum(int(TABLE[part]) for part in ALWAYS)
            await e.rows.when(lambda: _is(e, always + 1 + 1))  # heartbeats, too: of a step that is under way
            handles = await e.app.insert_many([Start(Writes.hold, n) for n in range(1, 15)])
            most = int(TABLE["transactional steps of a worker"])
            await e.rows.when(lambda: _has_begun(most))
            assert await count(e) == always + 1 + most
            held[0].set()
            for handle in handles:
                await e.end(handle)


async def _has_begun(number: int) -> bool:
    return len(begun) >= number


async def _is(e: Engine, number: int) -> bool:
    return await count(e) == number
