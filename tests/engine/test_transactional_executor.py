"""The executor of transactional steps alone, with one connection: tries, pauses, and what it leaves behind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
from tests.support.engine import Engine, opened, soon

from gen_durable import Context, Done, Finished, Machine, Next, Outcome, step
from gen_durable.core.services import services_of
from gen_durable.engine import transactional_executor
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.committer import CommitResult
from gen_durable.engine.executor import Executor, TransactionalStepRaised
from gen_durable.engine.outcome_rejection import UnusableLimit
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.engine.transactional_executor import TransactionalExecutor
from gen_durable.errors import InputError, InvalidOutcome, OutcomeRejected
from gen_durable.pg.persistent_connection import ConnectionTarget
from gen_durable.step_registry import Registry
from gen_durable.store.schema import Schema
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Claim, Commit, FollowUps

Body = Callable[[Context], Awaitable[Outcome[Any]]]
NOWHERE = ConnectionTarget("postgresql://127.0.0.1:1/nowhere")


class Scripted(Machine):
    """Does what the test says."""

    def __init__(self, body: Body) -> None:
        self.body = body

    @step(transactional=True)
    async def write(self, state: None, ctx: Context) -> Outcome[Any]:
        return await self.body(ctx)

    @step(limit="unknown")
    async def limited(self, state: None, ctx: Context) -> Outcome[Any]:
        return Done(None)


WRITE: Any = Scripted.write
LIMITED: Any = Scripted.limited


class Counting(StatementBuilder):
    """Statements that count the flushes."""

    flushes = 0

    def flush(self, commits, worker=None, now=0.0):  # type: ignore[no-untyped-def]
        self.flushes += 1
        return super().flush(commits, worker, now)


class Notifications:
    """Keeps what a notifier would publish."""

    def __init__(self) -> None:
        self.published: list[FollowUps] = []

    def act_on_follow_ups(self, follow_ups: FollowUps) -> None:
        self.published.append(follow_ups)


@dataclass
class Opened:
    e: Engine
    executor: TransactionalExecutor
    statements: Counting
    notifications: Notifications

    async def claim(self, body: Body) -> ActiveClaim:
        """A new row, claimed by hand."""
        services, registry = services_of(self.e.app), Registry([Scripted(body)])
        await self.e.app.insert(Scripted.write, None)
        pick = services.statements.pick("w", {"default": 1}, registry.known_step_keys, 60)
        (claim,) = (await services.pool.run(pick)).claims
        return ActiveClaim(claim, registry.get_known_step(claim.machine, claim.version, claim.step), time.monotonic())

    @property
    def is_in_transaction(self) -> bool:
        current = self.executor._connections[0]._current
        return current is not None and current.driver_connection.is_in_transaction()

    async def end(self, active: ActiveClaim) -> object:
        return await self.e.end(self.e.app.handle(active.claim.id, Scripted.write))


def make_executor(
    target: ConnectionTarget, statements: StatementBuilder, notifier: object = None
) -> TransactionalExecutor:
    absent = cast(Any, None)
    steps = Executor("w", ThreadPool(1), absent, absent, absent)
    return TransactionalExecutor(steps, target, statements, 1, notifier=cast(Any, notifier), worker="w")


@asynccontextmanager
async def executing(dsn: str, schema: str) -> AsyncIterator[Opened]:
    async with opened(dsn, schema) as e:
        services = services_of(e.app)
        statements, notifications = Counting(services.schema), Notifications()
        executor = make_executor(services.connection_target, statements, notifications)
        try:
            yield Opened(e, executor, statements, notifications)
        finally:
            await executor.close()


@asynccontextmanager
async def refusing(e: Engine, code: str, times: int = 1000) -> AsyncIterator[None]:
    """The first updates of rows raise an error."""
    name = f"{e.rows.schema}_refuse"
    await e.rows.connection.execute(f"""
        create sequence public.{name}_calls;
        create function {name}() returns trigger language plpgsql as $$
        begin
          if nextval('public.{name}_calls') <= {times} then
            raise exception 'refused' using errcode = '{code}';
          end if;
          return new;
        end $$;
        create trigger refuse before update on "{e.rows.schema}".instances for each row execute function {name}();
    """)
    try:
        yield
    finally:
        await e.rows.connection.execute(f"drop function {name} cascade; drop sequence public.{name}_calls")


async def done(ctx: Context) -> Outcome[Any]:
    return Done("done")


async def test_a_step_ends_its_claim_and_wakes_others(dsn: str, schema: str) -> None:
    """Its `Next` is for another claim. The queue is woken, and the history names the worker."""

    async def go_on(ctx: Context) -> Outcome[Any]:
        await ctx.connection.execute("select 1")
        in_step.append(active.is_in_step)
        return Next(WRITE, None)

    in_step: list[bool] = []
    async with executing(dsn, schema) as o:
        active = await o.claim(go_on)
        encoded, result = await soon(o.executor.execute_and_commit(active))
        assert (result, encoded.commit.kind) == (CommitResult.COMMITTED, "next")
        assert 0 <= encoded.commit.took < 10
        assert (in_step, active.is_in_step, o.is_in_transaction) == ([True], False, False)
        assert [set(follow_ups.queues) for follow_ups in o.notifications.published] == [{"default"}]
        assert [t.worker for t in await o.e.app.history(active.claim.id)] == ["w"]
        row = await o.e.rows.row(active.claim.id)
        assert (row["status"], row["locked_by"], row["claims"]) == ("runnable", None, 1)


async def test_a_step_that_raises_leaves_no_transaction(dsn: str, schema: str) -> None:
    """From then on a cancel does not interrupt: `on_error` answers."""

    async def fail(ctx: Context) -> Outcome[Any]:
        await ctx.connection.execute("select 1")
        raise ValueError("no")

    async with executing(dsn, schema) as o:
        active = await o.claim(fail)
        with pytest.raises(TransactionalStepRaised, match="ValueError: no"):
            await soon(o.executor.execute_and_commit(active))
        assert (active.is_in_step, o.is_in_transaction) == (False, False)
        await soon(o.executor.execute_and_commit(active := await o.claim(done)))
        assert await o.end(active) == Finished(active.claim.id, "done")


async def test_a_step_that_is_interrupted_leaves_no_transaction(dsn: str, schema: str) -> None:
    """Its connection is dropped, and the next step has a new one. The claim shows that user code was interrupted."""
    entered = asyncio.Event()

    async def wait(ctx: Context) -> Outcome[Any]:
        await ctx.connection.execute("select 1")
        entered.set()
        await asyncio.sleep(60)
        return Done(None)

    async with executing(dsn, schema) as o:
        active = await o.claim(wait)
        active.claim.is_interrupted = True
        task = asyncio.create_task(o.executor.execute_and_commit(active))
        await soon(entered.wait())
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()
        assert (active.is_in_step, o.is_in_transaction) == (True, False)
        await soon(o.executor.execute_and_commit(active := await o.claim(done)))
        assert await o.end(active) == Finished(active.claim.id, "done")


async def test_a_flush_that_is_interrupted_leaves_no_transaction(dsn: str, schema: str) -> None:
    """It waits for a row that another session has locked."""
    async with executing(dsn, schema) as o:
        active = await o.claim(done)
        async with o.e.rows.connection.transaction():
            await o.e.rows.fetch("select from @.instances for update")
            task = asyncio.create_task(o.executor.execute_and_commit(active))
            # Not pg_stat_activity, which a transaction reads only once.
            blocked = "select from pg_locks where not granted and pg_backend_pid() = any (pg_blocking_pids(pid))"
            await o.e.rows.when(lambda: o.e.rows.value(f"select exists ({blocked})"))
            assert not active.is_in_step
            task.cancel()
            await asyncio.wait([task], timeout=10)
        assert task.cancelled()
        assert o.executor._connections[0]._current is None
        await soon(o.executor.execute_and_commit(active))
        assert await o.end(active) == Finished(active.claim.id, "done")


@pytest.mark.parametrize("result", [CommitResult.STALE, CommitResult.CANCEL_REQUESTED])
async def test_an_outcome_that_does_not_count_is_rolled_back(dsn: str, schema: str, result: CommitResult) -> None:
    """The claim was lost during the step, or the instance was cancelled: no write of the step stays."""

    async def write(ctx: Context) -> Outcome[Any]:
        await ctx.connection.execute(f'create table "{schema}".written ()')
        if result is CommitResult.STALE:
            services = services_of(o.e.app)
            await services.pool.run(services.statements.release_claims([(ctx.id, ctx.claim, None, None)]))
        else:
            await o.e.app.cancel(ctx.id, reason="stop")
        return Next(WRITE, None)

    async with executing(dsn, schema) as o:
        active = await o.claim(write)
        assert (await soon(o.executor.execute_and_commit(active)))[1] is result
        assert not o.is_in_transaction
        assert await o.e.rows.value("select to_regclass('@.written')") is None
        assert (await o.e.rows.row(active.claim.id))["seq"] == 0


async def go_to_unknown_limit(ctx: Context) -> Outcome[Any]:
    return Next(LIMITED, None)


async def change_isolation(ctx: Context) -> Outcome[Any]:
    await ctx.connection.execute("set transaction isolation level repeatable read")
    return Done(None)


async def test_an_outcome_that_names_an_undeclared_limit_is_no_error_of_the_step(dsn: str, schema: str) -> None:
    """It is not flushed again here: the claim runner puts the claim back. The transaction is rolled back."""
    async with executing(dsn, schema) as o:
        with pytest.raises(UnusableLimit, match="Unknown limit 'unknown'"):
            await soon(o.executor.execute_and_commit(await o.claim(go_to_unknown_limit)))
        assert (o.statements.flushes, o.is_in_transaction, o.notifications.published) == (1, False, [])


async def test_an_outcome_that_is_refused_is_not_flushed_again(dsn: str, schema: str) -> None:
    """The same flush would be refused again. The transaction is rolled back."""
    async with executing(dsn, schema) as o:
        with pytest.raises(TransactionalStepRaised) as raised:
            await soon(o.executor.execute_and_commit(await o.claim(change_isolation)))
        assert isinstance(raised.value.error, OutcomeRejected)
        assert "the transaction is repeatable read" in str(raised.value.error)
        assert (o.statements.flushes, o.is_in_transaction, o.notifications.published) == (1, False, [])


async def test_a_serialization_failure_is_not_flushed_again(dsn: str, schema: str) -> None:
    """It would recur in the same transaction; the step runs again in another one."""
    async with executing(dsn, schema) as o:
        active = await o.claim(done)
        async with refusing(o.e, "40001"):
            with pytest.raises(
                TransactionalStepRaised, match=f"refused the outcome of instance {active.claim.id}: .*40001"
            ):
                await soon(o.executor.execute_and_commit(active))
        assert o.statements.flushes == 1


@pytest.mark.parametrize("times", [2, 1000])
async def test_a_flush_that_may_succeed_later_is_tried_again(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """After pauses that grow, and so many times at most."""
    monkeypatch.setattr(transactional_executor, "FLUSH_RETRIES", 2)
    monkeypatch.setattr(transactional_executor, "FIRST_PAUSE", 0.05)
    async with executing(dsn, schema) as o:
        active = await o.claim(done)
        began = time.monotonic()
        async with refusing(o.e, "55P03", times):
            if times == 2:
                await soon(o.executor.execute_and_commit(active))
            else:
                with pytest.raises(
                    TransactionalStepRaised, match=f"refused the outcome of instance {active.claim.id}: .*55P03"
                ):
                    await soon(o.executor.execute_and_commit(active))
            assert time.monotonic() - began >= 0.14
        assert o.statements.flushes == 3


async def test_a_step_whose_statement_failed_is_told_so(dsn: str, schema: str) -> None:
    async def abort(ctx: Context) -> Outcome[Any]:
        with pytest.raises(Exception, match="division by zero"):
            await ctx.connection.execute("select 1 / 0")
        return Done(None)

    async with executing(dsn, schema) as o:
        with pytest.raises(TransactionalStepRaised) as raised:
            await soon(o.executor.execute_and_commit(await o.claim(abort)))
        assert isinstance(raised.value.error, InvalidOutcome)
        assert "failed and aborted its transaction: put a savepoint around" in str(raised.value.error)


async def test_a_simulated_crash_leaves_nothing(dsn: str, schema: str) -> None:
    """The connection is dropped and used again by the next step; what the step left running cannot write."""

    async def keep(ctx: Context) -> Outcome[Any]:
        kept.append(ctx.connection)
        await ctx.connection.execute("select 1")
        return Done(None)

    kept: list[Any] = []
    async with executing(dsn, schema) as o:
        for _ in range(2):
            active = await o.claim(keep)
            await soon(o.executor.execute_and_roll_back(active.claim, active.entry))
            assert o.executor._connections[0]._current is None
            with pytest.raises(InputError, match="after its step had ended"):
                await kept[-1].execute("select 1")


async def until_logged(caplog: pytest.LogCaptureFixture, words: str) -> int:
    """How often a line was logged a while after its first time."""
    async with asyncio.timeout(10):
        while words not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    return caplog.text.count(words)


async def test_without_a_connection_there_is_a_pause_after_each_try(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is logged. The connection is free for other steps when the task is cancelled."""
    monkeypatch.setattr(transactional_executor, "FIRST_PAUSE", 60)
    executor = make_executor(NOWHERE, StatementBuilder(Schema()))
    registry = Registry([Scripted(done)])
    name = Scripted.__gen_durable__.name
    claim = Claim(7, name, 1, "write", "null", 0, 1, 0, "default", 0, None, None, None, None)
    active = ActiveClaim(claim, registry.get_known_step(name, 1, "write"), time.monotonic())
    task = asyncio.create_task(executor.execute_and_commit(active))
    assert await until_logged(caplog, "instance 7: no connection for its transaction") == 1
    task.cancel()
    await asyncio.wait([task])
    assert executor._free == executor._connections


async def test_without_a_connection_a_commit_is_looked_for_again_after_a_pause(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_executor, "FIRST_PAUSE", 60)
    caplog.set_level(logging.INFO, "gen_durable.worker")
    executor = make_executor(NOWHERE, StatementBuilder(Schema()))
    task = asyncio.create_task(executor._find_out_if_committed(executor._connections[0], Commit(7, 1, 0, "done")))
    assert await until_logged(caplog, "instance 7: its commit cannot be checked yet") == 1
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("how", ["close", "terminate"])
async def test_connections_are_closed(dsn: str, how: str) -> None:
    """For good: none is opened again."""
    executor = make_executor(ConnectionTarget(dsn), StatementBuilder(Schema()))
    (connection,) = executor._connections
    driver_connection = await connection.connect()
    if how == "close":
        await soon(executor.close())
    else:
        executor.terminate_connections()
    assert (driver_connection.is_closed(), connection.is_closed) == (True, True)
