"""What each outcome does to its row, column by column, and to all that hangs on it."""

from __future__ import annotations

import json

import pytest
from tests.support.machine import child, fan_out, park
from tests.support.rows import LIVE, executing, instance, parent, seconds, signal
from tests.support.store import Store

from gen_durable.store.types import Commit

WORN = executing(
    1,
    claims=5,
    seq=4,
    attempt=3,
    step_errors=2,
    crashes=2,
    awaits=["go"],
    joined=True,
    round=2,
    state='{"n": 0}',
    last_error="old",
    unique_key=b"k",
    unique_scope=LIVE,
    eligible_at=seconds(-9),
)
FREE = {"locked_by": None, "lease_expires_at": None}
LIVING = {"finished_at": None, "result": None, "unique_guard": b"k"}


def worn(kind: str, **more: object) -> Commit:
    return Commit(1, 5, 4, kind, **more)  # type: ignore[arg-type]


OUTCOMES = {
    "continue": (
        worn("continue", step="t", value='{"n": 1}'),
        {"status": "executing", "step": "t", "state": '{"n": 1}', "attempt": 0, "awaits": None, "joined": False}
        | {"last_error": None, "locked_by": "w", "round": 2, "step_errors": 0}
        | LIVING,
    ),
    "next": (
        worn("next", step="t", value='{"n": 1}'),
        {"status": "runnable", "step": "t", "state": '{"n": 1}', "attempt": 0, "awaits": None, "joined": False}
        | {"last_error": None, "round": 2, "step_errors": 0}
        | FREE
        | LIVING,
    ),
    "next with options": (
        worn("next", extra='{"queue": "q", "priority": -3, "partition_key": "p"}'),
        {"status": "runnable", "step": "s", "state": '{"n": 0}', "queue": "q", "priority": -3, "partition_key": "p"}
        | FREE
        | LIVING,
    ),
    "retry": (
        worn("retry", error="why"),
        {"status": "runnable", "step": "s", "state": '{"n": 0}', "attempt": 4, "awaits": ["go"], "joined": True}
        | {"last_error": "why", "step_errors": 3}
        | FREE
        | LIVING,
    ),
    "replay without a reason": (
        worn("retry", value='{"n": 1}'),
        {"status": "runnable", "state": '{"n": 1}', "attempt": 4, "last_error": "old", "step_errors": 2}
        | FREE
        | LIVING,
    ),
    "await": (
        worn("await", step="t", delay=None, extra='{"awaits": ["a", "b"], "seen": [3]}'),
        {"status": "awaiting_signal", "step": "t", "attempt": 0, "awaits": ["a", "b"], "seen": [3], "joined": False}
        | {"await_deadline": None, "last_error": None, "due_at": None}
        | FREE
        | LIVING,
    ),
    "await at the same step": (
        worn("await", delay=None, extra='{"awaits": ["a"], "seen": []}'),
        {"status": "awaiting_signal", "step": "s", "awaits": ["a"], "seen": [], "joined": True, "step_errors": 2}
        | FREE
        | LIVING,
    ),
    "children": (
        worn("children", step="t", extra=json.dumps({"children": [child(), child()]})),
        {"status": "awaiting_children", "step": "t", "children_pending": 2, "round": 3, "joined": False}
        | {"awaits": None, "attempt": 0, "step_errors": 0}
        | FREE
        | LIVING,
    ),
    "children, none": (
        worn("children", step="t", extra='{"children": []}'),
        {"status": "runnable", "step": "t", "children_pending": 0, "round": 3, "joined": True} | FREE | LIVING,
    ),
    "done": (
        worn("done", value='{"ok": true}'),
        {"status": "done", "step": "s", "state": '{"n": 0}', "result": '{"ok": true}', "attempt": 3, "awaits": None}
        | {"last_error": None, "unique_guard": None, "unique_scope": [], "unique_key": b"k", "joined": False}
        | FREE,
    ),
    "fail": (
        worn("fail", error="no"),
        {"status": "failed", "step": "s", "state": '{"n": 0}', "result": None, "attempt": 3, "awaits": ["go"]}
        | {"last_error": "no", "unique_guard": None, "unique_scope": [], "step_errors": 2}
        | FREE,
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome_sets_its_columns(store: Store, name: str) -> None:
    """Each kind of outcome leaves the row exactly as the table of outcomes says."""
    commit, expected = OUTCOMES[name]
    store.given(WORN)
    answer = store.flush(commit)
    row = store.row(1)
    assert {column: row[column] for column in expected} == expected
    assert (row["claims"], row["seq"], row["crashes"]) == (5, 5, 0)
    assert (answer.stale_ids, answer.already_committed_ids) == (set(), set())
    assert (row["finished_at"] is not None) == (row["status"] in ("done", "failed"))


@pytest.mark.parametrize(
    ("kind", "woken"),
    [("continue", set()), ("next", {"default"}), ("retry", {"default"}), ("done", set()), ("fail", set())],
)
def test_flush_tells_which_queues_have_work(store: Store, kind: str, woken: set[str]) -> None:
    """Only an outcome that makes a row runnable now names its queue."""
    store.given(executing(1))
    assert store.flush(Commit(1, 1, 0, kind)).follow_ups.queues == woken


@pytest.mark.parametrize("kind", ["next", "retry"])
def test_delay_sets_when_it_is_eligible(store: Store, kind: str) -> None:
    """A delay counts from now, and a delayed row wakes nobody."""
    store.given(executing(1, eligible_at=seconds(-500)))
    assert store.flush(Commit(1, 1, 0, kind, delay=30)).follow_ups.queues == set()
    assert store.row(1)["eligible_in"] == pytest.approx(30, abs=5)
    assert store.pick().claims == []


def test_a_held_row_keeps_its_lease_and_its_place(store: Store) -> None:
    """Holding changes neither the lease nor the moment it became eligible: no indexed column moves on a chain."""
    store.given(executing(1, eligible_at=seconds(-500)))
    before = store.row(1)
    store.flush(Commit(1, 1, 0, "continue", step="t"))
    after = store.row(1)
    for column in ("lease_expires_at", "eligible_at", "due_at", "locked_by", "claims"):
        assert after[column] == before[column]


def test_a_chain_is_hot(store: Store) -> None:
    """Updates of a held chain stay on their page: none of them touches an index."""
    store.given("truncate @schema.instances cascade;" + executing(1))  # the rows of earlier tests take space
    store.given("begin")  # the counters of a transaction are exact, those of the server come late
    before = _count_updates(store)
    for seq in range(20):
        store.flush(Commit(1, 1, seq, "continue", value=f'{{"n": {seq}}}'))
    updated, hot = _count_updates(store)
    store.given("commit")
    assert (updated - before[0], hot - before[1]) == (20, 20)


def _count_updates(store: Store) -> tuple[int, int]:
    """All updates of instances, and those that were HOT, which this session has not reported to the server yet."""
    (counts,) = store.sql(
        "select pg_stat_get_xact_tuples_updated(r) as updated, pg_stat_get_xact_tuples_hot_updated(r) as hot"
        " from (select '@schema.instances'::regclass::oid) as x (r)"
    )
    return counts["updated"], counts["hot"]


def test_await_with_a_timeout_is_due_at_its_deadline(store: Store) -> None:
    """A parked row with a timeout is claimed when its deadline has passed, with its names and without a signal."""
    store.given(executing(1))
    store.flush(park(1, "go", timeout=60))
    assert store.row(1)["deadline_in"] == pytest.approx(60, abs=5)
    assert store.pick().claims == []
    store.sql("update @schema.instances set await_deadline = now() - interval '1 second'")
    (claim,) = store.pick().claims
    assert (claim.awaits, claim.inbox, claim.step, claim.epoch) == (["go"], (), "t", 2)
    row = store.row(1)
    assert (claim.timed_out, row["timed_out_claim"], row["seen"]) == (True, 2, None)
    assert row["await_deadline"] is not None, "kept with awaits"


def test_await_does_not_sleep_on_a_signal_that_is_there(store: Store) -> None:
    """Parking with a matching signal in the inbox makes the row runnable at once and names its queue."""
    store.given(executing(1) + signal(7, 1))
    assert store.flush(park(1, "go")).follow_ups.queues == {"default"}
    (claim,) = store.pick().claims
    assert [received.id for received in claim.inbox] == [7]


def test_await_ignores_what_it_was_shown(store: Store) -> None:
    """A signal that the parking step was shown does not wake it; one it was not shown does, whatever the ids."""
    store.given(executing(1) + signal(7, 1) + signal(8, 1) + executing(2) + signal(9, 2) + signal(10, 2))
    store.flush(park(1, "go", seen=(7, 8)), park(2, "go", seen=(10,)))
    assert [store.row(i)["status"] for i in (1, 2)] == ["awaiting_signal", "runnable"]


def test_only_shown_signals_are_consumed(store: Store) -> None:
    """An outcome deletes the signals it names, of its own instance; one that came later, or is another's, stays."""
    store.given(executing(1) + signal(7, 1) + signal(8, 1) + executing(2) + signal(9, 2))
    store.flush(Commit(1, 1, 0, "next", extra='{"consumed": [7, 9]}'))
    assert [s["id"] for s in store.inbox()] == [8, 9]


def test_a_consumed_signal_with_a_dedup_key_leaves_a_tombstone(store: Store) -> None:
    """It is emptied and no longer shown, but a second delivery is still known as one."""
    store.given(executing(1) + signal(7, 1, dedup_key="d", payload='{"big": 1}'))
    store.flush(Commit(1, 1, 0, "next", extra='{"consumed": [7]}'))
    (left,) = store.inbox()
    assert (left["consumed"], left["payload"], left["dedup_key"]) == (True, None, "d")
    (claim,) = store.pick().claims
    assert claim.inbox == ()


@pytest.mark.parametrize("kind", ["done", "fail", "cancel"])
def test_an_end_keeps_the_inbox_until_retention(store: Store, kind: str) -> None:
    """Only what it consumes goes with a terminal outcome; the rest goes with the row."""
    store.given(executing(1) + signal(7, 1) + signal(8, 1, dedup_key="d", consumed=True) + signal(9, 1))
    store.flush(Commit(1, 1, 0, kind, error=None if kind == "done" else "no", extra='{"consumed": [7]}'))
    assert [s["id"] for s in store.inbox()] == [8, 9]
    store.sql("delete from @schema.instances where id = 1")
    assert store.inbox() == []


@pytest.mark.parametrize(
    ("kind", "timed_out"),
    [("retry", True), ("fail", True), ("cancel", True), ("next", False), ("continue", False), ("done", False)],
)
def test_only_outcomes_that_keep_the_awaits_keep_timed_out(store: Store, kind: str, timed_out: bool) -> None:
    """A retry, by the step or by an operator, runs the step as it was woken."""
    store.given(executing(1, awaits=["go"], timed_out_claim=1, await_deadline=seconds(-1)))
    store.flush(Commit(1, 1, 0, kind, step="t", error="no" if kind in ("fail", "cancel") else None))
    row = store.row(1)
    assert (row["timed_out_claim"] is not None, row["awaits"], row["await_deadline"] is not None) == (
        timed_out,
        ["go"] if timed_out else None,
        timed_out,
    )


def test_children_are_made_as_they_were_described(store: Store) -> None:
    """Children carry their own queue, priority, key and time, their parent and its round, in the order listed."""
    store.given(executing(1, round=4))
    first = child("b", queue="q", priority=-2, partition_key="p", state={"n": 1})
    answer = store.flush(fan_out(1, first, child("a", delay=60), child(schedule_at="2100-01-01T00:00:00Z")))
    assert answer.follow_ups.queues == {"q", "default"}
    one, two, three = store.rows()[1:]
    assert (one["queue"], one["priority"], one["partition_key"], one["state"]) == ("q", -2, "p", '{"n": 1}')
    assert (one["unique_guard"], one["parent_id"], one["parent_round"], one["status"]) == (b"b", 1, 5, "runnable")
    assert store.row(two["id"])["eligible_in"] == pytest.approx(60, abs=5)
    assert three["eligible_at"].year == 2100
    assert store.row(1)["children_pending"] == 3


def test_a_child_whose_key_is_taken_is_not_waited_for(store: Store) -> None:
    """Taken keys, by others or within the batch, make no child; the parent waits for those that were made."""
    store.given(executing(1) + instance(2, unique_key=b"taken", unique_scope=LIVE))
    store.flush(fan_out(1, child("taken"), child("twice"), child("twice"), child()))
    assert store.row(1)["children_pending"] == 2
    assert len(store.rows()) == 4


def test_a_parent_of_none_goes_on(store: Store) -> None:
    """All children duplicates: the parent is runnable at once, joined, with no children to read."""
    store.given(executing(1) + instance(2, unique_key=b"k", unique_scope=LIVE, queue="other"))
    assert store.flush(fan_out(1, child("k"))).follow_ups.queues == {"default"}
    (claim,) = store.pick().claims
    assert (claim.id, claim.step, claim.children) == (1, "t", ())


def test_the_last_child_releases_its_parent(store: Store) -> None:
    """Each end counts once, failed ones too; the last wakes the parent, which is shown its children in order."""
    store.given(executing(1))
    store.flush(fan_out(1, child(), child(state={"n": 2}), child()))
    one, two, three = (claim.id for claim in store.pick().claims)
    assert store.flush(Commit(one, 1, 0, "done", value="1", parent=1)).follow_ups.queues == set()
    assert store.row(1)["children_pending"] == 2
    last = [Commit(two, 1, 0, "fail", error="no", parent=1), Commit(three, 1, 0, "done", value="3", parent=1)]
    assert store.flush(*last).follow_ups.queues == {"default"}
    (claim,) = store.pick().claims
    assert [(c.id, c.status, c.last_error, c.result) for c in claim.children] == [
        (one, "done", None, 1),
        (two, "failed", "no", None),
        (three, "done", None, 3),
    ]


def test_a_parent_reads_the_children_of_its_last_round(store: Store) -> None:
    """A second round shows its own children only, and is not released by a late one of the first."""
    store.given(parent(1, pending=1, round=2) + executing(2, parent_id=1, parent_round=1))
    store.given(executing(3, parent_id=1, parent_round=2))
    store.flush(Commit(2, 1, 0, "done", parent=1))
    assert (store.row(1)["status"], store.row(1)["children_pending"]) == ("awaiting_children", 1)
    store.flush(Commit(3, 1, 0, "done", parent=1))
    (claim,) = store.pick().claims
    assert [c.id for c in claim.children] == [3]


def test_a_batch_of_every_kind(store: Store) -> None:
    """Outcomes of all kinds go in one call and do not mix."""
    store.given("".join(executing(i) for i in range(1, 9)))
    answer = store.flush(
        Commit(1, 1, 0, "continue"),
        Commit(2, 1, 0, "next"),
        Commit(3, 1, 0, "retry"),
        park(4, "go"),
        fan_out(5, child()),
        Commit(6, 1, 0, "done"),
        Commit(7, 1, 0, "fail", error="no"),
        Commit(8, 9, 0, "done"),
    )
    statuses = [store.row(i)["status"] for i in range(1, 9)]
    assert statuses == [
        *("executing", "runnable", "runnable", "awaiting_signal", "awaiting_children", "done", "failed", "executing")
    ]
    assert (answer.stale_ids, answer.already_committed_ids) == ({8}, set())
