"""A cancellation that user code left behind hits the task of a claim after its step: the row gets on all the same.

A timer that a step forgot (`loop.call_later(…, asyncio.current_task().cancel)`) fires while the engine commits, waits
for a slot, or runs `on_cancel`. Each test holds the engine at one of these points and cancels the task there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.engine import BRIEF, Engine, Opening, seconds, soon

from gen_durable import (
    Cancelled,
    Context,
    Done,
    Finished,
    Handle,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Start,
    job,
    step,
)
from gen_durable.engine.claim_table import ClaimTable
from gen_durable.engine.slots import QueueSlots, Slots
from gen_durable.pg.shared_transaction import SharedTransaction
from gen_durable.telemetry import ClaimLost, StepCommitted

ONE_SLOT: dict[str, Any] = {**BRIEF, "queues": {"default": 1}}
tasks: dict[str, asyncio.Task[Any]] = {}
ran: list[str] = []
entered = asyncio.Event()
may_go_on = asyncio.Event()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global entered, may_go_on
    tasks.clear()
    ran.clear()
    entered, may_go_on = asyncio.Event(), asyncio.Event()


def remember(name: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    tasks[name] = task
    ran.append(name)
    entered.set()


class Chain(Machine):
    """Two steps; the first waits until the test lets it return."""

    @step
    async def one(self, name: str, ctx: Context) -> Outcome[str]:
        remember(name)
        await may_go_on.wait()
        return Next(self.two, name)

    @step
    async def two(self, name: str, ctx: Context) -> Outcome[str]:
        ran.append(f"{name} two")
        return Done(name)

    @step
    async def hold_slot(self, name: str, ctx: Context) -> Outcome[str]:
        remember(name)
        await may_go_on.wait()
        return Done(name)

    @step
    async def many(self, name: str, ctx: Context) -> Outcome[str]:
        remember(name)
        await may_go_on.wait()
        return ScheduleChildren((Start(Chain.two, f"child {n}") for n in range(1001)), then=self.two, state=name)

    @step(transactional=True)
    async def write(self, name: str, ctx: Context) -> Outcome[str]:
        if name not in ran:
            remember(name)
            await may_go_on.wait()
        return Done(name)

    @step
    async def before_write(self, name: str, ctx: Context) -> Outcome[str]:
        remember(name)
        return Next(self.write, name)


class Cleaning(Machine):
    """Its `on_cancel` waits until the test has cancelled its task."""

    @step
    async def work(self, how: str, ctx: Context) -> Outcome[str]:
        ran.append("work")
        if how == "returns":
            await may_go_on.wait()
            return Next(self.work, "again")
        entered.set()
        await asyncio.sleep(60)
        return Done("never")

    async def on_cancel(self, state: str, ctx: Context, reason: str) -> None:
        remember("on_cancel")
        await asyncio.sleep(60)


class Answering(Machine):
    """The database refuses its outcome, and `on_error` waits until the test lets it answer."""

    @step
    async def ends(self, name: str, ctx: Context) -> Outcome[str]:
        return Done("refused")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        remember("on_error")
        await may_go_on.wait()
        return Done("answered")


class CancelsItself(Machine):
    """Its handlers cancel their own task and return: the cancellation arrives when the engine has the outcome."""

    @step
    async def fails(self, name: str, ctx: Context) -> Outcome[str]:
        raise ValueError(name)

    @step
    async def waits(self, name: str, ctx: Context) -> Outcome[str]:
        entered.set()
        await asyncio.sleep(60)
        return Done("never")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        remember("on_error")
        tasks["on_error"].cancel()
        return Done("answered")

    async def on_cancel(self, state: str, ctx: Context, reason: str) -> None:
        remember("on_cancel")
        tasks["on_cancel"].cancel()


@asynccontextmanager
async def locked(e: Engine, instance: Handle[Any]) -> AsyncIterator[None]:
    """Hold the lock of a row, so that its outcome cannot be committed."""
    async with e.rows.connection.transaction():
        await e.rows.fetch("select from @.instances where id = $1 for update", instance.id)
        yield


async def until_blocked(e: Engine) -> None:
    """A session waits for this session's lock."""
    await e.rows.when(
        lambda: e.rows.value(
            "select exists (select from pg_stat_activity where pg_backend_pid() = any (pg_blocking_pids(pid)))"
        )
    )


