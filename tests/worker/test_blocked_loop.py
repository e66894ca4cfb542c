"""An event loop that does not come back: what has not begun is returned, and in the end the other claims are too.

The worker runs in a thread with a loop of its own, so that a step can block it while the test looks on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.engine import BRIEF, Engine, Opening, seconds, soon

from gen_durable import Context, Done, Durable, Finished, Machine, Outcome, Worker, step
from gen_durable.engine.event_loop_monitor import EventLoopMonitor

LEASE = BRIEF["lease_ttl"].total_seconds()
came_back = threading.Event()
entered = threading.Event()
ran: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    came_back.clear()
    entered.clear()
    ran.clear()
    yield
    came_back.set()


def deadlock() -> None:
    entered.set()
    came_back.wait(30)


class Blocks(Machine):
    @step
    async def block(self, name: str, ctx: Context) -> Outcome[str]:
        ran.append(f"{name} in {threading.current_thread().name}")
        if threading.current_thread().name == "blocked worker":
            deadlock()
        return Done(threading.current_thread().name)

    @step
    async def good(self, name: str, ctx: Context) -> Outcome[str]:
        ran.append(f"{name} in {threading.current_thread().name}")
        return Done(threading.current_thread().name)


@asynccontextmanager
async def blocked_worker(dsn: str, schema: str, **options: Any) -> AsyncIterator[list[str]]:
    """A worker in a thread, stopped at the end. Yields how often it reported a stuck loop."""
    reports: list[str] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    started = threading.Event()

    async def work() -> None:
        stop = asyncio.Event()
        async with Durable(dsn, schema=schema) as app:
            worker = Worker(app, machines=[Blocks()], **{**BRIEF, **options})

            def report() -> None:
                reports.append(threading.current_thread().name)
                raise SystemExit(7)  # must not end the heartbeats

            worker.on_stuck_loop = report
            async with worker:
                loops.append((asyncio.get_running_loop(), stop))
                started.set()
                await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(work()), name="blocked worker", daemon=True)
    thread.start()
    await soon(asyncio.to_thread(started.wait))
    try:
        yield reports
    finally:
        came_back.set()
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        await soon(asyncio.to_thread(thread.join))


async def insert_blocker(e: Engine) -> Any:
    return await e.app.insert(Blocks.block, "blocker", priority=-1)


@pytest.mark.parametrize("slots", [1, 3])
async def test_what_has_not_begun_is_returned(
    engine: Opening, dsn: str, schema: str, slots: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Claims behind busy slots and claims whose task has not run yet go to another worker, and run once.

    The step that blocks the loop keeps its claim, also for more than twice the lease.
    """
    async with engine() as e:
        blocker = await insert_blocker(e)
        others = [await e.app.insert(Blocks.good, f"other {n}") for n in range(2)]
        async with blocked_worker(dsn, schema, queues={"default": slots}, prefetch=2):
            await soon(asyncio.to_thread(entered.wait))
            assert [(await e.rows.row(other))["status"] for other in others] == ["executing", "executing"]
            began = asyncio.get_running_loop().time()
            async with e.worker(Blocks(), **BRIEF):
                for other in others:
                    assert await e.end(other) == Finished(other.id, "MainThread")
                assert [(await e.rows.row(other))["crashes"] for other in others] == [0, 0]
                await asyncio.sleep(2.3 * LEASE - (asyncio.get_running_loop().time() - began))
                came_back.set()
                assert await e.end(blocker) == Finished(blocker.id, "blocked worker")
        assert sorted(ran) == ["blocker in blocked worker", "other 0 in MainThread", "other 1 in MainThread"]
        assert "2 claims that have not begun are returned" in caplog.text
        assert "in deadlock" in caplog.text


async def test_leases_end_when_the_loop_does_not_come_back(engine: Opening, dsn: str, schema: str) -> None:
    """After `max_loop_block` no lease is extended: another worker takes over, and the process is told once."""
    async with engine() as e:
        blocker = await insert_blocker(e)
        async with blocked_worker(dsn, schema, max_loop_block=seconds(0.5)) as reports:
            await soon(asyncio.to_thread(entered.wait))
            async with e.worker(Blocks(), **BRIEF):
                assert await e.end(blocker) == Finished(blocker.id, "MainThread")
            assert reports == ["gen_durable heartbeat"]
            came_back.set()
            # The worker goes on: its outcome is stale, its heartbeats are back, and it takes new work.
            good = await e.app.insert(Blocks.good, "good")
            assert await e.end(good) == Finished(good.id, "blocked worker")
        assert (await e.rows.row(blocker))["result"] == '"MainThread"'


async def test_a_process_that_was_stopped_has_not_blocked_its_loop() -> None:
    """The time between two looks counts only as far as looks are made."""
    monitor = EventLoopMonitor(0.01, lambda _: None)
    assert monitor.measure_lag() == 0
    await asyncio.to_thread(came_back.wait, 0.05)  # the loop answers meanwhile
    assert monitor.measure_lag() == 0
    came_back.wait(0.05)  # the loop does not
    assert monitor.measure_lag() == 0.01
