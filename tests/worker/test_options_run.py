"""run_ahead_time, run_ahead_steps, flush_batch and threads: how steps are run and committed."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.support.engine import Opening, seconds

from gen_durable import Context, Done, Finished, Machine, Next, Outcome, Start, job, step


class Chain(Machine):
    """Takes so many steps, each of which takes a while."""

    def __init__(self, pause: float = 0) -> None:
        self.pause = pause

    @step
    async def link(self, left: int, ctx: Context) -> Outcome[int]:
        await asyncio.sleep(self.pause)
        return Next(self.link, left - 1) if left else Done(ctx.seq)

    @step
    async def hop(self, left: int, ctx: Context) -> Outcome[int]:
        return Next(self.hop, left - 1, run_ahead=False) if left else Done(ctx.seq)


async def test_how_many_claims_a_chain_takes(engine: Opening) -> None:
    """A chain of ten outcomes: one claim with run-ahead, one per step without, one per budget in between."""
    long = seconds(60)
    cases: list[tuple[dict[str, Any], int]] = [
        ({"run_ahead_time": long}, 1),
        ({"run_ahead_time": long, "run_ahead_steps": 0}, 10),
        ({"run_ahead_time": seconds(0)}, 10),
        ({"run_ahead_time": long, "run_ahead_steps": 3}, 3),
        ({"run_ahead_time": long, "run_ahead_steps": 1}, 5),
    ]
    async with engine() as e:
        for options, claims in cases:
            async with e.worker(Chain(), **options):
                handle = await e.app.insert(Chain.link, 9)
                assert await e.end(handle) == Finished(handle.id, 9)
                row = await e.rows.row(handle)
                assert (row["seq"], row["claims"]) == (10, claims), options


async def test_run_ahead_ends_with_its_time(engine: Opening) -> None:
    """A slow chain gives its slot back when the time is over, so that others get their turn."""
    async with engine() as e, e.worker(Chain(pause=0.05), run_ahead_time=seconds(0.12)):
        handle = await e.app.insert(Chain.link, 9)
        await e.end(handle)
        row = await e.rows.row(handle)
        assert row["seq"] == 10
        assert 3 <= row["claims"] <= 6


async def test_a_step_may_decline(engine: Opening) -> None:
    """`Next(run_ahead=False)` gives the claim back each time."""
    async with engine() as e, e.worker(Chain()):
        handle = await e.app.insert(Chain.hop, 4)
        await e.end(handle)
        assert (await e.rows.row(handle))["claims"] == 5


gathered: dict[str, asyncio.Event] = {}
arrived: dict[str, int] = {}


@job
async def together(gate: str) -> str:
    """All of them end in the same moment."""
    arrived[gate] = arrived.get(gate, 0) + 1
    await gathered[gate].wait()
    return gate


@pytest.mark.parametrize(("batch", "most"), [(3, 3), (500, 30)])
async def test_flush_batch(engine: Opening, batch: int, most: int) -> None:
    """Outcomes that come together are committed in transactions of at most flush_batch."""
    gate = f"flush{batch}"
    gathered[gate], arrived[gate] = asyncio.Event(), 0
    async with engine() as e, e.worker(together, queues={"default": 30}, flush_batch=batch):
        handles = await e.app.insert_many([Start(together, gate)] * 30)

        async def all_here() -> bool:
            return arrived[gate] == 30

        await e.rows.when(all_here)
        gathered[gate].set()
        for handle in handles:
            await e.end(handle)
        sizes = await e.rows.fetch("select count(*) as n from @.instances group by finished_at order by n")
    assert sizes[-1]["n"] <= batch
    assert sizes[-1]["n"] > (1 if batch == 3 else 3)
    assert most >= sizes[-1]["n"]


class Threads:
    """How many threads are inside at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def visit(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.05)
        with self.lock:
            self.inside -= 1


counted: dict[str, Threads] = {}


@job
def sit(name: str) -> None:
    counted[name].visit()


@pytest.mark.parametrize(("threads", "most"), [(2, 2), (None, 6)])
async def test_threads(engine: Opening, threads: int | None, most: int) -> None:
    """`def` steps run in at most `threads` threads; by default in as many as there are slots."""
    name = f"threads{threads}"
    counted[name] = Threads()
    async with engine() as e, e.worker(sit, queues={"default": 6}, threads=threads):
        for handle in await e.app.insert_many([Start(sit, name)] * 18):
            await e.end(handle)
    assert counted[name].most == most


class Punctual(Machine):
    @step(timeout=seconds(0.5))
    def work(self, _: None, ctx: Context) -> Outcome[str]:
        time.sleep(0.3)
        return Done("in time")


async def test_waiting_for_a_thread_is_not_running(engine: Opening) -> None:
    """A step's timeout bounds its execution: the time that it waited for a free thread does not count."""
    async with engine() as e, e.worker(Punctual(), queues={"default": 4}, threads=1):
        handles = await e.app.insert_many([Start(Punctual.work, None)] * 3)
        assert [await e.end(handle) for handle in handles] == [Finished(h.id, "in time") for h in handles]
