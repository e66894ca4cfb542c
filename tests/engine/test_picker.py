"""Picker: when it asks, and when it leaves it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest

from gen_durable import Durable, Start, job
from gen_durable.config import Queue, WorkerOptions
from gen_durable.core.services import services_of
from gen_durable.engine import picker as picker_module
from gen_durable.engine.crashed_rows import CrashedRows
from gen_durable.engine.picker import MAX_UNCOMMITTED, UNCOMMITTED_PAUSE, Picker
from gen_durable.engine.scan_floors import ScanFloors
from gen_durable.engine.slots import NEVER, Slots
from gen_durable.engine.task_set import TaskSet
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.pg.faults import ConnectionLost
from gen_durable.store.schema import Schema
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Claim, PickResult, UnmetDemand
from gen_durable.telemetry import (
    Event,
    Events,
    PartitionContended,
    QueueLoadMeasured,
    RowsBlocked,
    RowsPicked,
    RowsThrottled,
    RowsUnblocked,
)

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


class Claimed:
    """Stands for the claim table, the committer and the notifier: keeps the claims, and has outcomes pending."""

    def __init__(self) -> None:
        self.claims: asyncio.Queue[Claim] = asyncio.Queue()
        self.crashed = CrashedRows(None)
        self.unanswered_count = 0
        self.woken: asyncio.Queue[str] = asyncio.Queue()
        self.full: list[str] = []
        self.missed: list[str] = []
        self.postponed: list[tuple[int, str]] = []
        self.leased_at = 0.0

    def add(self, claims: list[Claim], leased_at: float) -> None:
        self.leased_at = leased_at
        for claim in claims:
            self.claims.put_nowait(claim)

    def wake_queues(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.woken.put_nowait(queue)

    def notify_full_pick(self, queue: str) -> None:
        self.full.append(queue)

    def notify_rows_not_found(self, queue: str) -> None:
        self.missed.append(queue)

    def register(self, claim: Claim, leased_at: float) -> Claim:
        self.leased_at = leased_at
        return claim

    def postpone(self, claim: Claim, reason: str) -> None:
        self.postponed.append((claim.id, reason))


@asynccontextmanager
async def picking(app: Durable, pending: int = 0) -> AsyncIterator[tuple[Picker, Slow, Claimed]]:
    link = Slow(services_of(app).target)
    link.meanwhile, link.errors, link.statements = None, [], 0
    claimed = Claimed()
    claimed.unanswered_count = pending
    options = WorkerOptions(poll_interval=LAZY, max_poll_interval=LAZY)
    around = cast(Any, claimed)
    pick = Picker(
        link,
        services_of(app).statements,
        options,
        worker="w",
        known_steps=["noop/1/run"],
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
            pick._slots.schedule_pick("default", 0.3)

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
        claimed.unanswered_count = 0
        assert (await asyncio.wait_for(waiting, 5)).machine == "noop"


async def test_the_queue_of_a_row_that_a_pick_unblocks_is_woken(dsn: str, schema: str) -> None:
    """A row found in one queue is not the first of its key: the first is blocked in another queue, and is due now."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, _, claimed):
        first = await app.insert(noop, 1, queue="other", partition_key="k")
        await app.insert(noop, 2, partition_key="k")
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(
                f"update \"{schema}\".instances set blocked_on = case when id = {first.id} then 'partition/k' end"
            )
        finally:
            await connection.close()
        pick.start()
        assert await asyncio.wait_for(claimed.woken.get(), 5) == "other"
        assert claimed.claims.empty()


QUEUES = {"a": 2, "b": 3}


class Answering(PersistentConnection):
    """A connection that answers each pick with the result that the test gives it."""

    __slots__ = ("answer",)
    answer: PickResult

    async def run(self, call: Any, *, timeout: float | None = None) -> Any:
        return self.answer


