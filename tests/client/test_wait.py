"""Waiting for an instance to end."""

from __future__ import annotations

import asyncio
import pickle
import time
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.engine import Opening, Spawning, program_job, seconds, soon
from tests.support.processes import open_proxy
from tests.support.rows import ended

from gen_durable import Abort, Durable, Failed, Finished, Pending, Start, job
from gen_durable.errors import (
    DatabaseUnavailable,
    DecodeError,
    GenDurableError,
    InstanceCancelled,
    InstanceFailed,
    NotFound,
    WaitTimeout,
)
from gen_durable.pg.persistent_connection import PersistentConnection


@dataclass(frozen=True)
class Receipt:
    total: int


@job
async def total(number: int) -> Receipt:
    return Receipt(number * 2)


@job
async def refuse(reason: str) -> None:
    raise Abort(reason)


@job
async def liar(_: None) -> Receipt:
    return Receipt(1)


async def test_finished_and_failed(engine: Opening) -> None:
    """`Finished` carries the typed result, `Failed` the reason."""
    async with engine() as e, e.worker(total, refuse):
        good = await e.app.insert(total, 3)
        bad = await e.app.insert(refuse, "no stock")
        assert await e.end(good) == Finished(good.id, Receipt(6))
        assert await e.end(bad) == Failed(bad.id, "aborted: no stock")


async def test_result_returns_or_raises(engine: Opening) -> None:
    """`result` returns the typed value; the errors of the other endings carry id, machine and reason."""
    async with engine() as e:
        waiting = await e.app.insert(total, 1)
        with pytest.raises(WaitTimeout, match=rf"instance {waiting.id} \(total\) has not ended within 0.01 s") as late:
            await waiting.result(timeout=0.01)
        assert isinstance(late.value, TimeoutError)
        assert (late.value.id, late.value.machine) == (waiting.id, "total")
        await waiting.cancel(reason="too late")
        with pytest.raises(InstanceCancelled, match="was cancelled: too late") as cancelled:
            await waiting.result()
        assert (cancelled.value.id, cancelled.value.reason) == (waiting.id, "too late")
        async with e.worker(total, refuse):
            assert await (await e.app.insert(total, 3)).result(seconds(10)) == Receipt(6)
            bad = await e.app.insert(refuse, "no stock")
            with pytest.raises(InstanceFailed, match=r"\(refuse\) has failed: aborted: no stock") as failed:
                await bad.result(timeout=10)
        assert (failed.value.id, failed.value.machine, failed.value.reason) == (bad.id, "refuse", "aborted: no stock")
        assert pickle.loads(pickle.dumps(failed.value)).reason == failed.value.reason


async def test_after_the_end(engine: Opening) -> None:
    """Waiting for what has ended long ago answers at once, as often as asked."""
    async with engine() as e:
        handle = await e.app.insert(total, 1)
        async with e.worker(total):
            await e.end(handle)
        for _ in range(3):
            assert await e.end(handle) == Finished(handle.id, Receipt(2))


async def test_an_end_without_a_result(engine: Opening) -> None:
    """As SQL of the user may write it: the result is None."""
    async with engine() as e:
        await e.rows.connection.execute(ended(1000).replace("@schema", f'"{e.rows.schema}"'))
        assert await e.end(e.app.handle(1000, refuse)) == Finished(1000, None)


async def test_pending(engine: Opening) -> None:
    """When the time is over the answer is `Pending`, near the time given, and a later wait still works."""
    async with engine() as e:
        handle = await e.app.insert(total, 1)
        began = time.monotonic()
        assert await handle.wait(seconds(0.2)) == Pending(handle.id)
        assert 0.2 <= time.monotonic() - began < 1
        async with e.worker(total):
            assert await e.end(handle) == Finished(handle.id, Receipt(2))


async def test_a_wait_of_no_time_tells_the_truth(engine: Opening) -> None:
    """`wait(timedelta(0))` means "has it ended?": an ended instance is not called pending."""
    async with engine() as e:
        handle = await e.app.insert(total, 1)
        assert await handle.wait(seconds(0)) == Pending(handle.id)
        async with e.worker(total):
            await e.end(handle)
        assert await handle.wait(seconds(0)) == Finished(handle.id, Receipt(2))


async def test_an_unknown_id(engine: Opening) -> None:
    """An instance that never was, or was deleted, is `NotFound`, with or without a timeout."""
    async with engine() as e:
        stranger = e.app.handle(424_242, total)
        with pytest.raises(NotFound, match="instance 424242 is unknown"):
            await e.end(stranger)
        with pytest.raises(NotFound):
            await stranger.wait(seconds(10))


async def test_a_handle_from_an_id(engine: Opening) -> None:
    """`handle` makes a typed handle from an id alone; several waiters get the same answer."""
    async with engine() as e, e.worker(total):
        made = await e.app.insert(total, 5)
        again = e.app.handle(made.id, total)
        answers = await soon(asyncio.gather(again.wait(), made.wait(), again.wait(seconds(20))))
        assert answers == [Finished(made.id, Receipt(10))] * 3
        assert repr(again) == f"Handle({made.id})"


