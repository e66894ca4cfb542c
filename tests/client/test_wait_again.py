"""Who waits for an instance that was tried again is not told of the end before that."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Durable, Finished, Status, Worker, job
from gen_durable.core.services import services_of

SOON = timedelta(seconds=10)


@job
async def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


async def test_an_end_that_is_told_late(dsn: str, schema: str) -> None:
    """A worker of this process tells of an end that lies before the waiter's first question."""
    async with Durable(dsn, schema=schema, migrate=True) as app:
        handle = await app.insert(double, 1)
        returned = time.perf_counter()
        waiting = asyncio.create_task(handle.wait(SOON))
        await asyncio.sleep(0.05)
        services_of(app).completion_watcher.report_end(handle.id, Status.FAILED, None, "of an earlier try", returned)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        async with Worker(app, jobs=[double]):
            assert await waiting == Finished(handle.id, 2)


async def test_an_answer_that_was_read_before(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database was asked for somebody else, before this one came, and its answer is late."""
    async with Durable(dsn, schema=schema, migrate=True) as app:
        handle = await app.insert(double, 1)
        read, late = asyncio.Event(), asyncio.Event()
        ask = services_of(app).completion_watcher._pool.run_idempotent

        async def slowly(call: Any) -> Any:
            rows = await ask(call)
            if rows:
                monkeypatch.undo()
                read.set()
                await late.wait()
            return rows

        await app.cancel(handle.id, reason="wrong")
        monkeypatch.setattr(
            type(services_of(app).completion_watcher._pool), "run_idempotent", lambda _self, call: slowly(call)
        )
        first = asyncio.create_task(handle.wait(SOON))
        await read.wait()
        await handle.retry()
        second = asyncio.create_task(handle.wait(SOON))
        await asyncio.sleep(0.05)
        late.set()
        await first
        await asyncio.sleep(0.05)
        assert not second.done()
        async with Worker(app, jobs=[double]):
            assert await second == Finished(handle.id, 2)
