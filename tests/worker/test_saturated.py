"""A worker whose slots are all taken waits for a slot; it does not look for work that it could not take."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Context, Durable, Start, Worker, job

all_in = asyncio.Event()
running: set[int] = set()


@job
async def long(n: int, ctx: Context) -> int:
    """Holds its slot for a while."""
    running.add(ctx.id)
    if len(running) >= 2:
        all_in.set()
    await asyncio.sleep(2.5)
    return n


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 10}, {}], ids=["none", "some", "by pace"])
async def test_a_full_worker_burns_no_cpu(dsn: str, schema: str, options: dict[str, Any]) -> None:
    """With all slots taken, timers due and polls overdue, the loop still sleeps: some milliseconds of CPU a second."""
    global all_in
    all_in = asyncio.Event()
    running.clear()
    poll = timedelta(milliseconds=100)
    async with Durable(dsn, schema=schema) as app:
        await app.insert_many([Start(long, n) for n in range(5)])
        await app.insert(long, 9, delay=timedelta(milliseconds=300))
        async with Worker(
            app, jobs=[long], queues={"default": 2}, poll_interval=poll, max_poll_interval=poll, **options
        ):
            await all_in.wait()
            began = time.process_time()
            await asyncio.sleep(1.5)
            assert time.process_time() - began < 0.5
