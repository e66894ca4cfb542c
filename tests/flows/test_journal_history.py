"""The history: what steps decided, as a user reads it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

from tests.support.journal import SOON, Opening, Scripted, Till, go, run

from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Failed,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Start,
    SyncDurable,
    Worker,
    job,
    step,
)


async def test_every_outcome_is_in_the_history(open_app: Opening) -> None:
    """One row for each committed outcome, in order, without a gap; what on_error answers, and why, too."""

    @job
    async def child(n: int) -> int:
        return n

    class Tour(Machine):
        @step
        async def first(self, n: int, ctx: Context) -> Outcome[int]:
            if ctx.attempt == 0:
                raise ValueError("once")
            return Next(self.second, n) if ctx.attempt == 2 else Retry(n)

        @step
        async def second(self, n: int, ctx: Context) -> Outcome[int]:
            return Await(go, then=self.third, state=n, timeout=timedelta(0))

        @step
        async def third(self, n: int, ctx: Context) -> Outcome[int]:
            return ScheduleChildren([Start(child, 1)], then=self.fourth, state=n)

        @step
        async def fourth(self, n: int, ctx: Context) -> Outcome[int]:
            await asyncio.sleep(0.05)
            raise ValueError("at last")

        async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
            return Retry(state) if ctx.step == "first" else Fail(error)

    async with open_app() as app:
        async with Worker(app, machines=[Tour()], jobs=[child]) as worker:
            handle = await app.insert(Tour.first, 1)
            assert isinstance(await handle.wait(SOON), Failed)
        history = await app.history(handle)
        assert [(t.seq, t.step, t.outcome, t.next_step, t.attempt, t.error) for t in history] == [
            (1, "first", "Retry", "first", 0, "ValueError: once"),
            (2, "first", "Retry", "first", 1, None),
            (3, "first", "Next", "second", 2, None),
            (4, "second", "Await", "third", 0, None),
            (5, "third", "ScheduleChildren", "fourth", 0, None),
            (6, "fourth", "Fail", None, 0, "ValueError: at last"),
        ]
        assert {t.worker for t in history} == {worker.name}
        row = await app.get(handle)
        assert row.seq == 6
        assert all(t.state is None for t in history)
        last = history[-1]
        assert 0.05 <= last.duration < 1
        assert row.finished_at is not None
        assert last.started_at + timedelta(seconds=last.duration) <= row.finished_at + timedelta(milliseconds=50)
        assert [t.started_at for t in history] == sorted(t.started_at for t in history)


async def test_history_off_keeps_nothing_and_states_keep_all(open_app: Opening, dsn: str, schema: str) -> None:
    """The class argument decides, for jobs too; a subclass has its own."""

    class Kept(Scripted, history="states"):
        pass

    class Off(Scripted, history="off"):
        pass

    @job(history="off")
    async def quiet(n: int) -> int:
        return n

    async def body(machine: list[Any], n: int, ctx: Context) -> Outcome[int]:
        return Next(machine[0].second, n + 1)

    async with open_app() as app:
        for kind, expected in ((Kept, [2, 2]), (Off, []), (Scripted, [None, None])):
            machine: list[Any] = []
            machine.append(kind(partial(body, machine)))
            handle, _ = await run(app, machine[0])
            assert [t.state for t in await app.history(handle)] == expected
        async with Worker(app, jobs=[quiet]):
            done = await app.insert(quiet, 1)
            await done.wait(SOON)
        assert await app.history(done) == []


async def test_the_sync_client_reads_it_too(open_app: Opening, dsn: str, schema: str) -> None:
    """`SyncDurable` has the same three readers; unknown instances have no journal."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        await ctx.run("charge", Till().charge, 1)
        ctx.progress(0.5)
        return Done(n)

    async with open_app() as app:
        handle, _ = await run(app, Scripted(first))

    def read() -> list[int]:
        with SyncDurable(dsn, schema=schema) as sync:
            reads = (sync.history, sync.activities, sync.progress)
            return [len(r(handle.id)) for r in reads] + [len(r(999)) for r in reads]

    assert await asyncio.to_thread(read) == [1, 1, 1, 0, 0, 0]