async def test_a_result_that_does_not_fit(engine: Opening) -> None:
    """A stored result of another type is a `DecodeError` for the waiter, not a wrong value."""
    async with engine() as e, e.worker(liar):
        handle = await e.app.insert(liar, None)
        await e.rows.until(handle, status="done")
        # As another version of the job may have stored it: a worker checks the results that it commits.
        await e.rows.fetch("update @.instances set result = $1 where id = $2", '"no receipt"', handle.id)
        with pytest.raises(DecodeError, match=r"the result of liar\.run"):
            await e.end(handle)


async def test_many_waits_use_few_statements(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 waits at once are answered by a handful of statements: one asks for all."""
    asked: list[int] = []
    run = PersistentConnection.run

    async def counting(self: PersistentConnection, call: Any, **options: Any) -> Any:
        if ".ends_of(" in call.text:
            asked.append(len(call.args[0]))
        return await run(self, call, **options)

    async with engine() as e, engine() as other:
        handles = await e.app.insert_many(Start(total, n) for n in range(500))
        monkeypatch.setattr(PersistentConnection, "run", counting)
        waits = asyncio.gather(*(handle.wait() for handle in handles))
        async with other.worker(total, queues={"default": 100}):
            ended = await soon(waits)
    assert ended == [Finished(h.id, Receipt(n * 2)) for n, h in enumerate(handles)]
    assert max(asked) == 500
    assert len(asked) < 50


async def test_local_ends_need_no_statement(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of the same process tells the waiter at once, long before the next question to the database."""
    async with engine() as e, e.worker(total):
        handle = await e.app.insert(total, 1, delay=seconds(1.5))
        monkeypatch.setattr("gen_durable.core.completion_watcher.FIRST_PAUSE", 3600)
        assert await e.end(handle) == Finished(handle.id, Receipt(2))


async def test_a_wait_that_begins_during_the_last_step_needs_no_second_question(
    engine: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end that this process commits is newer than the wait."""
    began, may_end, polled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    polls: list[object] = []
    run = PersistentConnection.run

    async def counting(self: PersistentConnection, call: Any, **options: Any) -> Any:
        if ".ends_of(" in call.text:
            polls.append(call.args)
            polled.set()
        return await run(self, call, **options)

    @job
    async def held(number: int) -> int:
        began.set()
        await may_end.wait()
        return number

    monkeypatch.setattr(PersistentConnection, "run", counting)
    monkeypatch.setattr("gen_durable.core.completion_watcher.FIRST_PAUSE", 3600)
    monkeypatch.setattr("gen_durable.core.completion_watcher.LONGEST_PAUSE", 3600)
    async with engine() as e, e.worker(held):
        handle = await e.app.insert(held, 1)
        await soon(began.wait())
        waiting = asyncio.ensure_future(handle.wait())
        await soon(polled.wait())
        may_end.set()
        assert await soon(waiting) == Finished(handle.id, 1)
        assert len(polls) == 1


async def test_an_end_in_another_process(engine: Opening, spawn: Spawning) -> None:
    """A process without a worker sees the end that another process committed."""
    async with engine() as e, spawn():
        handle = await e.app.insert(program_job("quick", int, int), 41)
        assert await e.end(handle) == Finished(handle.id, 42)


async def test_a_cancelled_wait_leaves_nothing(engine: Opening) -> None:
    """Giving up a wait harms no other waiter of the same instance."""
    async with engine() as e:
        handle = await e.app.insert(total, 1)
        patient = asyncio.ensure_future(handle.wait())
        hasty = asyncio.ensure_future(handle.wait())
        assert await handle.wait(seconds(0.05)) == Pending(handle.id)
        hasty.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hasty
        async with e.worker(total):
            assert await soon(patient) == Finished(handle.id, Receipt(2))


async def test_closing_ends_waits(engine: Opening) -> None:
    """A wait that is under way when the client is closed ends with an error of ours instead of hanging for ever."""
    async with engine() as e:
        handle = await e.app.insert(total, 1)
        waiting = asyncio.ensure_future(handle.wait())
        await handle.wait(seconds(0.05))
    done, _ = await asyncio.wait([waiting], timeout=2)
    waiting.cancel()
    assert done, "the wait hangs"
    assert isinstance(waiting.exception(), GenDurableError)


async def test_a_wait_without_a_database(dsn: str, schema: str) -> None:
    """When the time is over and the database cannot be asked, that is said in a word of ours."""
    async with open_proxy(dsn) as proxy:
        app = Durable(proxy.dsn, schema=schema)
        await app.open()
        handle = await app.insert(total, 1)
    with pytest.raises(DatabaseUnavailable, match="wait: the database is not reachable"):
        await soon(handle.wait(seconds(0.1)))
    await app.close()
