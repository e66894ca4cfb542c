"""Picker: when it asks, and when it leaves it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest
from tests.support.picker import Claimed

from gen_durable import Durable, Start, job
from gen_durable.core.services import services_of
from gen_durable.engine import picker as picker_module
from gen_durable.engine.pick_scan_positions import PickScanPositions
from gen_durable.engine.picker import Picker
from gen_durable.engine.slots import Slots
from gen_durable.engine.task_set import TaskSet
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.types import PickResult
from gen_durable.worker_options import WorkerOptions

LAZY = timedelta(hours=1)  # no poll comes to the rescue


@job
async def noop(n: int) -> int:
    """Never run here: the tests only look at what is claimed."""
    return n


class Slow(PersistentConnection):
    """A link on which something happens between the server's answer and our hearing it, or instead of it."""

    __slots__ = ("errors", "meanwhile", "statements")
    meanwhile: Callable[[], Awaitable[None]] | None
    errors: list[Exception]
    statements: int

    async def run(self, call: Any, *, timeout: float | None = None) -> Any:
        self.statements += 1
        if self.errors:
            raise self.errors.pop(0)
        answer = await super().run(call, timeout=timeout)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return answer


@asynccontextmanager
async def picking(app: Durable, pending: int = 0) -> AsyncIterator[tuple[Picker, Slow, Claimed]]:
    link = Slow(services_of(app).connection_target)
    link.meanwhile, link.errors, link.statements = None, [], 0
    claimed = Claimed()
    claimed.unanswered_in_batches = pending
    options = WorkerOptions(poll_interval=LAZY, max_poll_interval=LAZY)
    around = cast(Any, claimed)
    pick = Picker(
        link,
        services_of(app).statements,
        options,
        worker="w",
        known_step_keys=["noop/1/run"],
        slots=Slots(options.concurrency_by_queue, options.prefetch, tasks=TaskSet(), notifier=around),
        claims=around,
        committer=around,
        notifier=around,
        events=app.events,
    )
    try:
        yield pick, link, claimed
    finally:
        await pick.stop()
        await link.close()


async def test_a_nearer_moment_told_during_a_pick_is_not_forgotten(dsn: str, schema: str) -> None:
    """The answer of a pick speaks of a row due in an hour; a nearer one was told while it was under way, and counts."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        await app.insert(noop, 1, delay=timedelta(hours=1))

        async def nearer() -> None:
            await app.insert(noop, 2, delay=timedelta(seconds=0.3))
            pick._slots.schedule_pick_or_wake_others("default", 0.3)

        link.meanwhile = nearer
        pick.start()
        claim = await asyncio.wait_for(claimed.claims.get(), 5)
        assert claim.state == "2"


async def test_nothing_is_claimed_while_outcomes_pile_up(dsn: str, schema: str) -> None:
    """A worker that cannot get rid of what it has done takes no more; it goes on when the pile is gone."""
    async with Durable(dsn, schema=schema) as app, picking(app, pending=10_000) as (pick, _, claimed):
        await app.insert_many([Start(noop, n) for n in range(3)])
        pick.start()
        done, _ = await asyncio.wait([waiting := asyncio.ensure_future(claimed.claims.get())], timeout=0.3)
        assert not done
        claimed.unanswered_in_batches = 0
        assert (await asyncio.wait_for(waiting, 5)).machine == "noop"


async def insert_a_first_row_that_is_blocked(app: Durable, dsn: str, schema: str) -> None:
    """Two rows of one key: the first is blocked in another queue, and the second is runnable."""
    first = await app.insert(noop, 1, queue="other", partition_key="k")
    await app.insert(noop, 2, partition_key="k")
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            f"update \"{schema}\".instances set blocked_on = case when id = {first.id} then 'partition/k' end"
        )
    finally:
        await connection.close()


async def test_the_queue_of_a_row_that_a_pick_unblocks_is_woken(dsn: str, schema: str) -> None:
    """A row found in one queue is not the first of its key: the first is blocked in another queue, and is due now."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, _, claimed):
        await insert_a_first_row_that_is_blocked(app, dsn, schema)
        pick.start()
        assert await asyncio.wait_for(claimed.woken.get(), 5) == "other"
        assert claimed.claims.empty()


async def test_a_picker_that_finds_rows_picks_again_at_once(dsn: str, schema: str) -> None:
    """One that finds none waits until something has changed; the moment of the claim is before its statement."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        await app.insert(noop, 1)
        began = time.monotonic()

        async def note_time() -> None:
            await asyncio.sleep(0.02)

        link.meanwhile = note_time
        assert await asyncio.wait_for(pick.run_once(), 5) == 0.0
        assert (await claimed.claims.get()).state == "1"
        assert began <= claimed.leased_at <= time.monotonic() - 0.02
        pick.wake_and_get_capacity("default")
        waiting = asyncio.create_task(pick.run_once())
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        assert link.statements == 2
        pick._slots.changed.set()
        assert await asyncio.wait_for(waiting, 5) == 0.0


async def test_a_failed_pick_keeps_its_reasons(dsn: str, schema: str) -> None:
    """The error is raised as it is, and the next pick looks in the same queues for the same rows."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        queue = pick._slots.queues["default"]
        for error in (ConnectionLost(OSError("gone"), sent=True), asyncpg.DeadlockDetectedError("busy")):
            queue.expected, queue.has_work = 2, True
            link.errors = [error]
            with pytest.raises(type(error)) as raised:
                await pick.run_once()
            assert raised.value is error
            assert (queue.expected, queue.has_work, link.errors) == (2, True, [])
        assert claimed.missed == []
        waiting = asyncio.create_task(pick.run_once())
        await asyncio.wait_for(until(lambda: claimed.missed == ["default"]), 5)
        assert queue.expected == 0
        waiting.cancel()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_a_stop_waits_for_the_pick_under_way(dsn: str, schema: str) -> None:
    """Its claims reach the table, and no later pick follows."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        await app.insert(noop, 1)
        answered, may_go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            answered.set()
            await may_go_on.wait()

        link.meanwhile = hold
        pick.start()
        await asyncio.wait_for(answered.wait(), 5)
        stopping = asyncio.create_task(pick.stop())
        done, _ = await asyncio.wait([stopping], timeout=0.05)
        assert not done
        may_go_on.set()
        await asyncio.wait_for(stopping, 5)
        assert claimed.claims.get_nowait().state == "1"
        assert link.statements == 1


async def test_a_stop_cancels_a_pick_that_hangs(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; no task is left."""
    monkeypatch.setattr(picker_module, "STOP_SECONDS", 0.05)
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, _):
        answered = asyncio.Event()

        async def hang() -> None:
            answered.set()
            await asyncio.sleep(60)

        link.meanwhile = hang
        pick.start()
        await asyncio.wait_for(answered.wait(), 5)
        await asyncio.wait_for(pick.stop(), 5)
        assert [task for task in asyncio.all_tasks() if task.get_name() == "gen_durable pick"] == []


