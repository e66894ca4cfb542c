"""What a transactional step may write beside its transaction, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from gen_durable import (
    Await,
    Cancelled,
    Context,
    Done,
    Durable,
    Fail,
    Failed,
    Finished,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    ScheduleChildren,
    Signal,
    Start,
    Worker,
    job,
    step,
)
from gen_durable.errors import InputError
from gen_durable.step_services import StepConnection

SOON = timedelta(seconds=20)
go = Signal("go", None)


async def charge() -> int:
    return 1


WRITES: dict[str, Callable[[Context], Awaitable[object]]] = {
    "ctx.checkpoint": lambda ctx: ctx.checkpoint(1),
    "ctx.clear_checkpoint": lambda ctx: ctx.clear_checkpoint(),
    "ctx.run": lambda ctx: ctx.run("charge", charge),
}


@pytest.mark.parametrize("what", WRITES)
async def test_the_journal_comes_first(dsn: str, schema: str, what: str) -> None:
    """Later it would stay when the step's writes are rolled back, and wait for a row that the step itself holds."""
    async with Durable(dsn, schema=schema) as app:

        @job(transactional=True, retry=RetryPolicy(attempts=1))
        async def writes(n: int, ctx: Context) -> None:
            await app.signal(ctx.id, go, connection=ctx.connection)  # the row is locked by the step's transaction now
            await WRITES[what](ctx)

        async with Worker(app, jobs=[writes]):
            handle = await app.insert(writes, 1)
            ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert f"{what} comes after the first use of ctx.connection" in ending.error
        assert await app.activities(handle.id) == []


async def test_an_activity_has_no_share_in_the_transaction(dsn: str, schema: str) -> None:
    """It would be kept as finished while its writes are rolled back."""
    async with Durable(dsn, schema=schema) as app:

        @job(transactional=True, retry=RetryPolicy(attempts=1))
        async def mixes(n: int, ctx: Context) -> None:
            async def write() -> None:
                await ctx.connection.execute("select 1")

            await ctx.run("write", write)

        async with Worker(app, jobs=[mixes]):
            handle = await app.insert(mixes, 1)
            ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert "ctx.connection cannot be used inside or during an activity" in ending.error
        assert [(a.name, a.ok) for a in await app.activities(handle.id)] == [("write", False)]


@pytest.mark.background_errors  # the task that the step leaves behind
async def test_nothing_is_written_beside_a_note(dsn: str, schema: str) -> None:
    """While a note is under way the connection is kept back: its locks would hold the note up, which is waited for."""
    async with Durable(dsn, schema=schema) as app:

        @job(transactional=True, retry=RetryPolicy(attempts=1))
        async def hurries(n: int, ctx: Context) -> None:
            noting = asyncio.ensure_future(ctx.checkpoint(1))
            await asyncio.sleep(0)
            await app.signal(ctx.id, go, connection=ctx.connection)
            await noting

        async with Worker(app, jobs=[hurries]):
            handle = await app.insert(hurries, 1)
            ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert "ctx.connection cannot be used inside or during an activity" in ending.error


