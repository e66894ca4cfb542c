"""Defects that such stores have, and that are not here."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.support.capabilities import SOON, Opening, double

from gen_durable import (
    Await,
    Context,
    Done,
    Finished,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    Signal,
    Start,
    Worker,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.store.types import Commit

go = Signal("go", int)


class Shop(Machine):
    @step
    async def sell(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n, spawn=[Start(call_back, n)])


CALLS: list[int] = []


@job(retry=RetryPolicy(backoff=lambda _: timedelta(milliseconds=10)))
async def call_back(n: int, ctx: Context) -> str:
    """The receiver is down, twice."""
    CALLS.append(ctx.attempt)
    if ctx.attempt < 2:
        raise ConnectionError("refused")
    return "told"


async def test_the_outbox_is_written_with_the_completion(engine: Opening) -> None:
    """One transaction has written both, so no crash can come between them."""
    async with engine() as e:
        handle = await e.app.insert(Shop.sell, 1)
        await e.end(handle, machines=[Shop()])
        rows = await e.sql("select fsm, xmin::text as transaction from @schema.instances order by id")
        assert [row["fsm"] for row in rows] == ["Shop", "call_back"]
        assert rows[0]["transaction"] == rows[1]["transaction"]


async def test_a_completion_that_is_stale_writes_no_outbox(engine: Opening) -> None:
    async with engine() as e:
        await e.app.insert(double, 1)
        (claim,) = await e.claim(lease=0.0)
        await e.reclaim()
        child = '{"fsm": "call_back", "version": 1, "step": "run", "state": 1, "queue": "default", "priority": 0}'
        commit = Commit(claim.id, claim.epoch, claim.seq, "done", value="2", extra=f'{{"spawn": [{child}]}}')
        assert (await services_of(e.app).pool.run(services_of(e.app).statements.flush([commit]))).stale_ids == {
            claim.id
        }
        assert (await e.app.count()).value == 1


async def test_a_callback_is_retried(engine: Opening) -> None:
    """It is a run of its own, with attempts of its own, and the run that it tells of has long ended."""
    CALLS.clear()
    async with engine() as e, Worker(e.app, machines=[Shop()], jobs=[call_back]):
        sold = await e.app.insert(Shop.sell, 1)
        assert await sold.wait(SOON) == Finished(sold.id, 1)
        (told,) = await e.app.list(machine="call_back")
        assert await e.app.handle(told.id, call_back).wait(SOON) == Finished(told.id, "told")
        assert CALLS == [0, 1, 2]


class Waits(Machine):
    @step
    async def wait(self, timeout: float | None, ctx: Context) -> Outcome[str]:
        limit = None if timeout is None else timedelta(seconds=timeout)
        return Await(go, then=self.went, state=timeout, timeout=limit)

    @step
    async def went(self, timeout: float | None, ctx: Context) -> Outcome[str]:
        return Done(f"went with {ctx.take(go)}")


async def test_a_suspended_run_has_a_way_back(engine: Opening) -> None:
    """A signal by its key, the time that it was given, or an operator who takes a cancel back; also after a restart."""
    async with engine() as e:
        signalled = await e.app.insert(Waits.wait, None, unique_key="order:1")
        timed = await e.app.insert(Waits.wait, 0.2)
        cancelled = await e.app.insert(Waits.wait, None)
        async with Worker(e.app, machines=[Waits()]):
            for handle in (signalled, cancelled):
                await e.until(handle, lambda row: row.status == "awaiting_signal")
        # Nobody is at work now: parked runs are rows, and need no process.
        await e.app.signal("order:1", go, 7)
        assert await e.app.cancel(cancelled, reason="a mistake")
        await e.app.retry(cancelled)
        await e.app.signal(cancelled, go, 9)
        async with Worker(e.app, machines=[Waits()]):
            assert await signalled.wait(SOON) == Finished(signalled.id, "went with 7")
            assert await timed.wait(SOON) == Finished(timed.id, "went with None")
            assert await cancelled.wait(SOON) == Finished(cancelled.id, "went with 9")


class Stumbles(Machine):
    """Each of its steps fails twice."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    async def stumble(self, ctx: Context, then: Outcome[Any]) -> Outcome[Any]:
        self.seen.append((ctx.step, ctx.attempt))
        await asyncio.sleep(0)
        if ctx.attempt < 2:
            raise ConnectionError("no")
        return then

    @step
    async def first(self, n: int, ctx: Context) -> Outcome[int]:
        return await self.stumble(ctx, Next(self.second, n))

    @step
    async def second(self, n: int, ctx: Context) -> Outcome[int]:
        return await self.stumble(ctx, Done(n))

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
        return Retry(state)


async def test_attempts_are_counted_for_each_step(engine: Opening) -> None:
    """What the first step needed is not held against the second."""
    async with engine() as e:
        machine = Stumbles()
        handle = await e.app.insert(Stumbles.first, 1)
        assert await e.end(handle, machines=[machine]) == Finished(handle.id, 1)
        assert machine.seen == [(name, n) for name in ("first", "second") for n in range(3)]
        assert [(t.step, t.attempt) for t in await e.app.history(handle)] == machine.seen
