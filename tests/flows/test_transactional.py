"""Transactional steps: the user's writes and the outcome are committed together, exactly once, whatever dies when."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.support.programs import transactional as programs

from gen_durable import (
    Await,
    Cancelled,
    Concurrency,
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
from gen_durable.core.services import services_of
from gen_durable.engine import transactional_executor
from gen_durable.errors import DefinitionError, InputError
from gen_durable.telemetry import ClaimLost, Event, StaleOutcome

Spawn = Callable[..., Any]
Proxied = Callable[[], AbstractAsyncContextManager[Any]]
go = Signal("go", None)
SOON = timedelta(seconds=20)
ran: list[str] = []
held = asyncio.Event()


@pytest.fixture(autouse=True)
def not_held_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event belongs to the loop of one test."""
    monkeypatch.setattr(sys.modules[__name__], "held", asyncio.Event())


errors: list[Exception] = []


class Book(Machine):
    """Writes rows of the user's in its steps."""

    def __init__(self, schema: str) -> None:
        self.schema = schema

    async def write(self, ctx: Context, text: str) -> None:
        ran.append(text)
        await ctx.connection.execute(f'insert into "{self.schema}".book (text) values ($1)', text)

    @step
    async def chain(self, text: str, ctx: Context) -> Outcome[str]:
        return Next(self.first, text)

    @step(transactional=True)
    async def first(self, text: str, ctx: Context) -> Outcome[str]:
        await self.write(ctx, "first")
        return Next(self.second, text)

    @step(transactional=True)
    async def second(self, text: str, ctx: Context) -> Outcome[str]:
        await self.write(ctx, "second")
        return Done(text)

    @step(transactional=True)
    async def fails(self, how: str, ctx: Context) -> Outcome[str]:
        await self.write(ctx, f"{how} {ctx.attempt}")
        if ctx.attempt == 1:
            return Done("the second time")
        connection: Any = ctx.connection
        match how:
            case "raises":
                raise ValueError("no")
            case "returns nonsense":
                return "nonsense"  # type: ignore[return-value]
            case "rejected":
                return Next(self.limited, "x")
            case "aborted":
                with pytest.raises(asyncpg.PostgresError):
                    await connection.execute("select 1 / 0")
            case "commits":
                await connection.execute("rollback")
            case "deferred":
                await connection.execute(f'insert into "{self.schema}".strict (n) values (1), (1)')
            case "too slow":
                await asyncio.sleep(60)
        return Done(how)

    @step(limit=["l", "m"])
    async def limited(self, text: str, ctx: Context) -> Outcome[str]:
        return Done(text)

    @step(transactional=True, timeout=timedelta(milliseconds=300))
    async def slow(self, text: str, ctx: Context) -> Outcome[str]:
        await self.write(ctx, f"slow {ctx.attempt}")
        if ctx.attempt == 0:
            await ctx.connection.execute("select pg_sleep(60)")
        return Done("in time")

    @step(transactional=True)
    async def stolen(self, text: str, ctx: Context) -> Outcome[str]:
        await self.write(ctx, f"claim {ctx.claim}")
        if ctx.claim == 1:
            held.set()
            await ctx.connection.execute("select pg_sleep(0.5)")
        return Done(text)

    @step(transactional=True)
    async def family(self, count: int, ctx: Context) -> Outcome[str]:
        await self.write(ctx, "family")
        return ScheduleChildren((Start(leaf, n) for n in range(count)), then=self.joined, state=count)

    @step(transactional=True)
    async def joined(self, count: int, ctx: Context) -> Outcome[str]:
        await self.write(ctx, "joined")
        return Done(f"{len(ctx.children)} children")

    @step(transactional=True)
    async def parks(self, text: str, ctx: Context) -> Outcome[str]:
        await self.write(ctx, "parks")
        return Await(go, then=self.second, state=text)

    @step(transactional=True)
    async def breaks(self, times: int, ctx: Context) -> Outcome[str]:
        await self.write(ctx, "breaks")
        if ran.count("breaks") <= times:
            await ctx.connection.execute("select pg_terminate_backend(pg_backend_pid())")
        return Done(f"attempt {ctx.attempt}")

    async def on_error(self, state: object, ctx: Context, error: Exception) -> Outcome[str]:
        errors.append(error)
        with pytest.raises(InputError):
            _ = ctx.connection
        return Retry(state) if ctx.attempt == 0 else Fail(error)