async def test_ctx_sync_is_for_def_steps(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:

        @job(transactional=True, retry=RetryPolicy(attempts=1))
        async def threaded(n: int, ctx: Context) -> None:
            await asyncio.to_thread(lambda: ctx.sync.checkpoint(1))

        async with Worker(app, jobs=[threaded]):
            ending = await (await app.insert(threaded, 1)).wait(SOON)
        assert isinstance(ending, Failed)
        assert "ctx.sync is for `def` steps" in ending.error


async def test_what_came_first_stays_after_a_rollback(dsn: str, schema: str) -> None:
    """The next execution has the activity's answer and the checkpoint, and does all the writing again."""
    async with Durable(dsn, schema=schema) as app:
        calls: list[int] = []

        async def charged() -> int:
            calls.append(1)
            return 7

        class Booking(Machine):
            @step(transactional=True)
            async def book(self, state: None, ctx: Context) -> Outcome[list[int]]:
                charge_id = await ctx.run("charge", charged)
                before = ctx.checkpoint_as(int) or 0
                await ctx.checkpoint(before + 1)
                await ctx.connection.execute(f'insert into "{schema}".book values ($1)', charge_id)
                if before == 0:
                    raise ValueError("no")
                return Done([charge_id, before])

            async def on_error(self, state: None, ctx: Context, error: Exception) -> Outcome[list[int]]:
                return Retry(state) if isinstance(error, ValueError) else Fail(error)

        connection = await asyncpg.connect(dsn)
        try:
            async with Worker(app, machines=[Booking()]):
                await connection.execute(f'create table "{schema}".book (charge int)')
                handle = await app.insert(Booking.book, None)
                assert await handle.wait(SOON) == Finished(handle.id, [7, 1])
            assert [row[0] for row in await connection.fetch(f'select charge from "{schema}".book')] == [7]
        finally:
            await connection.close()
        assert calls == [1]


async def test_an_execution_whose_connection_breaks_has_its_activities_still(dsn: str, schema: str) -> None:
    """The step runs again by the same claim; what was finished is answered, not refused and not called again."""
    async with Durable(dsn, schema=schema) as app:
        calls: list[str] = []

        async def charged() -> str:
            calls.append("charged")
            return "paid"

        @job(transactional=True, retry=RetryPolicy(attempts=1))
        async def breaks(n: int, ctx: Context) -> list[str]:
            found = ctx.checkpoint_as(str) or "nothing"
            paid = await ctx.run("charge", charged)
            await ctx.checkpoint("charged")
            calls.append(found)
            if len(calls) == 2:
                await ctx.connection.execute("select pg_terminate_backend(pg_backend_pid())")
            return [paid, found]

        async with Worker(app, jobs=[breaks]):
            handle = await app.insert(breaks, 1)
            assert await handle.wait(SOON) == Finished(handle.id, ["paid", "charged"])
        assert calls == ["charged", "nothing", "charged"]


async def test_an_activity_that_fails_is_not_called_for_a_broken_connection(private_dsn: str, schema: str) -> None:
    """The step has not touched its connection, which breaks meanwhile: the error is the activity's, and counts."""
    async with Durable(private_dsn, schema=schema) as app:
        calls: list[str] = []

        async def declined() -> None:
            calls.append("declined")
            other = await asyncpg.connect(private_dsn)
            try:
                await other.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where state = 'idle in transaction' and usename = current_user"
                )
            finally:
                await other.close()
            raise ValueError("declined")

        @job(transactional=True, retry=RetryPolicy(attempts=1))
        async def pays(n: int, ctx: Context) -> None:
            await ctx.run("charge", declined)

        async with Worker(app, jobs=[pays]):
            ending = await (await app.insert(pays, 1)).wait(SOON)
        assert isinstance(ending, Failed)
        assert "declined" in ending.error
        assert calls == ["declined"]


async def test_what_a_step_has_left_running_writes_no_more(dsn: str, schema: str) -> None:
    """Its connection serves the next step by then: the write would be a part of that one's transaction."""
    async with Durable(dsn, schema=schema) as app:
        said: list[str] = []
        over = asyncio.Event()

        async def write_late(connection: StepConnection) -> None:
            await over.wait()
            try:
                await connection.execute(f'insert into "{schema}".book values (1)')
            except InputError as error:
                said.append(str(error))

        @job(transactional=True, retry=RetryPolicy(attempts=1))
        async def leaves(n: int, ctx: Context) -> None:
            late.append(asyncio.ensure_future(write_late(ctx.connection)))
            await asyncio.sleep(0)
            raise ValueError("no")

        @job(transactional=True)
        async def comes_next(n: int, ctx: Context) -> None:
            over.set()
            await asyncio.wait(late)
            await ctx.connection.execute(f'insert into "{schema}".book values (2)')

        late: list[asyncio.Future[None]] = []
        connection = await asyncpg.connect(dsn)
        try:
            async with Worker(app, jobs=[leaves, comes_next]):
                await connection.execute(f'create table "{schema}".book (number int)')
                assert isinstance(await (await app.insert(leaves, 1)).wait(SOON), Failed)
                handle = await app.insert(comes_next, 1)
                assert await handle.wait(SOON) == Finished(handle.id, None)
            assert [row[0] for row in await connection.fetch(f'select number from "{schema}".book')] == [2]
        finally:
            await connection.close()
        assert "after its step had ended" in said[0]


class Slow(Machine):
    """Works for a while, and then waits."""

    @step(transactional=True)
    async def work(self, state: None, ctx: Context) -> Outcome[None]:
        await asyncio.sleep(0.6)
        return Next(self.later, None, delay=timedelta(seconds=0.5))

    @step(transactional=True)
    async def later(self, state: None, ctx: Context) -> Outcome[None]:
        await asyncio.sleep(0.6)
        return Await(go, then=self.end, state=None, timeout=timedelta(seconds=0.5))

    @step
    async def end(self, state: None, ctx: Context) -> Outcome[None]:
        return Done()


