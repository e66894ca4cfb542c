"""The last lines of defence: what happens after an answer that should not come, and what ends with a worker.

Each test removes the way by which the engine usually gets on, so that only the code under test can: no polling, no
second wake-up, no other worker.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.engine import BRIEF, NEVER, Engine, Opening, seconds, soon

from gen_durable import (
    Cancelled,
    Context,
    Done,
    Failed,
    Finished,
    Handle,
    Machine,
    Next,
    Outcome,
    Retry,
    Start,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.engine import transactional_executor
from gen_durable.errors import OutcomeRejected
from gen_durable.telemetry import RowsPicked, StaleOutcome

SILENT: dict[str, Any] = {"poll_interval": NEVER, "max_poll_interval": NEVER, "reap_interval": None}
ran: list[str] = []
errors: list[Exception] = []
entered = asyncio.Event()
may_go_on = asyncio.Event()
released = threading.Event()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global entered, may_go_on
    ran.clear()
    errors.clear()
    released.clear()
    entered, may_go_on = asyncio.Event(), asyncio.Event()


class Guarded(Machine):
    """Steps that wait until the test lets them return."""

    @step
    async def ends(self, name: str, ctx: Context) -> Outcome[str]:
        ran.append("ends")
        return Done(name)

    @step
    async def waits(self, name: str, ctx: Context) -> Outcome[str]:
        ran.append("waits")
        entered.set()
        await may_go_on.wait()
        return Next(self.then, name)

    @step
    async def then(self, name: str, ctx: Context) -> Outcome[str]:
        ran.append(f"then {ctx.claim}")
        return Done(name)

    @step(transactional=True)
    async def writes(self, name: str, ctx: Context) -> Outcome[str]:
        ran.append("writes")
        entered.set()
        await may_go_on.wait()
        return Done(name)

    @step
    async def moves(self, name: str, ctx: Context) -> Outcome[str]:
        return Next(self.then, name, queue="elsewhere")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        errors.append(error)
        return Retry(state) if state == "again" and ctx.attempt == 0 else Done("the answer of on_error")


@job
async def hold(name: str) -> str:
    entered.set()
    await may_go_on.wait()
    return name


@job
def call_in_thread(name: str, ctx: Context) -> None:
    async def wait_for_ever() -> None:
        entered.set()
        await asyncio.Event().wait()

    try:
        ctx.sync.run("wait", wait_for_ever)
    finally:
        released.set()


@asynccontextmanager
async def refusing(e: Engine, when: str, times: int = 1000) -> AsyncIterator[None]:
    """A trigger of the user refuses some updates of rows, the first `times` ones."""
    await e.rows.connection.execute(f"""
        create sequence "{e.rows.schema}".refusals;
        create function {e.rows.schema}_refuse() returns trigger language plpgsql as $$
        begin
          if nextval('"{e.rows.schema}".refusals') <= {times} then
            raise exception 'refused' using errcode = '23514';
          end if;
          return new;
        end $$;
        create trigger refuse before update on "{e.rows.schema}".instances for each row
          when ({when}) execute function {e.rows.schema}_refuse();
    """)
    try:
        yield
    finally:
        await e.rows.connection.execute(f"drop function {e.rows.schema}_refuse cascade")
        await e.rows.connection.execute(f'drop sequence "{e.rows.schema}".refusals')


@asynccontextmanager
async def locked(e: Engine, handle: Handle[Any]) -> AsyncIterator[None]:
    """Hold the lock of a row from the moment its step waits."""
    async with e.rows.connection.transaction():
        await e.rows.fetch("select from @.instances where id = $1 for update", handle.id)
        yield


async def until_put_back(e: Engine, handle: Handle[Any]) -> Any:
    async def put_back() -> bool:
        row = await e.rows.row(handle)
        return row["status"] == "runnable" and row["last_error"] is not None

    await e.rows.when(put_back)
    return await e.rows.row(handle)


async def no_claims(worker: Any) -> bool:
    return not worker._runtime.claims.list_all()


async def until_listening(*engines: Engine) -> None:
    """The wake-ups of starting are over: from here on only messages wake."""
    for e in engines:
        listener = services_of(e.app).notifier.listener
        assert listener is not None
        await soon(listener.listening.wait())
        await e.seen.until(RowsPicked)
    await asyncio.sleep(0.2)


async def test_the_database_refuses_the_answer_of_on_error_too(engine: Opening) -> None:
    """The instance fails with the first refusal; `on_error` is called once."""
    async with engine() as e, refusing(e, "new.status = 'done'"), e.worker(Guarded()) as worker:
        handle = await e.app.insert(Guarded.ends, "x")
        end = await e.end(handle)
        assert isinstance(end, Failed)
        assert "the database refused the outcome" in end.error
        assert ran == ["ends"]
        assert [type(error) for error in errors] == [OutcomeRejected]
        await e.rows.when(lambda: no_claims(worker))


async def test_the_database_refuses_the_failure_as_well(engine: Opening) -> None:
    """The row is put back with the reason, no claim is kept, and it ends once the database accepts it."""
    async with engine() as e, e.worker(Guarded(), **BRIEF) as worker:
        async with refusing(e, "new.status in ('done', 'failed')"):
            handle = await e.app.insert(Guarded.ends, "x")
            row = await until_put_back(e, handle)
            assert "the database refused the outcome" in row["last_error"]
            await e.rows.when(lambda: no_claims(worker))
        await e.rows.fetch("update @.instances set eligible_at = now() where id = $1", handle.id)
        assert await e.end(handle) == Finished(handle.id, "x")


async def test_the_database_refuses_the_outcome_of_a_cancel(engine: Opening) -> None:
    """It is no error of the step: the row is put back, which ends its lease, and the reaper cancels it."""
    options: dict[str, Any] = {"reap_interval": seconds(0.2)}  # and leases that last longer than the test
    async with (
        engine() as e,
        refusing(e, "new.status = 'cancelled'", times=1),
        e.worker(Guarded(), **options) as worker,
    ):
        handle = await e.app.insert(Guarded.waits, "x")
        await soon(entered.wait())
        await e.app.cancel(handle.id, reason="stop")
        assert await e.end(handle) == Cancelled(handle.id, "stop")
        assert await e.rows.value("select last_value from @.refusals") == 2
        assert (ran, errors) == (["waits"], [])
        await e.rows.when(lambda: no_claims(worker))


async def test_a_run_ahead_commit_that_comes_back_stale_ends_the_claim(engine: Opening) -> None:
    """The next step does not run on a claim that was lost: it runs once, on the claim that followed."""
    async with engine() as e, e.worker(Guarded(), queues={"default": 1}, prefetch=0) as worker:
        handle = await e.app.insert(Guarded.waits, "x")
        await soon(entered.wait())
        services = services_of(e.app)
        await services.pool.run(services.statements.release_claims([(handle.id, 1, None, None)]))
        may_go_on.set()
        await e.seen.until(StaleOutcome)
        worker._runtime.wake_all()
        assert await e.end(handle) == Finished(handle.id, "x")
        assert ran == ["waits", "waits", "then 3"]
        assert len(e.seen.of(StaleOutcome)) == 1
        await e.rows.when(lambda: no_claims(worker))


async def test_a_transactional_flush_waits_for_a_locked_row(engine: Opening) -> None:
    """A lock that lasts longer than `lock_timeout` (SQLSTATE 55P03) is no error of the step, which runs once."""
    async with engine() as e, e.worker(Guarded()):
        handle = await e.app.insert(Guarded.writes, "x")
        await soon(entered.wait())
        async with locked(e, handle):
            may_go_on.set()
            await asyncio.sleep(1.5)
        assert await e.end(handle) == Finished(handle.id, "x")
        assert (ran, errors) == (["writes"], [])


async def test_a_transactional_flush_does_not_wait_for_ever(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that has the lock may itself wait for the step's writes: after some tries the step has failed."""
    monkeypatch.setattr(transactional_executor, "FLUSH_RETRIES", 1)
    async with engine() as e, e.worker(Guarded()):
        handle = await e.app.insert(Guarded.writes, "again")
        await soon(entered.wait())
        async with locked(e, handle):
            may_go_on.set()
            async with asyncio.timeout(10):
                while not errors:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert await e.end(handle) == Finished(handle.id, "again")
        assert "55P03" in str(errors[0])
        assert (ran, len(errors)) == (["writes", "writes"], 1)