@job
async def leaf(n: int) -> int:
    return n


@asynccontextmanager
async def books(dsn: str, schema: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A table of the user's, and a look into it."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f'create table "{schema}".book (text text not null)')
    await connection.execute(f'create table "{schema}".strict (n int unique deferrable initially deferred)')
    ran.clear()
    errors.clear()
    held.clear()
    try:
        yield connection
    finally:
        await connection.close()


async def texts(connection: asyncpg.Connection[Any], schema: str) -> list[str]:
    return [row[0] for row in await connection.fetch(f'select text from "{schema}".book order by text')]


async def test_writes_and_outcomes_commit_together(dsn: str, schema: str) -> None:
    """In a chain that begins with a plain step, with children few and many, with a wait in between."""
    async with books(dsn, schema) as look, Durable(dsn, schema=schema) as app:
        async with Worker(app, machines=[Book(schema)], jobs=[leaf], queues={"default": 50}):
            handle = await app.insert(Book.chain, "done")
            assert await handle.wait(SOON) == Finished(handle.id, "done")
            assert await texts(look, schema) == ["first", "second"]
            for count in (3, 1500):
                handle = await app.insert(Book.family, count)
                assert await handle.wait(SOON) == Finished(handle.id, f"{count} children")
            parked = await app.insert(Book.parks, "woken")
            await app.signal(parked.id, go)
            assert await parked.wait(SOON) == Finished(parked.id, "woken")
        assert await texts(look, schema) == ["family"] * 2 + ["first"] + ["joined"] * 2 + ["parks"] + ["second"] * 2


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "no"),
        ("returns nonsense", "returned str"),
        ("rejected", "one limit of the kind concurrency, not two"),
        ("aborted", "failed"),
        ("commits", "has ended its transaction itself: leave COMMIT and ROLLBACK to the worker"),
        ("deferred", "cannot commit"),
    ],
)
async def test_an_error_rolls_the_writes_back_and_reaches_on_error(dsn: str, schema: str, how: str, words: str) -> None:
    """Of two executions only the one that was committed has left its row."""
    async with books(dsn, schema) as look, Durable(dsn, schema=schema) as app:
        async with Worker(app, machines=[Book(schema)], limits={"l": Concurrency(1), "m": Concurrency(1)}):
            handle = await app.insert(Book.fails, how)
            assert await handle.wait(SOON) == Finished(handle.id, "the second time")
        assert ran == [f"{how} 0", f"{how} 1"]
        assert await texts(look, schema) == [f"{how} 1"]
        (error,) = errors
        assert words in str(error)


async def test_a_timeout_rolls_back(dsn: str, schema: str) -> None:
    """Also in the middle of a statement."""
    async with books(dsn, schema) as look, Durable(dsn, schema=schema) as app, Worker(app, machines=[Book(schema)]):
        handle = await app.insert(Book.slow, "")
        assert await handle.wait(SOON) == Finished(handle.id, "in time")
        assert await texts(look, schema) == ["slow 1"]


async def test_a_connection_that_breaks_in_the_step_is_no_error_of_the_step(dsn: str, schema: str) -> None:
    """It runs again, on a new connection: on_error is not asked, no attempt is burned, the row is there once."""
    async with books(dsn, schema) as look, Durable(dsn, schema=schema) as app, Worker(app, machines=[Book(schema)]):
        handle = await app.insert(Book.breaks, 2)
        assert await handle.wait(SOON) == Finished(handle.id, "attempt 0")
        assert len(ran) == 3
        assert errors == []
        assert await texts(look, schema) == ["breaks"]


