"""What a picker decides without a database: when it picks, from which queues, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.picker import Claimed

from gen_durable.engine import picker as picker_module
from gen_durable.engine.picker import MAX_UNCOMMITTED, UNCOMMITTED_PAUSE, Picker
from gen_durable.engine.slots import NEVER, Slots
from gen_durable.engine.task_set import TaskSet
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.blocked_rows import BlockedRows
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
from gen_durable.worker_options import Queue, WorkerOptions

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
        self.link = Answering(ConnectionTarget("postgresql://nowhere"))
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
            known_step_keys=["noop/1/run"],
            slots=self.slots,
            claims=around,
            committer=around,
            notifier=around,
            events=events,
        )
        for queue in self.slots.queues.values():
            queue.clear_pick_reasons_and_get_expected()

    def plan(self, *unmet: UnmetDemand, claims: Iterable[Claim] = (), **result: Any) -> None:
        """A pick from both queues was answered."""
        demands, picked = {"a": 2, "b": 3}, PickResult(list(claims), list(unmet), **result)
        self.picker._plan_next_pick_and_notify_if_full(demands, picked)
        self.picker._emit_pick_events(demands, picked)


def claim(number: int, queue: str) -> Claim:
    return Claim(number, "noop", 1, "run", "1", 0, 1, 0, queue, *cast(Any, [0, None, None, None, None]))


def nothing_in(queue: str, next_due: float | None = None, **more: Any) -> UnmetDemand:
    return UnmetDemand(queue, next_due, 0, **more)


async def test_a_wake_up_names_a_reason_and_returns_the_capacity() -> None:
    """A queue that is not served, and any queue of a picker that stops, has none."""
    p = Planning()
    assert p.picker.wake_and_get_capacity("c") == 0
    assert not p.slots.changed.is_set()
    assert p.picker.wake_and_get_capacity("b") == 3
    assert (p.slots.queues["a"].has_work, p.slots.queues["b"].has_work) == (False, True)
    assert p.slots.changed.is_set()
    p.slots.changed.clear()
    p.picker.wake_all()
    assert p.slots.queues["a"].has_work
    assert p.slots.changed.is_set()
    await p.picker.stop()
    assert p.picker.wake_and_get_capacity("b") == 0


async def test_rows_that_only_this_process_knows_are_added_up() -> None:
    """Those of queues that it does not serve are not its business."""
    p = Planning()
    for queue in ("a", "a", "c"):
        p.picker.notify_if_pick_misses(queue, 2)
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
    p.picker._scan_positions._heads["a"] = "[]"
    p.picker._scan_positions._full_scan_at = time.monotonic() + 100
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
    assert p.picker._adapt_prefetch_and_count_demands() == {}
    a.has_work = True
    assert p.picker._adapt_prefetch_and_count_demands() == {"a": 2}
    a.has_work, b.due_at = False, 1000.0
    assert p.picker._adapt_prefetch_and_count_demands() == {"b": 3}
    b.due_at = 1000.1
    assert p.picker._adapt_prefetch_and_count_demands() == {}
    p.picker._picked_at -= 20.0  # the pick was empty: the interval has doubled
    assert p.picker._adapt_prefetch_and_count_demands() == {"a": 2, "b": 3}
    a.running = 2
    assert p.picker._adapt_prefetch_and_count_demands() == {"b": 3}
    p.around.unanswered_in_batches = MAX_UNCOMMITTED
    assert p.picker._adapt_prefetch_and_count_demands() == {"b": 3}
    p.around.unanswered_in_batches += 1
    assert p.picker._adapt_prefetch_and_count_demands() == {}


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
    p.around.unanswered_in_batches = MAX_UNCOMMITTED
    assert p.picker._seconds_to_next_pick() is None
    p.around.unanswered_in_batches += 1
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
        p.picker._notify_of_missed_rows(expected, PickResult(claims, unmet))
    assert p.around.missed == ["a"]


async def test_the_events_of_a_pick() -> None:
    """One of each kind with its queue and count; rows that wait for the same gate in one queue are counted together."""
    p = Planning()
    p.slots.queues["b"].running = 1
    p.plan(
        UnmetDemand("a", None, 4),
        nothing_in("b"),
        claims=[claim(1, "a"), claim(2, "b"), claim(3, "b")],
        blocked=[
            BlockedRows("rate/mail", "a", 5, 12, "noop", 2),
            BlockedRows("slot/disk/x", "a", 6, 13, "noop"),
            BlockedRows("partition/p", "b", 1, 15, "other"),
            BlockedRows("rate/mail", "a", 1, 11, "other"),
            BlockedRows("rate/mail", "b", 1, 14, "noop"),
        ],
        woken_queues=frozenset({"c"}),
    )
    assert p.events == [
        RowsPicked("a", 1, 2, "w"),
        QueueLoadMeasured("a", 0, 0, 2, 0),
        RowsPicked("b", 2, 3, "w"),
        QueueLoadMeasured("b", 1, 0, 3, 0),
        RowsThrottled("mail", 6, 8, 2, "a", 11, "other"),
        RowsBlocked("disk/x", 6, "a", 13, "noop"),
        PartitionContended("b", 1, "p", 15, "other"),
        RowsThrottled("mail", 1, 1, 0, "b", 14, "noop"),
        RowsUnblocked("c"),
    ]


async def test_the_arguments_of_a_pick() -> None:
    """Free slots are sent only if rows are claimed ahead of them; the number of crashed rows always is."""
    p = Planning()
    worker, queues, demands, known, lease, scan_positions, fair, free, crashed, last_chance = (
        p.picker._make_pick_statement({"a": 2, "b": 3}, "{}").args
    )
    assert (worker, queues, demands, known) == ("w", ["a", "b"], [2, 3], ["noop/1/run"])
    assert (lease, scan_positions, fair, free) == (WorkerOptions().lease_ttl.total_seconds(), "{}", None, None)
    assert (crashed, last_chance) == (1, True)
    p.around.crashed.add_claim(claim(1, "a"))
    p.slots.queues["b"].running = 1
    assert p.picker._make_pick_statement({"a": 2, "b": 3}, None).args[7:] == ([2, 2], 0, False)


async def test_a_pick_sends_the_group_that_was_served_last() -> None:
    """Only for fair queues."""
    p = Planning(queues={"a": Queue(2, fair_by="tenant"), "b": 3})
    demands = {"a": 2, "b": 3}
    assert p.picker._make_pick_statement(demands, None).args[6] == '{"a":["tenant",null]}'
    p.link.answer = PickResult([], [nothing_in("a"), nothing_in("b")], last_groups={"a": "tenant/acme"})
    await p.picker._pick_and_start_claims(demands)
    assert p.picker._make_pick_statement(demands, None).args[6] == '{"a":["tenant","tenant/acme"]}'