async def test_a_flush_wakes_another_process(engine: Opening) -> None:
    """The queue of the next step is served elsewhere: that worker neither polls nor hears of it otherwise."""
    async with (
        engine() as e,
        engine() as other,
        e.worker(Guarded(), **SILENT),
        other.worker(Guarded(), queues={"elsewhere": 1}, **SILENT),
    ):
        await until_listening(e, other)
        for _ in range(3):  # a pick that the start of the worker left over would find only the first
            handle = await e.app.insert(Guarded.moves, "x")
            await e.rows.until(handle, status="done")
        assert ran == ["then 2"] * 3


async def test_a_release_wakes_another_process(engine: Opening) -> None:
    """A worker that stops gives back a row that has not begun, and another process runs it at once."""
    async with engine() as e, engine() as other:
        handles = await e.app.insert_many([Start(hold, "a"), Start(hold, "b")])
        first = e.worker(hold, queues={"default": 1}, prefetch=1, drain_timeout=seconds(20), **SILENT)
        await first.start()
        await soon(entered.wait())
        await e.rows.until(handles[1], status="executing")
        async with other.worker(hold, **SILENT):
            await until_listening(e, other)
            stopping = asyncio.create_task(first.stop())
            await e.rows.until(handles[1], claims=3)  # claimed, given back, claimed by the other worker
            may_go_on.set()
            await stopping
            assert [await other.end(handle) for handle in handles] == [
                Finished(h.id, n) for h, n in zip(handles, "ab", strict=True)
            ]