async def test_a_step_that_always_breaks_its_connection_is_told_so(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some losses in a row it is the step's own error, and reaches on_error as any other."""
    monkeypatch.setattr(transactional_executor, "MAX_BROKEN", 3)
    async with books(dsn, schema) as look, Durable(dsn, schema=schema) as app, Worker(app, machines=[Book(schema)]):
        handle = await app.insert(Book.breaks, 100)
        assert isinstance(await handle.wait(SOON), Failed)
        assert len(ran) == 6  # on_error has tried once more
        assert len(errors) == 2
        assert await texts(look, schema) == []


class Idles(Machine, retry=RetryPolicy(attempts=1)):
    """Waits inside its transaction for longer than it has allowed itself."""

    @step(transactional=True)
    async def waits(self, how: str, ctx: Context) -> Outcome[str]:
        await ctx.connection.execute("set local idle_in_transaction_session_timeout = '20ms'")
        closed = asyncio.Event()
        ctx.connection.add_termination_listener(lambda _: closed.set())
        await closed.wait()
        if how == "uses it again":
            await ctx.connection.execute("select 1")
        return Done(how)


@pytest.mark.parametrize("how", ["uses it again", "returns"])
async def test_an_idle_transaction_that_the_server_ends_is_named(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """After some losses in a row, as the error of the step: the driver says only that the connection is closed."""
    monkeypatch.setattr(transactional_executor, "MAX_BROKEN", 2)
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Idles()]):
        handle = await app.insert(Idles.waits, how)
        ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert "the connection of step Idles.waits broke in 2 executions in a row" in ending.error
        assert "idle_in_transaction_session_timeout" in ending.error


async def test_a_stolen_claim_leaves_no_row(dsn: str, schema: str) -> None:
    """The claim goes while the step runs: its writes are rolled back, those of the new owner are there."""
    stale = asyncio.Event()
    async with books(dsn, schema) as look, Durable(dsn, schema=schema) as app:
        # Its outcome finds out, or a heartbeat before it.
        app.events.subscribe(lambda event: stale.set() if isinstance(event, StaleOutcome | ClaimLost) else None)
        async with Worker(app, machines=[Book(schema)]):
            handle = await app.insert(Book.stolen, "done")
            await held.wait()
            await services_of(app).pool.run(services_of(app).statements.release_claims([(handle.id, 1, None, None)]))
            assert await handle.wait(SOON) == Finished(handle.id, "done")
            async with asyncio.timeout(10):
                await stale.wait()
        found = await texts(look, schema)
        assert len(found) == 1
        assert found != ["claim 1"]


@pytest.mark.parametrize("where", ["losing", "stopped"])
async def test_a_lost_answer_to_the_commit(dsn: str, schema: str, proxied: Proxied, where: str) -> None:
    """Lost after the commit: found committed, not run again. Lost before it: run again. One row either way."""
    events: list[Event] = []
    async with books(dsn, schema) as look, proxied() as proxy, Durable(dsn, schema=schema) as direct:
        async with Durable(proxy.dsn, schema=schema) as app, Worker(app, machines=[Book(schema)]):
            app.events.subscribe(events.append)
            if where == "losing":
                proxy.losing = b"COMMIT;"
            else:
                proxy.stopping = b"COMMIT;"
            handle = await direct.insert(Book.second, "done")
            if where == "stopped":
                async with asyncio.timeout(10):
                    await proxy.stalled.wait()
                proxy.stopping = None
                proxy.cut_all()
            assert await handle.wait(SOON) == Finished(handle.id, "done")
        assert ran == ["second"] * (1 if where == "losing" else 2)
        assert await texts(look, schema) == ["second"]
        assert (await direct.get(handle.id)).seq == 1
        assert not [e for e in events if isinstance(e, StaleOutcome)]


@pytest.mark.parametrize("where", ["before the flush", "before the commit", "after the commit"])
async def test_kill_9(dsn: str, schema: str, spawn: Spawn, proxied: Proxied, where: str) -> None:
    """The process dies at each point: another one finishes the work, and the user's row is there once."""
    async with books(dsn, schema) as look, proxied() as proxy, Durable(dsn, schema=schema) as app:
        victim = spawn("transactional", DSN=proxy.dsn, HANG="1" if where == "before the flush" else "")
        await victim.until("ready")
        match where:
            case "before the commit":
                proxy.stopping = b"COMMIT;"
            case "after the commit":
                proxy.answerless = b"COMMIT;"
        handle = await app.insert(programs.Book.write, "row")
        await victim.until("written")
        if where != "before the flush":
            async with asyncio.timeout(10):
                await proxy.stalled.wait()
        victim.kill()
        proxy.cut_all()
        spawn("transactional")
        assert await handle.wait(SOON) == Finished(handle.id, "row")
        assert await texts(look, schema) == ["row"]