async def end_without_claims(e: Engine, worker: Any, handle: Handle[Any]) -> object:
    end = await e.end(handle)

    async def none_left() -> bool:
        return not worker._runtime.claims.list_all()

    await e.rows.when(none_left)
    return end


async def make_due(e: Engine, handle: Handle[Any]) -> Any:
    """Wait until the row was put back, and make it due at once."""
    row = await e.rows.until(handle, status="runnable")
    await e.rows.fetch("update @.instances set eligible_at = now() where id = $1", handle.id)
    return row


async def test_cancelled_while_its_commit_is_under_way(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is committed, and the instance goes on with the next step at once: the step does not run again."""
    postponed: list[str] = []
    monkeypatch.setattr(ClaimTable, "postpone_soon", lambda _, __, reason: postponed.append(reason))
    async with engine() as e, e.worker(Chain(), **ONE_SLOT) as worker:
        handle = await e.app.insert(Chain.one, "a")
        await soon(entered.wait())
        async with locked(e, handle):
            may_go_on.set()
            await until_blocked(e)
            tasks["a"].cancel()
            await asyncio.sleep(0)
        assert await end_without_claims(e, worker, handle) == Finished(handle.id, "a")
        assert (ran, postponed) == (["a", "a two"], [])


async def test_cancelled_while_it_waits_for_its_slot(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot that was lent is not lost, and the instance goes on."""
    monkeypatch.setattr(QueueSlots, "may_lend_slots", property(lambda _: True))
    waiting = asyncio.Event()
    regain = Slots.wait_for_slot_to_continue

    async def wait_for_slot_to_continue(slots: Slots, active: Any) -> None:
        waiting.set()
        await regain(slots, active)

    monkeypatch.setattr(Slots, "wait_for_slot_to_continue", wait_for_slot_to_continue)
    async with engine() as e, e.worker(Chain(), **{**ONE_SLOT, "prefetch": 1}) as worker:
        first = await e.app.insert(Chain.one, "first")
        await soon(entered.wait())
        second = await e.app.insert(Chain.hold_slot, "second")
        await e.rows.until(second, status="executing")
        entered.clear()
        async with locked(e, first):
            released, globals()["may_go_on"] = may_go_on, asyncio.Event()
            released.set()
            await soon(entered.wait())  # the second has taken the slot that the first has lent
        await soon(waiting.wait())
        await asyncio.sleep(0.05)
        tasks["first"].cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        assert await end_without_claims(e, worker, first) == Finished(first.id, "first")
        assert await e.end(second) == Finished(second.id, "second")
        queue = worker._runtime.slots.queues["default"]  # type: ignore[union-attr]
        await e.rows.when(lambda: _is((queue.running, queue.lent) == (0, 0)))


async def _is(value: bool) -> bool:
    return value


async def test_cancelled_while_many_children_are_committed(engine: Opening) -> None:
    """The children start once."""
    async with engine() as e, e.worker(Chain(), queues={"default": 20}, **BRIEF) as worker:
        handle = await e.app.insert(Chain.many, "parent")
        await soon(entered.wait())
        async with locked(e, handle):
            may_go_on.set()
            await e.rows.when(lambda: _is(not worker._runtime.committer.is_idle))  # type: ignore[union-attr]
            tasks["parent"].cancel()
            await asyncio.sleep(0.05)
        assert await end_without_claims(e, worker, handle) == Finished(handle.id, "parent")
        assert sorted(set(ran)) == sorted(ran)
        assert len(ran) == 1003


async def test_cancelled_during_on_cancel(engine: Opening) -> None:
    """The instance ends as cancelled, with the error of its `on_cancel`."""
    async with engine() as e, e.worker(Cleaning(), **ONE_SLOT) as worker:
        handle = await e.app.insert(Cleaning.work, "waits")
        await soon(entered.wait())
        entered.clear()
        await e.app.cancel(handle.id, reason="stop")
        await soon(entered.wait())
        tasks["on_cancel"].cancel()
        ended = await end_without_claims(e, worker, handle)
        assert ended == Cancelled(handle.id, "stop (and then on_cancel raised CancelledError)")


async def test_cancelled_during_on_cancel_that_follows_a_commit(
    engine: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit tells of the cancel request, and `on_cancel` runs in a task of its own."""
    async with engine() as e, e.worker(Cleaning(), run_ahead_steps=0, **ONE_SLOT) as worker:
        monkeypatch.setattr(ClaimTable, "apply_cancel_requests", lambda *_: None)
        handle = await e.app.insert(Cleaning.work, "returns")
        await e.rows.until(handle, status="executing")
        await e.app.cancel(handle.id, reason="stop")
        may_go_on.set()
        await soon(entered.wait())
        tasks["on_cancel"].cancel()
        ended = await end_without_claims(e, worker, handle)
        assert ended == Cancelled(handle.id, "stop (and then on_cancel raised CancelledError)")


async def test_cancelled_before_on_cancel_that_follows_a_commit(
    engine: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is put back, which ends its lease, and the reaper cancels it."""

    async def fetch_cancel_reason(*_: object) -> str:
        remember("fetch")
        await asyncio.sleep(60)
        return "never"

    async with engine() as e, e.worker(Cleaning(), run_ahead_steps=0, **ONE_SLOT) as worker:
        monkeypatch.setattr(ClaimTable, "apply_cancel_requests", lambda *_: None)
        monkeypatch.setattr(ClaimTable, "fetch_cancel_reason", fetch_cancel_reason)
        handle = await e.app.insert(Cleaning.work, "returns")
        await e.rows.until(handle, status="executing")
        await e.app.cancel(handle.id, reason="stop")
        may_go_on.set()
        await soon(entered.wait())
        tasks["fetch"].cancel()
        assert await end_without_claims(e, worker, handle) == Cancelled(handle.id, "stop")
        assert ran == ["work", "fetch"]


async def test_cancelled_while_the_answer_of_on_error_is_committed(engine: Opening) -> None:
    """After a refused outcome `on_error` runs in a task of its own. Its answer is committed, and reported."""
    async with engine() as e, e.worker(Answering(), **ONE_SLOT) as worker:
        await e.rows.fetch("""alter table @.instances add constraint refuse check (result <> '"refused"')""")
        handle = await e.app.insert(Answering.ends, "a")
        await soon(entered.wait())
        async with locked(e, handle):
            may_go_on.set()
            await until_blocked(e)
            tasks["on_error"].cancel()
            await asyncio.sleep(0)
        assert await end_without_claims(e, worker, handle) == Finished(handle.id, "answered")
        assert [event.outcome for event in e.seen.of(StepCommitted)] == ["Done"]
        assert e.seen.of(ClaimLost) == []
        await e.rows.fetch("alter table @.instances drop constraint refuse")


async def test_handlers_that_cancel_their_own_task(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """The outcome is with the committer by then: the row is not put back."""
    async with engine() as e, e.worker(CancelsItself(), **ONE_SLOT) as worker:
        handle = await e.app.insert(CancelsItself.fails, "a")
        assert await end_without_claims(e, worker, handle) == Finished(handle.id, "answered")
        handle = await e.app.insert(CancelsItself.waits, "b")
        await e.rows.until(handle, status="executing")
        await handle.cancel(reason="stop")
        assert await end_without_claims(e, worker, handle) == Cancelled(handle.id, "stop")
    assert ran == ["on_error", "on_cancel"]
    assert "cancelled its task" not in caplog.text


async def test_cancelled_before_the_transaction_begins(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is put back with the reason, and runs again."""
    begin, begun = SharedTransaction.begin, asyncio.Event()

    async def wait_once(connection: Any) -> SharedTransaction:
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return await begin(connection)

    monkeypatch.setattr(SharedTransaction, "begin", wait_once)
    async with engine() as e, e.worker(Chain(), **ONE_SLOT) as worker:
        handle = await e.app.insert(Chain.before_write, "a")
        await soon(begun.wait())
        tasks["a"].cancel()
        row = await make_due(e, handle)
        assert "was cancelled" in row["last_error"]
        assert await end_without_claims(e, worker, handle) == Finished(handle.id, "a")


async def test_cancelled_while_its_transaction_is_flushed(engine: Opening) -> None:
    """The transaction is rolled back, and the row is put back with the reason."""
    async with engine() as e, e.worker(Chain(), **ONE_SLOT) as worker:
        handle = await e.app.insert(Chain.write, "a")
        await soon(entered.wait())
        async with locked(e, handle):
            may_go_on.set()
            await until_blocked(e)
            tasks["a"].cancel()
            await asyncio.sleep(0.05)
        row = await make_due(e, handle)
        assert "was cancelled" in row["last_error"]
        assert await end_without_claims(e, worker, handle) == Finished(handle.id, "a")


async def test_cancelled_while_its_transaction_commits(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed stays committed, and the claim is not kept."""
    commit, committed = SharedTransaction.commit, asyncio.Event()

    async def commit_and_wait(transaction: SharedTransaction) -> None:
        await commit(transaction)
        committed.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(SharedTransaction, "commit", commit_and_wait)
    async with engine() as e, e.worker(Chain(), **ONE_SLOT) as worker:
        may_go_on.set()
        handle = await e.app.insert(Chain.write, "a")
        await soon(committed.wait())
        tasks["a"].cancel()
        assert await end_without_claims(e, worker, handle) == Finished(handle.id, "a")
        assert ran == ["a"]


@job
async def add_one(number: int) -> int:
    await asyncio.sleep(0.002)
    return number + 1


@job
async def cancel_everything(number: int) -> int:
    """As a clumsy shutdown of the user's does; the test's own task is spared."""
    for task in asyncio.all_tasks() - {asyncio.current_task(), tasks["test"]}:
        task.cancel()
    return number + 1


async def test_a_step_that_cancels_every_task_of_its_process(engine: Opening) -> None:
    """Steps, commits, picks, releases and every background task: all instances end, and no claim is kept."""
    test_task = asyncio.current_task()
    assert test_task is not None
    tasks["test"] = test_task
    async with engine() as e, e.worker(add_one, cancel_everything, **BRIEF) as worker:
        for number in range(3):
            await e.app.insert_many([Start(add_one, n) for n in range(50)])
            await e.app.insert(cancel_everything, number)
            await e.app.insert_many([Start(add_one, n) for n in range(50)])
            await asyncio.sleep(0.3)

        async def all_ended() -> bool:
            (row,) = await e.rows.fetch("select count(*) from @.instances where status = 'done'")
            return row["count"] == 303 and not worker._runtime.claims.list_all()

        await e.rows.when(all_ended)


async def test_the_engine_still_interrupts(engine: Opening) -> None:
    """A drain interrupts a step and gives its row back at once."""
    async with engine() as e:
        async with e.worker(Chain(), drain_timeout=seconds(0.1), **ONE_SLOT):
            handle = await e.app.insert(Chain.one, "a")
            await soon(entered.wait())
        row = await e.rows.row(handle)
        assert (row["status"], row["crashes"], row["last_error"]) == ("runnable", 0, None)