class Planning:
    """A picker without a database, the objects around it, and the events it emits."""

    def __init__(
        self, poll: float = 10.0, longest_poll: float = 60.0, queues: Mapping[str, int | Queue] = QUEUES
    ) -> None:
        self.around = Claimed()
        around = cast(Any, self.around)
        self.link = Answering(Target("postgresql://nowhere"))
        self.events: list[Event] = []
        events = Events()
        events.subscribe(self.events.append)
        given = WorkerOptions(
            queues=queues,
            poll_interval=timedelta(seconds=poll),
            max_poll_interval=timedelta(seconds=longest_poll),
        )
        self.slots = Slots(given.concurrency_by_queue, 0, tasks=TaskSet(), notifier=around)
        self.picker = Picker(
            self.link,
            StatementBuilder(Schema()),
            given,
            worker="w",
            known_steps=["noop/1/run"],
            slots=self.slots,
            claims=around,
            committer=around,
            notifier=around,
            events=events,
        )
        for queue in self.slots.queues.values():
            queue.reset_for_pick()

    def plan(self, *unmet: UnmetDemand, claims: Iterable[Claim] = (), **result: Any) -> None:
        """A pick from both queues was answered."""
        self.picker._plan_next_pick({"a": 2, "b": 3}, PickResult(list(claims), list(unmet), **result))


def claim(number: int, queue: str) -> Claim:
    return Claim(number, "noop", 1, "run", "1", 0, 1, 0, queue, *cast(Any, [0, None, None, None, None]))


def nothing_in(queue: str, next_due: float | None = None, **more: Any) -> UnmetDemand:
    return UnmetDemand(queue, next_due, 0, **more)


async def test_a_wake_up_names_a_reason_and_returns_the_capacity() -> None:
    """A queue that is not served, and any queue of a picker that stops, has none."""
    p = Planning()
    assert p.picker.wake("c") == 0
    assert not p.slots.changed.is_set()
    assert p.picker.wake("b") == 3
    assert (p.slots.queues["a"].has_work, p.slots.queues["b"].has_work) == (False, True)
    assert p.slots.changed.is_set()
    p.slots.changed.clear()
    p.picker.wake_all()
    assert p.slots.queues["a"].has_work
    assert p.slots.changed.is_set()
    await p.picker.stop()
    assert p.picker.wake("b") == 0


async def test_rows_that_only_this_process_knows_are_added_up() -> None:
    """Those of queues that it does not serve are not its business."""
    p = Planning()
    for queue in ("a", "a", "c"):
        p.picker.expect_pick_to_find(queue, 2)
    assert (p.slots.queues["a"].expected, p.slots.queues["b"].expected) == (4, 0)


async def test_a_pick_that_is_met_is_followed_by_another() -> None:
    """There may be more rows, here and for other processes; a queue with fewer rows than asked for waits."""
    p = Planning()
    p.plan(nothing_in("b"), claims=[claim(1, "a"), claim(2, "a")])
    assert (p.slots.queues["a"].has_work, p.slots.queues["b"].has_work) == (True, False)
    assert p.around.full == ["a"]
    assert (p.slots.queues["a"].due_at, p.slots.queues["b"].due_at) == (NEVER, NEVER)


async def test_the_next_pick_is_planned_for_the_nearest_moment() -> None:
    """The next due row, or the next full scan; one that was planned before and is nearer stays."""
    p = Planning()
    a, b = p.slots.queues["a"], p.slots.queues["b"]
    before = time.monotonic()
    p.plan(nothing_in("a", 0.5), nothing_in("b", -3.0, needs_slot=True))
    after = time.monotonic()
    assert before + 0.5 <= a.due_at <= after + 0.5
    assert before <= b.due_at <= after
    assert (a.needs_slot, b.needs_slot) == (False, True)
    planned = a.due_at
    p.plan(nothing_in("a", 3600.0), nothing_in("b"))
    assert a.due_at == planned
    assert not b.needs_slot
    a.due_at = NEVER
    p.picker._floors._heads["a"] = "[]"
    p.picker._floors._full_scan_at = time.monotonic() + 100
    p.plan(nothing_in("a", 3600.0), nothing_in("b"))
    assert a.due_at <= time.monotonic() + 100
    a.due_at = NEVER
    p.plan(nothing_in("a"), nothing_in("b"))
    assert a.due_at <= time.monotonic() + 100