async def test_connections_that_are_reset_again_and_again_leave_each_row_once(
    dsn: str, schema: str, proxied: Proxied
) -> None:
    """Cut in the step, in the flush, at the commit, at random: each instance's row is there once."""
    async with books(dsn, schema) as look, proxied() as proxy, Durable(dsn, schema=schema) as direct:

        @job(transactional=True, retry=RetryPolicy(attempts=1000, backoff=lambda _: timedelta(milliseconds=20)))
        async def writes(n: int, ctx: Context) -> int:
            await ctx.connection.execute(f'insert into "{schema}".book (text) values ($1)', str(n))
            await ctx.connection.execute("select pg_sleep(0.02)")
            return n

        async with (
            Durable(proxy.dsn, schema=schema) as app,
            Worker(
                app,
                jobs=[writes],
                lease_ttl=timedelta(seconds=3),
                heartbeat_interval=timedelta(seconds=1),
                reap_interval=timedelta(milliseconds=200),
            ),
        ):
            handles = await direct.insert_many([Start(writes, n) for n in range(300)])
            waiting = asyncio.gather(*(h.wait(timedelta(seconds=50)) for h in handles))
            for n in range(20):
                await asyncio.sleep(0.1 + n * 0.003)
                proxy.cut_all()
            endings = await waiting
        assert all(isinstance(ending, Finished) for ending in endings)
        assert sorted(await texts(look, schema)) == sorted(str(n) for n in range(300))


async def test_a_cancel_in_the_step_rolls_back(dsn: str, schema: str) -> None:
    """The step is stopped in the middle of a statement; nothing that it wrote is there."""
    async with books(dsn, schema) as look, Durable(dsn, schema=schema) as app, Worker(app, machines=[Book(schema)]):
        handle = await app.insert(Book.stolen, "done")
        await held.wait()
        assert await app.cancel(handle.id, reason="enough")
        assert isinstance(await handle.wait(SOON), Cancelled)
        assert await texts(look, schema) == []


@pytest.mark.parametrize("step_of", ["first", "second"])
async def test_a_cancel_while_the_commit_is_lost(dsn: str, schema: str, proxied: Proxied, step_of: str) -> None:
    """The COMMIT never came to the server, and then a cancel: an end may still be taken, never without its writes."""
    async with books(dsn, schema) as look, proxied() as proxy, Durable(dsn, schema=schema) as direct:
        async with Durable(proxy.dsn, schema=schema) as app, Worker(app, machines=[Book(schema)]):
            proxy.stopping = b"COMMIT;"
            handle = await direct.insert(Book.first if step_of == "first" else Book.second, "done")
            async with asyncio.timeout(10):
                await proxy.stalled.wait()
            cancelling = asyncio.create_task(direct.cancel(handle.id, reason="enough"))
            await asyncio.sleep(0.1)  # it waits for the row, which the lost transaction has locked
            proxy.stopping = None
            proxy.cut_all()
            await cancelling
            ending = await handle.wait(SOON)
        written = await texts(look, schema)
        assert written == (["second"] if isinstance(ending, Finished) else [])
        assert isinstance(ending, (Finished, Cancelled))


async def test_the_callers_calls_ride_in_it(dsn: str, schema: str) -> None:
    """`app.insert(connection=ctx.connection)` starts with the outcome, or not at all."""
    async with books(dsn, schema), Durable(dsn, schema=schema) as app:

        @job(transactional=True, retry=RetryPolicy(attempts=2, backoff=lambda _: timedelta(0)))
        async def starter(fail: bool, ctx: Context) -> int:
            inner = await app.insert(leaf, ctx.attempt, connection=ctx.connection)
            if fail:
                raise ValueError("no")
            return inner.id

        async with Worker(app, jobs=[starter, leaf]):
            good = await app.insert(starter, False)
            ending = await good.wait(SOON)
            assert isinstance(ending, Finished)
            assert await app.handle(ending.result, leaf).wait(SOON) == Finished(ending.result, 0)
            bad = await app.insert(starter, True)
            assert isinstance(await bad.wait(SOON), Failed)
        connection = await asyncpg.connect(dsn)
        count = await connection.fetchval(f"select count(*) from \"{schema}\".instances where fsm = 'leaf'")
        await connection.close()
        assert count == 1


def test_a_def_step_cannot_be_transactional() -> None:
    """Refused where it is written, with the reason."""
    with pytest.raises(DefinitionError, match="async def"):

        @job(transactional=True)
        def blocking(n: int) -> int:
            return n

    with pytest.raises(DefinitionError, match="async def"):

        class Blocking(Machine):
            @step(transactional=True)
            def go(self, n: int, ctx: Context) -> Outcome[int]:
                return Done(n)
