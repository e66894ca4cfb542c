"""ClaimTable: which claims a worker holds, and what a claim leaves behind when it is removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.engine import Engine, Opening

from gen_durable import Start, Status, job
from gen_durable.context import Child
from gen_durable.core.services import services_of
from gen_durable.engine import claim_table
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.claim_table import DEFAULT_REASON, LIMIT_REST, USUAL_POSTPONE_DELAY, ClaimTable
from gen_durable.engine.slots import NEVER, Slots
from gen_durable.engine.task_set import TaskSet
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.signal_decoder_fingerprints import SignalDecoderFingerprints
from gen_durable.step_registry import Registry
from gen_durable.store.schema import Schema
from gen_durable.store.types import Claim
from gen_durable.telemetry import ClaimLost, Events


@job
async def noop(n: int) -> int:
    return n


class LostPool:
    """A pool without a server."""

    async def run_idempotent(self, _statement: object) -> Any:
        raise ConnectionLost(OSError("gone"), sent=False)


class Holder:
    """A claim table around one queue with one slot. Notes what it wakes, and which claims begin."""

    def __init__(self, e: Engine | None = None) -> None:
        self.woken: list[str] = []
        self.unblocked: list[str] = []
        self.cascades: list[int | None] = []
        self.begun: list[int] = []
        self.seen: list[object] = []
        self.tasks = TaskSet()
        self.slots = Slots({"default": 1}, 5, tasks=self.tasks, notifier=cast(Any, self))
        self.slots.runner = self
        events = Events()
        events.subscribe(self.seen.append)
        services = None if e is None else services_of(e.app)
        self.table = ClaimTable(
            cast(Any, LostPool() if services is None else services.pool),
            cast(Any, _NoStatements() if services is None else services.statements),
            slots=self.slots,
            tasks=self.tasks,
            registry=Registry(jobs=[noop]),
            fingerprints=SignalDecoderFingerprints(Registry(jobs=[noop]), ""),
            notifier=cast(Any, self),
            events=events,
            max_crashes=None,
        )

    def wake(self, queue: str) -> None:
        self.woken.append(queue)

    def wake_queues(self, queues: Iterable[str]) -> None:
        self.unblocked += queues

    def start_cancel_cascade(self, origin: int | None) -> None:
        self.cascades.append(origin)

    async def run_claim(self, active: ActiveClaim) -> None:
        self.begun.append(active.claim.id)
        await asyncio.sleep(60)

    def log_engine_error_and_postpone(self, active: ActiveClaim, error: BaseException) -> None:
        raise AssertionError(error)

    def release_unstarted(self, claims: list[ActiveClaim]) -> None:
        raise AssertionError(claims)

    def recover_from_cancellation_by_other_code(self, active: ActiveClaim) -> None:
        pass

    def hold(self, *claims: Claim) -> list[ActiveClaim]:
        return [self.table.register(claim, 0.0) for claim in claims]


class _NoStatements:
    schema = Schema("none")

    def release_claims(self, rows: object, longest_delay: float) -> object:
        return rows

    def cancel_requests_of(self, rows: object) -> object:
        return rows


def claim(number: int, **fields: Any) -> Claim:
    values: list[Any] = ["noop", 1, "run", "1", 0, 1, 0, "default", 0, None, None, None, None]
    return Claim(number, *values, **fields)


async def pick(e: Engine, count: int, queue: str = "default") -> list[Claim]:
    services = services_of(e.app)
    return (await services.pool.run(services.statements.pick("w", {queue: count}, ["noop/1/run"], 60))).claims


async def test_released_rows_are_runnable_and_their_queue_is_woken(engine: Opening) -> None:
    """For each of them: another worker may have to be woken too. Their claims are gone when the release returns."""
    async with engine() as e:
        handles = await e.app.insert_many([Start(noop, 1), Start(noop, 2)])
        holder = Holder(e)
        held = holder.hold(*reversed(await pick(e, 2)))
        await holder.table.release(held)
        assert len(holder.table) == 0
        assert holder.woken == ["default", "default"]
        assert holder.slots.queues["default"].due_at == NEVER
        for handle in handles:
            row = await e.rows.row(handle)
            assert (row["status"], row["last_error"]) == ("runnable", None)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_postponed_row_is_picked_after_its_rest(engine: Opening, key: str | None) -> None:
    """Its queue is not woken now, unless it has a partition key: another row of that key may run meanwhile."""
    async with engine() as e:
        first = await e.app.insert(noop, 1, partition_key=key)
        holder = Holder(e)
        (active,) = holder.hold(*await pick(e, 1))
        if key is not None:
            await e.app.insert(noop, 2, partition_key=key, queue="other")
            assert await pick(e, 1, "other") == []  # the key is taken, so the row is blocked
        began = time.monotonic()
        holder.table.postpone_soon(active, "no thread")
        await holder.tasks.wait_until_empty(10)
        assert len(holder.table) == 0
        assert (
            began + USUAL_POSTPONE_DELAY.first
            <= holder.slots.queues["default"].due_at
            <= time.monotonic() + USUAL_POSTPONE_DELAY.first
        )
        assert (holder.woken, holder.unblocked) == (([], []) if key is None else (["default"], ["other"]))
        row = await e.rows.row(first)
        assert (row["status"], row["last_error"]) == ("runnable", "no thread")


async def test_a_rest_is_as_long_as_its_caller_says(engine: Opening) -> None:
    """A row that waits for a limit rests half a minute at most, however often it was put back."""
    async with engine() as e:
        handle = await e.app.insert(noop, 1)
        await e.rows.fetch("update @.instances set postponements = 20")
        holder = Holder(e)
        holder.table.postpone_soon(*holder.hold(*await pick(e, 1)), "Unknown limit 'l'", LIMIT_REST)
        await holder.tasks.wait_until_empty(10)
        row = await e.rows.row(handle)
        assert 30 <= (row["eligible_at"] - row["updated_at"]).total_seconds() <= 33


async def test_a_release_whose_task_is_cancelled_before_it_begins_keeps_no_claim() -> None:
    """Their leases end then: the heartbeat must not extend them."""
    holder = Holder()
    held = holder.hold(claim(1), claim(2))
    holder.table.release_soon(held)
    holder.tasks.cancel_all()
    await holder.tasks.wait_until_empty(10)
    await asyncio.sleep(0)
    assert len(holder.table) == 0


async def test_rows_that_cannot_be_released_are_left_to_a_reaper(caplog: pytest.LogCaptureFixture) -> None:
    """Their claims are removed, so that their leases end."""
    holder = Holder()
    await holder.table.release(holder.hold(claim(1), claim(2)))
    assert len(holder.table) == 0
    assert "2 rows could not be released (ConnectionLost); a reaper takes them back" in caplog.text
    assert holder.woken == []


async def test_a_claim_that_was_lost_stops() -> None:
    """A running one is interrupted, and a buffered one does not start. One that has ended meanwhile is not reported."""
    holder = Holder()
    holder.table.add_and_start([claim(1), claim(2), claim(3)], 0.0)
    await asyncio.sleep(0)
    running, buffered, ended = holder.table.list_all()
    holder.slots.remove_from_buffer(ended)
    holder.table.remove(ended)
    holder.table.drop_lost([running, buffered, ended])
    assert holder.seen == [ClaimLost(1, "noop", "run"), ClaimLost(2, "noop", "run")]
    await holder.tasks.wait_until_empty(10)
    assert (holder.begun, len(holder.table)) == ([1], 0)
    assert not ended.claim.is_interrupted


@pytest.mark.parametrize("state", ["buffered", "running", "done"])
async def test_a_row_that_is_claimed_again_replaces_its_former_claim(state: str) -> None:
    """The former one stops, unless its task is done: then only the answer to its outcome is missing."""
    holder = Holder()
    (former,) = holder.hold(claim(1))
    if state != "buffered":
        former.task = asyncio.create_task(asyncio.sleep(60 if state == "running" else 0))
        await asyncio.sleep(0.01)
    (later,) = holder.hold(claim(1))
    assert holder.table.list_all() == [later]
    assert (holder.table.has_claim(former), holder.table.has_claim(later)) == (False, True)
    assert len(holder.seen) == (state != "done")
    assert former.claim.is_interrupted is (state != "done")
    holder.table.remove(former)
    assert holder.table.list_all() == [later]
    if former.task is not None:
        former.task.cancel()


async def test_leases_that_are_old_enough_are_extended_in_the_order_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder()
    monkeypatch.setattr(claim_table, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    for number, leased_at in ((3, 900.0), (1, 980.0), (2, 980.5)):
        holder.table.register(claim(number), leased_at)
    assert [active.claim.id for active in holder.table.claims_leased_longer_than(20.0)] == [1, 3]


async def test_claims_that_have_not_begun_are_withdrawn_in_the_order_of_ids() -> None:
    """They are marked at once, and removed when their rows are returned. A claim whose task has run is not touched."""
    holder = Holder()
    holder.table.add_and_start([claim(5)], 0.0)
    await asyncio.sleep(0)
    holder.table.add_and_start([claim(4), claim(3)], 0.0)
    withdrawn = holder.table.withdraw_not_begun()
    assert [(active.claim.id, active.claim.is_interrupted) for active in withdrawn] == [(3, True), (4, True)]
    assert len(holder.table) == 3
    holder.table.drop_withdrawn(withdrawn)
    assert [(active.claim.id, active.claim.is_interrupted) for active in holder.table.list_all()] == [(5, False)]
    assert not holder.slots.queues["default"].buffer
    holder.tasks.cancel_all()


async def test_a_claim_whose_task_has_not_run_yet_is_interrupted_when_it_is_withdrawn() -> None:
    holder = Holder()
    holder.table.add_and_start([claim(1)], 0.0)
    holder.table.drop_withdrawn(holder.table.withdraw_not_begun())
    await holder.tasks.wait_until_empty(10)
    assert (holder.begun, len(holder.table)) == ([], 0)


async def test_a_cancel_request_reaches_a_claim_once() -> None:
    """A buffered one starts out of turn. A repeated request changes nothing, nor does one for a row that has ended."""
    holder = Holder()
    holder.table.add_and_start([claim(1), claim(2)], 0.0)
    await asyncio.sleep(0)
    running, buffered = holder.table.list_all()
    holder.table.apply_cancel_requests({1: "first", 2: "second", 77: "unknown"})
    holder.table.apply_cancel_requests({1: "again", 2: "again"})
    await asyncio.sleep(0)
    assert (running.cancel_reason, buffered.cancel_reason) == ("first", "second")
    assert holder.begun == [1, 2]
    assert not holder.slots.queues["default"].buffer
    holder.tasks.cancel_all()


async def test_cancel_requests_that_cannot_be_read_are_read_later() -> None:
    """By the next heartbeat. A claim whose request is known has the usual reason then."""
    holder = Holder()
    (active,) = holder.hold(claim(1))
    task = holder.tasks.spawn(holder.table._fetch_and_apply_cancel_requests())
    await holder.tasks.wait_until_empty(10)
    assert task.exception() is None
    assert await holder.table.fetch_cancel_reason(active) == DEFAULT_REASON


async def test_the_cancel_requests_of_all_claims_are_read(engine: Opening) -> None:
    async with engine() as e:
        handle = await e.app.insert(noop, 1)
        holder = Holder(e)
        (active,) = holder.hold(*await pick(e, 1))
        assert await holder.table.fetch_cancel_reason(active) == DEFAULT_REASON
        await handle.cancel(reason="enough")
        assert await holder.table.fetch_cancel_reason(active) == "enough"
        holder.table.check_cancel_requests_soon()
        async with asyncio.timeout(10):
            while not holder.begun:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert active.cancel_reason == "enough"
        holder.tasks.cancel_all()


async def test_rows_that_crashed_twice_are_counted_while_they_are_held() -> None:
    """An outcome of one of them lets more run together, and every queue is picked from."""
    holder = Holder()
    once, twice = holder.hold(claim(1, crashes=1), claim(2, crashes=2))
    crashed, queue = holder.table.crashed, holder.slots.queues["default"]
    assert crashed.free_count == 0
    holder.table.remove(once)
    assert not crashed.is_idle
    holder.table.remove(twice)
    assert (crashed.is_idle, crashed.free_count) == (True, 1)
    (other,) = holder.hold(claim(3, crashes=2))
    queue.clear_pick_reasons_and_get_expected()
    holder.table.allow_more_crashed_rows(other)
    assert (crashed.is_idle, crashed.free_count, queue.has_work) == (True, 2, True)


async def test_children_that_a_join_has_not_waited_for_are_cancelled() -> None:
    """Also if there are too many of them to come with the claim."""
    holder = Holder()
    done = Child(8, "noop", 1, "run", Status.DONE, None, b"1", b"1")
    left = Child(9, "noop", 1, "run", Status.RUNNABLE, None, None, b"1")
    holder.hold(
        claim(1, children=()), claim(2, children=(done,)), claim(3, children=(done, left)), claim(4, children=None)
    )
    assert holder.cascades == [3, 4]


async def test_a_stopping_worker_starts_no_claim(caplog: pytest.LogCaptureFixture) -> None:
    """It releases the claims of a pick that was under way; without claims it does not ask the database."""
    holder = Holder()
    holder.table.add_and_start([], 0.0)
    assert not holder.tasks.running
    await holder.table.release([])
    assert caplog.text == ""
    holder.slots.stopping = True
    holder.table.add_and_start([claim(1), claim(2)], 0.0)
    await holder.tasks.wait_until_empty(10)
    assert (holder.begun, len(holder.table)) == ([], 0)