async def test_a_pick_that_returns_while_the_worker_stops_is_given_back(engine: Opening) -> None:
    """The drain has looked for claims already: without a release the rows would wait for their leases."""
    async with engine() as e, e.worker(hold, **SILENT) as worker:
        handle = await e.app.insert(hold, "x", queue="aside")
        services = services_of(e.app)
        picked = await services.pool.run(services.statements.pick(worker.name, {"aside": 1}, ["hold/1/run"], 60))
        worker._runtime.stop_starting_claims()
        worker._runtime.claims.add_and_start(list(picked.claims), time.monotonic())
        row = await e.rows.until(handle, status="runnable")
        assert (row["crashes"], row["locked_by"]) == (0, None)
        await e.rows.when(lambda: no_claims(worker))


async def test_a_follow_up_that_does_not_end_is_cancelled_by_the_stop(engine: Opening) -> None:
    """For example the release of a row whose statement is not answered: no task outlives its worker."""
    async with engine() as e:
        async with e.worker(hold, drain_timeout=seconds(0.1)) as worker:
            follow_up = worker._runtime.tasks.spawn(asyncio.sleep(60))
        await asyncio.wait([follow_up], timeout=5)
        assert follow_up.cancelled()


async def test_a_cancelled_stop_raises(engine: Opening) -> None:
    """Its caller was cancelled, and must not go on as if the worker had drained."""
    async with engine() as e:
        worker = e.worker(hold, drain_timeout=seconds(30))
        await worker.start()
        await e.app.insert(hold, "x")
        await soon(entered.wait())
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.1)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(stopping)
        assert stopping.cancelled()


async def test_a_call_of_ctx_sync_does_not_outlive_the_worker(engine: Opening) -> None:
    """A thread that waits for the event loop is released when the worker has stopped."""
    async with engine() as e:
        async with e.worker(call_in_thread, drain_timeout=seconds(0.1), **BRIEF):
            await e.app.insert(call_in_thread, "x")
            await soon(entered.wait())
        assert await asyncio.to_thread(released.wait, 5)
