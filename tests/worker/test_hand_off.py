"""Hand-off: a worker claims a row in the transaction of its insert, if nothing due stands before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engine import NEVER, Engine, Opening, soon

from gen_durable import Finished, Start, job
from gen_durable.core.services import services_of
from gen_durable.telemetry import RowsPicked

ran: list[str] = []
gate = asyncio.Event()
SILENT: dict[str, Any] = {"poll_interval": NEVER, "max_poll_interval": NEVER}


@job
async def note(name: str) -> str:
    ran.append(name)
    return name


@job
async def hold(name: str) -> str:
    await gate.wait()
    return name


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate  # noqa: PLW0603
    ran.clear()
    gate = asyncio.Event()


async def idle(e: Engine) -> None:
    """Wait until the worker listens and has nothing to pick."""
    listener = services_of(e.app).notifier.listener
    if listener is not None:
        await soon(listener.listening.wait())
    await e.seen.until(RowsPicked)
    await asyncio.sleep(0.2)
    e.seen.events.clear()


async def is_claimed_by_insert(e: Engine, instance: int) -> bool:
    """Whether one transaction inserted and claimed a row: both times are the beginning of it."""
    row = await e.rows.row(instance)
    return bool(row["started_at"] == row["inserted_at"])


async def test_an_idle_worker_claims_with_the_insert(engine: Opening) -> None:
    """One transaction inserts and claims; the picker makes no pick of its own."""
    async with engine() as e, e.worker(note, **SILENT):
        await idle(e)
        handle = await e.app.insert(note, "a")
        assert await e.end(handle) == Finished(handle.id, "a")
        assert await is_claimed_by_insert(e, handle.id)
        assert len(e.seen.of(RowsPicked)) == 1


async def test_a_more_urgent_row_comes_first(engine: Opening) -> None:
    """The pick decides: with one free slot it claims the row that is due and more urgent, not the new one."""
    async with engine() as e, e.worker(note, queues={"default": 1}, **SILENT):
        await idle(e)
        await e.rows.fetch("""
            insert into @.instances (fsm, step, state, priority) values ('note', 'run', '"urgent"', -5)
        """)
        handle = await e.app.insert(note, "new")
        assert await e.end(handle) == Finished(handle.id, "new")
        assert ran == ["urgent", "new"]
        assert not await is_claimed_by_insert(e, handle.id)


async def test_a_row_behind_a_busy_partition_key_is_not_claimed(engine: Opening) -> None:
    """The gates of a pick hold in a hand-off."""
    async with engine() as e, e.worker(hold, note, **SILENT):
        await idle(e)
        first = await e.app.insert(hold, "first", partition_key="k")
        await e.rows.until(first, status="executing")
        second = await e.app.insert(note, "second", partition_key="k")
        assert (await e.rows.row(second))["claims"] == 0
        gate.set()
        assert await e.end(second) == Finished(second.id, "second")


async def test_a_busy_worker_takes_no_hand_off(engine: Opening) -> None:
    """No free slot, and more rows than free slots: the usual way."""
    async with engine() as e, e.worker(hold, note, queues={"default": 1}, **SILENT):
        await idle(e)
        blocker = await e.app.insert(hold, "blocker")
        late = await e.app.insert(note, "late")
        assert (await e.rows.row(late))["claims"] == 0
        gate.set()
        assert await e.end(late) == Finished(late.id, "late")
        await e.end(blocker)
        for handle in await e.app.insert_many([Start(note, str(n)) for n in range(3)]):
            await e.end(handle)


async def test_a_cancelled_caller_loses_no_claim(engine: Opening) -> None:
    """The claim reaches the worker although its caller is gone."""
    async with engine() as e, e.worker(note, **SILENT):
        await idle(e)
        call = asyncio.create_task(e.app.insert(note, "a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await e.rows.when(lambda: _has_done(e))
        assert ran == ["a"]


async def _has_done(e: Engine) -> bool:
    return await e.rows.count("status = 'done'") == 1


async def test_a_stop_during_a_hand_off_leaves_no_claim(engine: Opening) -> None:
    """The stop waits for the answer; the row has run, or is runnable again."""
    async with engine() as e:
        worker = e.worker(note, **SILENT)
        await worker.start()
        await idle(e)
        call = asyncio.create_task(e.app.insert(note, "a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await soon(worker.stop())
        await call
        assert await e.rows.count("status = 'executing'") == 0


async def test_an_insert_on_a_connection_of_the_caller_claims_nothing(engine: Opening) -> None:
    async with engine() as e, e.worker(note, **SILENT):
        await idle(e)
        async with e.rows.connection.transaction():
            handle = await e.app.insert(note, "a", connection=e.rows.connection)
            assert (await e.rows.row(handle))["claims"] == 0
        assert await e.end(handle) == Finished(handle.id, "a")
