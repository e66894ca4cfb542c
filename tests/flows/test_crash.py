"""Workers are killed; their work is done by others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.programs import steps

from gen_durable import Durable, Failed, Finished, Start, Worker

SLACK = 1.0  # what two busy cores may add to a deadline


async def test_a_killed_workers_step_runs_elsewhere_within_lease_and_reap(
    dsn: str, schema: str, spawn: Callable[..., Any]
) -> None:
    """SIGKILL in the middle of a step: another worker begins it again within lease_ttl + reap_interval."""
    async with Durable(dsn, schema=schema) as app:
        first = spawn("steps")
        await first.until("ready")
        handle = await app.insert(steps.Slow.work, steps.Work(3.0))
        await first.until(f"work {handle.id} attempt 0")
        second = spawn("steps")
        await second.until("ready")
        first.kill()
        killed = time.monotonic()
        taken = await second.until(f"work {handle.id} attempt 1")
        assert taken - killed <= 1.2 + 0.3 + SLACK
        assert await handle.wait(timedelta(seconds=10)) == Finished(handle.id, 0)
        row = await handle.get()
        assert (row.attempt, row.seq, row.crashes) == (0, 2, 0)


async def test_a_step_that_blocks_the_loop_for_twice_the_lease_keeps_its_claim(
    dsn: str, schema: str, spawn: Callable[..., Any]
) -> None:
    """Beats come from a thread: a step that never awaits is not reaped, although every other process reaps eagerly."""
    async with Durable(dsn, schema=schema) as app:
        eager = Worker(app, queues={}, reap_interval=timedelta(milliseconds=50))
        async with eager:
            blocked = spawn("steps", LEASE="1.0")
            await blocked.until("ready")
            handle = await app.insert(steps.Slow.work, steps.Work(2.2, blocking=True))
            assert await handle.wait(timedelta(seconds=15)) == Finished(handle.id, 0)
        row = await handle.get()
        assert row.claims == 1
        assert sum("work " in line for line in blocked.lines()) == 1


async def test_a_row_that_kills_its_worker_is_failed_after_max_crashes(
    dsn: str, schema: str, spawn: Callable[..., Any]
) -> None:
    """A poison row ends as failed after max_crashes, and its neighbours are done."""
    async with Durable(dsn, schema=schema) as app:
        poison = await app.insert(steps.die, 1)
        reaper = Worker(app, queues={}, reap_interval=timedelta(milliseconds=50), max_crashes=3)
        async with reaper:
            for crash in range(3):
                program = spawn("steps", QUEUES="poison,default", LEASE="0.6")
                assert await asyncio.to_thread(program.process.wait, 20) == -9, f"crash {crash}"
            ending = await poison.wait(timedelta(seconds=10))
        assert isinstance(ending, Failed)
        assert "crash loop" in ending.error
        assert (await poison.get()).crashes == 3
        healthy = spawn("steps", QUEUES="poison,default")
        await healthy.until("ready")
        assert await (await app.insert(steps.quick, 7)).wait(timedelta(seconds=10)) == Finished(2, 7)


@pytest.mark.slow
async def test_nothing_is_lost_while_workers_are_killed(dsn: str, schema: str, spawn: Callable[..., Any]) -> None:
    """Three workers, one killed every half second: every instance ends, each outcome is committed exactly once."""
    async with Durable(dsn, schema=schema) as app:
        workers = [spawn("steps", LEASE="0.9") for _ in range(3)]
        for worker in workers:
            await worker.until("ready")
        handles = await app.insert_many([Start(steps.Slow.work, steps.Work(0.05)) for _ in range(300)])
        for round_ in range(6):
            await asyncio.sleep(0.5)
            workers[round_ % 3].kill()
            workers[round_ % 3] = spawn("steps", LEASE="0.9")
        endings = await asyncio.gather(*(h.wait(timedelta(seconds=60)) for h in handles))
        assert all(isinstance(ending, Finished) for ending in endings)
        rows = [await app.get(h.id) for h in handles]
        assert {row.seq for row in rows} == {2}