async def test_times_count_from_the_outcome(dsn: str, schema: str) -> None:
    """Not from the beginning of the transaction, which is that of the step: delay, timeout and history."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Slow()]):
        handle = await app.insert(Slow.work, None)
        inserted = (await app.get(handle.id)).inserted_at
        assert await handle.wait(SOON) == Finished(handle.id, None)
        work, later, end = await app.history(handle.id)
        assert inserted <= work.started_at
        for before, after in ((work, later), (later, end)):
            ended = before.started_at + timedelta(seconds=before.duration)
            assert after.started_at - ended >= timedelta(seconds=0.49)


class Starts(Machine):
    """Works for a while, and then starts two that are to wait: in its transaction, and with its outcome."""

    def __init__(self, app: Durable) -> None:
        self.app = app

    @step(transactional=True)
    async def work(self, state: None, ctx: Context) -> Outcome[None]:
        await asyncio.sleep(0.6)
        later = timedelta(seconds=100)
        await self.app.insert(Slow.end, None, delay=later, connection=ctx.connection)
        return Done(None, spawn=[Start(Slow.end, None, delay=later)])


async def test_delays_of_others_count_from_their_start(dsn: str, schema: str) -> None:
    """Not from the beginning of the transaction that starts them."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Starts(app)]):
        handle = await app.insert(Starts.work, None)
        assert await handle.wait(SOON) == Finished(handle.id, None)
        began = (await app.history(handle.id))[0].started_at
        rows = [await app.get(handle.id + n) for n in (1, 2)]
        for row in rows:
            assert timedelta(seconds=100.5) <= row.eligible_at - began < timedelta(seconds=105)


class Kept(Machine):
    """Its `on_error` has no transaction, and may leave a checkpoint for the next execution."""

    @step(transactional=True)
    async def fails_once(self, state: None, ctx: Context) -> Outcome[str]:
        if ctx.attempt == 0:
            raise ValueError("no")
        return Done(f"after {ctx.last_checkpoint}")

    async def on_error(self, state: None, ctx: Context, error: Exception) -> Outcome[str]:
        if ctx.attempt > 0:
            return Fail(error)
        await ctx.checkpoint("an error")
        return Retry(state)


async def test_a_checkpoint_can_be_read(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Kept()]):
        handle = await app.insert(Kept.fails_once, None)
        assert await handle.wait(SOON) == Finished(handle.id, "after an error")


async def reported(app: Durable, instance: int) -> list[str | None]:
    """What a step has reported, once it has."""
    async with asyncio.timeout(10):
        while True:
            if found := await app.progress(instance):
                return [report.message for report in found]
            await asyncio.sleep(0.01)


async def test_progress_is_no_part_of_the_transaction(dsn: str, schema: str) -> None:
    """It stays after a rollback, and waits for nobody: not even for a row that the step itself has locked."""
    async with Durable(dsn, schema=schema) as app:

        @job(transactional=True, retry=RetryPolicy(attempts=1))
        async def reports(fail: bool, ctx: Context) -> str:
            if not fail:
                await app.signal(ctx.id, go, connection=ctx.connection)
            ctx.progress(0.5, "half")
            if fail:
                await reported(app, ctx.id)
                raise ValueError("no")
            return "done"

        async with Worker(app, jobs=[reports]):
            bad, good = await app.insert(reports, True), await app.insert(reports, False)
            assert isinstance(await bad.wait(SOON), Failed)
            assert await good.wait(SOON) == Finished(good.id, "done")
            for handle in (bad, good):
                assert await reported(app, handle.id) == ["half"]


class Family(Machine):
    """A parent that cancels: its child, or itself."""

    def __init__(self, app: Durable) -> None:
        self.app = app

    @step
    async def start(self, whom: str, ctx: Context) -> Outcome[str]:
        barrier = timedelta(milliseconds=50)
        return ScheduleChildren([Start(Family.wait, None)], then=self.join, state=whom, timeout=barrier)

    @step(transactional=True)
    async def join(self, whom: str, ctx: Context) -> Outcome[str]:
        (child,) = ctx.children
        if whom == "child":
            await self.app.cancel(child.id, reason="enough", connection=ctx.connection)
            return Done(str(child.id))
        await self.app.cancel(ctx.id, reason="enough", connection=ctx.connection)
        return Next(self.never, None)

    @step
    async def wait(self, state: None, ctx: Context) -> Outcome[str]:
        return Await(go, then=self.never, state=None)

    @step
    async def never(self, state: None, ctx: Context) -> Outcome[str]:
        raise AssertionError("this never runs")


@pytest.mark.parametrize("whom", ["child", "itself"])
async def test_a_step_cancels_in_its_transaction(dsn: str, schema: str, whom: str) -> None:
    """Its child, and thereby its own row, or itself: it waits for no lock of its own, and ends."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Family(app)]):
        handle = await app.insert(Family.start, whom)
        ending = await handle.wait(SOON)
        if whom == "itself":
            assert isinstance(ending, Cancelled)
        else:
            assert isinstance(ending, Finished)
            child = app.handle(int(ending.result), Family.wait)
            assert await child.wait(SOON) == Cancelled(child.id, "enough")