async def test_a_pick_that_fails_after_an_interrupted_stop_is_not_reported(dsn: str, schema: str) -> None:
    """Nothing awaits it any more: asyncio would log its error, with a traceback."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, _):
        answered, is_broken = asyncio.Event(), asyncio.Event()

        async def lose() -> None:
            answered.set()
            await is_broken.wait()
            raise ConnectionError

        link.meanwhile = lose
        pick.start()
        await asyncio.wait_for(answered.wait(), 5)
        stopping = asyncio.create_task(pick.stop())
        assert not (await asyncio.wait([stopping], timeout=0.05))[0]
        stopping.cancel()
        await asyncio.wait([stopping])
        del stopping  # its traceback has the task of the pick
        is_broken.set()
        await until(lambda: all(task.get_name() != "gen_durable pick" for task in asyncio.all_tasks()))
        await asyncio.sleep(0)
        gc.collect()
        assert reports == []


def data_error() -> Exception:
    return asyncpg.NumericValueOutOfRangeError("too large")


async def test_a_head_that_cannot_be_read_is_postponed(dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is claimed without its payloads; the reason names what to look at. The rows after it are claimed singly."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        handles = await app.insert_many([Start(noop, n) for n in range(2)])
        before = time.monotonic()
        link.errors = [data_error(), data_error()]
        last = await pick._pick_and_notify_of_missed_rows({"default": 10}, {"default": 0})
        assert [(await claimed.claims.get()).id, claimed.claims.empty()] == [handles[1].id, True]
        reason = (
            "its claim cannot be read (NumericValueOutOfRangeError, SQLSTATE 22003): "
            "look at its signals, children and activities"
        )
        assert claimed.postponed == [(handles[0].id, reason)]
        assert before <= claimed.leased_at <= time.monotonic()
        assert [record.getMessage() for record in caplog.records] == [f"instance {handles[0].id} of noop: {reason}"]
        # The whole pick, the first row, the first row without payloads, the second row, no third row.
        assert (link.statements, last.claims) == (5, [])


async def test_a_head_that_cannot_be_claimed_at_all_is_logged(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queue rests until the next pick."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        link.errors = [data_error(), data_error(), data_error()]
        last = await pick._pick_and_notify_of_missed_rows({"default": 10}, {"default": 0})
        assert (last, link.statements, claimed.postponed) == (PickResult([], []), 3, [])
        assert [record.getMessage() for record in caplog.records] == [
            "queue default: its first row cannot be claimed (NumericValueOutOfRangeError, SQLSTATE 22003)"
        ]


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_an_error_that_no_row_causes_ends_the_search(dsn: str, schema: str, before: int) -> None:
    """In the pick, in that of a single row, and in the one without payloads."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        await app.insert(noop, 1)
        link.errors = [*(data_error() for _ in range(before)), asyncpg.DeadlockDetectedError("busy")]
        with pytest.raises(asyncpg.DeadlockDetectedError):
            await pick._pick_and_notify_of_missed_rows({"default": 10}, {"default": 0})
        assert claimed.claims.empty()


async def test_a_stop_ends_a_search_row_by_row(dsn: str, schema: str) -> None:
    """No further row is claimed."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        await app.insert_many([Start(noop, n) for n in range(3)])
        link.errors = [data_error()]
        pick._stopping = True
        await pick._pick_and_notify_of_missed_rows({"default": 10}, {"default": 0})
        assert claimed.claims.qsize() == 1


async def test_a_row_that_a_postponed_head_unblocks_is_woken(dsn: str, schema: str) -> None:
    """As by any other pick."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        await insert_a_first_row_that_is_blocked(app, dsn, schema)
        link.errors = [data_error(), data_error()]
        await pick._pick_and_notify_of_missed_rows({"default": 10}, {"default": 0})
        assert claimed.woken.get_nowait() == "other"


async def test_the_floors_of_a_slow_pick_are_sent_with_the_next(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept with the duration of the statement."""
    updates: list[tuple[PickResult, str | None, float]] = []
    monkeypatch.setattr(PickScanPositions, "update_from_pick", lambda _, *arguments: updates.append(arguments))
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, _):
        monkeypatch.setattr(PickScanPositions, "to_pick_argument", lambda *_: "{}")

        async def wait() -> None:
            await asyncio.sleep(0.02)

        link.meanwhile = wait
        picked = await pick._pick_and_start_claims({"default": 1})
        ((result, sent, seconds),) = updates
        assert result is picked
        assert sent == "{}"
        assert 0.02 <= seconds < 30