async def test_the_poll_interval_doubles_until_a_pick_finds_rows() -> None:
    """Up to its maximum."""
    p = Planning(poll=10.0, longest_poll=35.0)
    found = []
    for claims in ([], [], [], [claim(1, "a")], []):
        p.plan(nothing_in("a"), nothing_in("b"), claims=claims)
        found.append(p.picker._poll_seconds)
    assert found == [20.0, 35.0, 35.0, 10.0, 20.0]


async def test_a_queue_is_asked_when_it_has_capacity_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up, a due row, or a poll that is due."""
    monkeypatch.setattr(picker_module, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    p = Planning(poll=10.0)
    p.plan(nothing_in("a"), nothing_in("b"))
    a, b = p.slots.queues["a"], p.slots.queues["b"]
    assert p.picker._count_demands() == {}
    a.has_work = True
    assert p.picker._count_demands() == {"a": 2}
    a.has_work, b.due_at = False, 1000.0
    assert p.picker._count_demands() == {"b": 3}
    b.due_at = 1000.1
    assert p.picker._count_demands() == {}
    p.picker._picked_at -= 20.0  # the pick was empty: the interval has doubled
    assert p.picker._count_demands() == {"a": 2, "b": 3}
    a.running = 2
    assert p.picker._count_demands() == {"b": 3}
    p.around.unanswered_count = MAX_UNCOMMITTED
    assert p.picker._count_demands() == {"b": 3}
    p.around.unanswered_count += 1
    assert p.picker._count_demands() == {}


async def test_the_wait_for_the_next_pick() -> None:
    """Until the poll or the first due row of a queue with capacity, without end if none has, and never negative."""
    p = Planning(poll=10.0)
    a, b = p.slots.queues["a"], p.slots.queues["b"]
    p.plan(nothing_in("a"), nothing_in("b", 5.0))

    def wait() -> float:
        seconds = p.picker._seconds_to_next_pick()
        assert seconds is not None
        return seconds

    assert 0 < wait() <= 5.0
    a.due_at, b.due_at = time.monotonic() + 3.0, NEVER
    assert 0 < wait() <= 3.0
    a.due_at = NEVER
    assert 10.0 < wait() <= 20.0  # the pick was empty: the interval has doubled
    b.due_at = time.monotonic() - 1.0
    assert wait() == 0.0
    b.running = 3
    assert 10.0 < wait() <= 20.0
    a.running = 2
    assert p.picker._seconds_to_next_pick() is None
    p.around.unanswered_count = MAX_UNCOMMITTED
    assert p.picker._seconds_to_next_pick() is None
    p.around.unanswered_count += 1
    assert wait() == UNCOMMITTED_PAUSE


async def test_rows_that_a_pick_was_woken_for_and_did_not_find_are_reported() -> None:
    """Not those that came, nor those of a pick that nothing announced."""
    p = Planning()
    unmet = [nothing_in("a"), nothing_in("b")]
    for expected, claims in [
        ({"a": 2, "b": 0}, [claim(1, "a"), claim(2, "a")]),
        ({"a": 0, "b": 0}, []),
        ({"a": 2, "b": 3}, [claim(1, "a"), claim(2, "b"), claim(3, "b"), claim(4, "b")]),
    ]:
        p.picker._report_missed_rows(expected, PickResult(claims, unmet))
    assert p.around.missed == ["a"]


async def test_the_events_of_a_pick() -> None:
    """One of each kind with its queue and count."""
    p = Planning()
    p.slots.queues["b"].running = 1
    p.plan(
        UnmetDemand("a", None, 4),
        nothing_in("b"),
        claims=[claim(1, "a"), claim(2, "b"), claim(3, "b")],
        blocked={"rate/mail": 5, "slot/disk/x": 6},
        woken_queues=frozenset({"c"}),
    )
    assert p.events == [
        RowsPicked("a", 1, 2, "w"),
        QueueLoadMeasured("a", 0, 0, 2, 0),
        RowsPicked("b", 2, 3, "w"),
        QueueLoadMeasured("b", 1, 0, 3, 0),
        PartitionContended("a", 4),
        RowsThrottled("mail", 5),
        RowsBlocked("disk/x", 6),
        RowsUnblocked("c"),
    ]


async def test_the_arguments_of_a_pick() -> None:
    """Free slots are sent only if rows are claimed ahead of them; the number of crashed rows always is."""
    p = Planning()
    worker, queues, demands, known, lease, floors, fair, free, crashed, last_chance = p.picker._pick_statement(
        {"a": 2, "b": 3}, "{}"
    ).args
    assert (worker, queues, demands, known) == ("w", ["a", "b"], [2, 3], ["noop/1/run"])
    assert (lease, floors, fair, free) == (WorkerOptions().lease_ttl.total_seconds(), "{}", None, None)
    assert (crashed, last_chance) == (1, True)
    p.around.crashed.add(claim(1, "a"))
    p.slots.queues["b"].running = 1
    assert p.picker._pick_statement({"a": 2, "b": 3}, None).args[7:] == ([2, 2], 0, False)


async def test_a_pick_sends_the_group_that_was_served_last() -> None:
    """Only for fair queues."""
    p = Planning(queues={"a": Queue(2, fair_by="tenant"), "b": 3})
    demands = {"a": 2, "b": 3}
    assert p.picker._pick_statement(demands, None).args[6] == '{"a":["tenant",null]}'
    p.link.answer = PickResult([], [nothing_in("a"), nothing_in("b")], last_groups={"a": "tenant/acme"})
    await p.picker._claim_rows(demands)
    assert p.picker._pick_statement(demands, None).args[6] == '{"a":["tenant","tenant/acme"]}'


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
        pick.wake("default")
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


def data_error() -> Exception:
    return asyncpg.NumericValueOutOfRangeError("too large")


async def test_a_head_that_cannot_be_read_is_postponed(dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is claimed without its payloads; the reason names what to look at. The rows after it are claimed singly."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        handles = await app.insert_many([Start(noop, n) for n in range(2)])
        before = time.monotonic()
        link.errors = [data_error(), data_error()]
        last = await pick._pick_and_report_missed({"default": 10}, {"default": 0})
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
        last = await pick._pick_and_report_missed({"default": 10}, {"default": 0})
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
            await pick._pick_and_report_missed({"default": 10}, {"default": 0})
        assert claimed.claims.empty()


async def test_a_stop_ends_a_search_row_by_row(dsn: str, schema: str) -> None:
    """No further row is claimed."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        await app.insert_many([Start(noop, n) for n in range(3)])
        link.errors = [data_error()]
        pick._stopping = True
        await pick._pick_and_report_missed({"default": 10}, {"default": 0})
        assert claimed.claims.qsize() == 1


async def test_a_row_that_a_postponed_head_unblocks_is_woken(dsn: str, schema: str) -> None:
    """As by any other pick."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        first = await app.insert(noop, 1, queue="other", partition_key="k")
        await app.insert(noop, 2, partition_key="k")
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(
                f"update \"{schema}\".instances set blocked_on = case when id = {first.id} then 'partition/k' end"
            )
        finally:
            await connection.close()
        link.errors = [data_error(), data_error()]
        await pick._pick_and_report_missed({"default": 10}, {"default": 0})
        assert claimed.woken.get_nowait() == "other"


async def test_the_floors_of_a_slow_pick_are_sent_with_the_next(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are kept with the duration of the statement."""
    updates: list[tuple[PickResult, str | None, float]] = []
    monkeypatch.setattr(ScanFloors, "update", lambda _, *arguments: updates.append(arguments))
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, _):
        monkeypatch.setattr(ScanFloors, "pick_argument", lambda *_: "{}")

        async def wait() -> None:
            await asyncio.sleep(0.02)

        link.meanwhile = wait
        picked = await pick._claim_rows({"default": 1})
        ((result, sent, seconds),) = updates
        assert result is picked
        assert sent == "{}"
        assert 0.02 <= seconds < 30
