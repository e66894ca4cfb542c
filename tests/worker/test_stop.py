"""Stopping a worker: what has not begun is given back, what runs is let finish, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
import time

from tests.support.engine import BRIEF, NEVER, Opening, seconds

from gen_durable import Context, Done, Finished, Machine, Next, Outcome, Pending, Start, job, step
from gen_durable.telemetry import QueueDrained, StepCommitted

running: dict[str, asyncio.Event] = {}
gates: dict[str, asyncio.Event] = {}
interrupted: list[str] = []


def gate(name: str) -> str:
    running[name], gates[name] = asyncio.Event(), asyncio.Event()
    return name


@job
async def hold(name: str) -> str:
    running[name].set()
    try:
        await gates[name].wait()
    except asyncio.CancelledError:
        interrupted.append(name)
        raise
    return "held"


@job
def sit(length: float) -> str:
    time.sleep(length)
    return "sat"


class Chain(Machine):
    @step
    async def link(self, name: str, ctx: Context) -> Outcome[int]:
        running[name].set()
        await asyncio.sleep(0.02)
        return Done(ctx.seq) if gates[name].is_set() else Next(self.link, name)


async def test_running_steps_finish(engine: Opening) -> None:
    """A stop waits for steps under way, commits their outcomes, and leaves nothing executing."""
    name = gate("finish")
    async with engine() as e:
        handles = await e.app.insert_many([Start(hold, name)] * 3)
        worker = e.worker(hold)
        await worker.start()
        await running[name].wait()
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0)
        gates[name].set()
        await stopping
        assert await e.rows.count("status = 'done'") == 3
        assert await e.rows.count("status = 'executing' or locked_by is not null") == 0
        assert [await e.end(h) for h in handles] == [Finished(h.id, "held") for h in handles]


async def test_unstarted_rows_are_given_back(engine: Opening) -> None:
    """Prefetched rows go back with their place and attempt kept and the claim bumped, before the running ones end."""
    name = gate("prefetched")
    async with engine() as e:
        handles = await e.app.insert_many([Start(hold, name, priority=n) for n in range(5)])
        before = {row["id"]: row for row in await e.rows.fetch("select * from @.instances")}
        worker = e.worker(hold, queues={"default": 1}, prefetch=3)
        await worker.start()
        await running[name].wait()
        stopping = asyncio.ensure_future(worker.stop())
        await e.rows.until(handles[3], status="runnable")
        assert not stopping.done()
        for handle in handles[1:4]:
            row = await e.rows.row(handle)
            assert (row["status"], row["attempt"], row["crashes"], row["claims"]) == ("runnable", 0, 0, 2)
            assert (row["locked_by"], row["lease_expires_at"], row["last_error"]) == (None, None, None)
            assert row["eligible_at"] == before[handle.id]["eligible_at"]
        assert (await e.rows.row(handles[4]))["claims"] == 0
        gates[name].set()
        await stopping
        assert (await e.rows.row(handles[0]))["status"] == "done"
        assert e.seen.of(QueueDrained) == [QueueDrained("default", 3, 0)]


async def test_given_back_rows_run_elsewhere_at_once(engine: Opening) -> None:
    """What one worker gives back is taken by another without waiting for a poll."""
    name = gate("elsewhere")
    lazy = {"poll_interval": NEVER, "max_poll_interval": NEVER}
    async with engine() as e, engine() as other:
        handles = await e.app.insert_many([Start(hold, name)] * 3)
        first = e.worker(hold, queues={"default": 1}, prefetch=2, **lazy)
        await first.start()
        await running[name].wait()
        async with other.worker(hold, **lazy):
            gates[name].set()
            await first.stop()
            assert [await h.wait(seconds(5)) for h in handles] == [Finished(h.id, "held") for h in handles]


async def test_overdue_steps_are_cancelled_and_given_back(engine: Opening) -> None:
    """A step longer than drain_timeout is cancelled and its row given back: no attempt burned, runnable at once."""
    name = gate("overdue")
    async with engine() as e:
        handle = await e.app.insert(hold, name)
        began = time.monotonic()
        async with e.worker(hold, drain_timeout=seconds(0.3)):
            await running[name].wait()
            began = time.monotonic()
        assert 0.3 <= time.monotonic() - began < 2
        row = await e.rows.row(handle)
        assert (row["status"], row["attempt"], row["crashes"], row["claims"]) == ("runnable", 0, 0, 2)
        assert row["locked_by"] is None
        assert interrupted[-1] == name
        assert e.seen.of(QueueDrained) == [QueueDrained("default", 0, 1)]
        gates[name].set()
        async with e.worker(hold):
            assert await e.end(handle) == Finished(handle.id, "held")


async def test_a_thread_that_does_not_end(engine: Opening) -> None:
    """A `def` step cannot be cancelled: the stop does not wait for it, and its row is taken back by its lease."""
    async with engine() as e:
        handle = await e.app.insert(sit, 1.2)
        async with e.worker(sit, drain_timeout=seconds(0.1), **BRIEF):
            await e.rows.until(handle, status="executing")
            began = time.monotonic()
        assert time.monotonic() - began < 1
        assert (await e.rows.row(handle))["status"] == "executing"
        async with e.worker(sit, **BRIEF):
            assert await e.end(handle) == Finished(handle.id, "sat")
        row = await e.rows.row(handle)
        assert (row["claims"], row["attempt"]) == (3, 1)


async def test_drain_timeout_of_no_time(engine: Opening) -> None:
    """drain_timeout=0 gives everything back at once."""
    name = gate("hasty")
    async with engine() as e:
        handle = await e.app.insert(hold, name)
        async with e.worker(hold, drain_timeout=seconds(0)):
            await running[name].wait()
            began = time.monotonic()
        assert time.monotonic() - began < 1
        assert (await e.rows.row(handle))["status"] == "runnable"


async def test_run_ahead_stops(engine: Opening) -> None:
    """A chain that would go on for ever commits the step under way and gives its row back."""
    name = gate("chain")
    async with engine() as e:
        handle = await e.app.insert(Chain.link, name)
        async with e.worker(Chain(), run_ahead_time=NEVER, run_ahead_steps=10**6):
            await running[name].wait()
            await e.seen.until(StepCommitted, count=3)
            began = time.monotonic()
        assert time.monotonic() - began < 2
        row = await e.rows.row(handle)
        assert (row["status"], row["claims"], row["attempt"], row["locked_by"]) == ("runnable", 1, 0, None)
        assert row["seq"] == len(e.seen.of(StepCommitted))


async def test_stopping_twice(engine: Opening) -> None:
    """A second stop is nothing; one before the start too; nothing is picked afterwards."""
    async with engine() as e:
        worker = e.worker(hold)
        await worker.stop()
        await worker.start()
        await worker.stop()
        await worker.stop()
        handle = await e.app.insert(hold, gate("after"))
        assert await handle.wait(seconds(0.2)) == Pending(handle.id)
        assert (await e.rows.row(handle))["claims"] == 0


async def test_two_stops_at_once(engine: Opening) -> None:
    """Whoever calls stop gets control back when the worker has stopped, not while another call is still draining."""
    name = gate("both")
    async with engine() as e:
        await e.app.insert(hold, name)
        worker = e.worker(hold)
        await worker.start()
        await running[name].wait()
        first = asyncio.ensure_future(worker.stop())
        second = asyncio.ensure_future(worker.stop())
        await asyncio.wait([second], timeout=0.2)
        early = second.done()
        gates[name].set()
        await asyncio.gather(first, second)
        assert not early, "the second stop returned while a step was still running"


async def test_an_interrupted_stop_leaves_no_beats(engine: Opening) -> None:
    """A stop that is cancelled half-way leaves no thread behind that goes on beating for rows nobody runs."""
    name = gate("interrupted")
    async with engine() as e:
        handle = await e.app.insert(hold, name)
        before = beating()
        worker = e.worker(hold, drain_timeout=seconds(60), **BRIEF)
        await worker.start()
        await running[name].wait()
        assert beating() == before + 1
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.wait([stopping], timeout=0.1)
        stopping.cancel()
        await asyncio.wait([stopping])

        async def silent() -> bool:
            return beating() == before

        await e.rows.when(silent)
        assert handle.id


def beating() -> int:
    return sum(thread.name.startswith("gen_durable heartbeat") for thread in threading.enumerate())


async def test_stopping_an_idle_worker_is_quick(engine: Opening) -> None:
    """With nothing to do a stop takes no time worth naming."""
    async with engine() as e:
        async with e.worker(hold):
            await e.rows.count()
            began = time.monotonic()
        assert time.monotonic() - began < 1


async def test_stopping_in_the_middle_of_a_crowd(engine: Opening) -> None:
    """Workers that come and go in a busy queue lose nothing and run nothing twice."""
    async with engine() as e:
        handles = await e.app.insert_many(Start(tick, n) for n in range(1500))
        for _ in range(4):
            async with e.worker(tick, queues={"default": 8}, prefetch=8):
                await e.seen.until(StepCommitted, count=len(e.seen.of(StepCommitted)) + 20)
            assert await e.rows.count("status = 'executing'") == 0
        async with e.worker(tick, queues={"default": 50}):
            for n, handle in enumerate(handles):
                assert await e.end(handle) == Finished(handle.id, n)
        assert await e.rows.count("seq = 1 and attempt = 0 and crashes = 0") == 1500


@job
async def tick(number: int) -> int:
    await asyncio.sleep(0.002)
    return number
