"""Delete and retry: of instances that have ended, and of no others. The doctor looks at what each test leaves."""

from __future__ import annotations

import json

import pytest
from tests.support.rows import LIVE, ended, executing, instance, parent, parked, seconds, signal
from tests.support.store import Store

from gen_durable.instances import Status
from gen_durable.store.instance_admin import DeleteResult, RetryResult
from gen_durable.store.types import Commit, OutgoingSignal

ENDS = ["done", "failed", "cancelled"]


@pytest.mark.parametrize("status", ENDS)
def test_remove(store: Store, status: str) -> None:
    """An ended instance goes, with its signals."""
    store.given(ended(1, status=status) + signal(7, 1) + ended(2))
    assert store.run(store.reads.delete_instance(1, None)) == DeleteResult(1, Status(status), deleted=True, parent=None)
    assert [row["id"] for row in store.rows()] == [2]
    assert store.inbox() == []
    assert store.run(store.reads.delete_instance(1, None)) is None


def test_remove_refuses(store: Store) -> None:
    """What is live stays, and what a live parent may still read."""
    store.given(
        instance(1) + executing(2) + parked(3) + parent(4, 1) + ended(5, parent_id=4, parent_round=1)
        + instance(6, parent_id=4, parent_round=1)
    )  # fmt: skip
    for id_ in (1, 2, 3, 4):
        refused = store.run(store.reads.delete_instance(id_, None))
        assert refused is not None
        assert not refused.deleted
    assert store.run(store.reads.delete_instance(5, None)) == DeleteResult(5, Status.DONE, deleted=False, parent=4)
    assert len(store.rows()) == 6


def test_remove_by_key(store: Store) -> None:
    """A key that is held beyond the end names an ended instance."""
    store.given(ended(1, unique_key=b"k", unique_scope="{runnable,done}"))
    assert store.run(store.reads.delete_instance(None, b"k")) == DeleteResult(1, Status.DONE, deleted=True, parent=None)
    assert store.run(store.reads.delete_instance(None, b"k")) is None


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_retry(store: Store, status: str) -> None:
    """It runs again at the step it ended in; its error stays until it progresses; an old claim is stale."""
    store.given(
        ended(
            1,
            status=status,
            attempt=3,
            step_errors=2,
            crashes=2,
            postponements=4,
            claims=5,
            seq=4,
            last_error="no",
            state="[1]",
            queue="q",
        )
    )
    assert store.run(store.reads.retry(1, None)) == RetryResult(1, Status(status), "q")
    row = store.row(1)
    assert (row["status"], row["step"], row["attempt"], row["crashes"], row["claims"], row["seq"]) == (
        "runnable", "s", 0, 0, 6, 4,
    )  # fmt: skip
    assert (row["step_errors"], row["postponements"]) == (0, 0)
    assert (row["finished_at"], row["last_error"], row["state"]) == (None, "no", "[1]")
    assert store.flush(Commit(1, 5, 4, "done")).stale_ids == {1}
    (claim,) = store.pick(q=1).claims
    assert (claim.id, claim.epoch, claim.attempt) == (1, 7, 0)
    store.flush(Commit(1, 7, 4, "done", value="2"))
    assert (store.row(1)["status"], store.row(1)["last_error"]) == ("done", None)


def test_retry_refuses(store: Store) -> None:
    """Done ones and live ones stay as they are."""
    store.given(
        instance(1) + executing(2) + parked(3) + parent(4, 1) + ended(5) + instance(6, parent_id=4, parent_round=1)
    )
    before = [dict(row) for row in store.rows()]
    for row in before:
        assert store.run(store.reads.retry(row["id"], None)) == RetryResult(row["id"], Status(row["status"]), None)
    assert [dict(row) for row in store.rows()] == before
    assert store.run(store.reads.retry(99, None)) is None


def test_retry_takes_no_key_again(store: Store) -> None:
    """A freed key stays with whoever has it now; one that failed instances hold was never let go."""
    store.given(
        ended(1, status="failed", unique_key=b"k") + instance(2, unique_key=b"k", unique_scope=LIVE)
        + ended(3, status="failed", unique_key=b"j", unique_scope="{runnable,failed}")
    )  # fmt: skip
    store.run(store.reads.retry(1, None))
    assert store.row(1)["unique_guard"] is None
    assert store.run(store.reads.retry(None, b"j")) == RetryResult(3, Status.FAILED, "default")
    assert store.row(3)["unique_guard"] == b"j"


def test_a_parent_that_waits_waits_for_it_again(store: Store) -> None:
    """The count goes up with the retry and down with the second end: the barrier opens when all have ended."""
    store.given(
        parent(1, 1) + executing(2, parent_id=1, parent_round=1)
        + ended(3, status="failed", parent_id=1, parent_round=1)
    )  # fmt: skip
    store.run(store.reads.retry(3, None))
    assert store.row(1)["children_pending"] == 2
    store.flush(Commit(2, 1, 0, "done", parent=1))
    assert (store.row(1)["status"], store.row(1)["children_pending"]) == ("awaiting_children", 1)
    (claim,) = store.pick().claims
    store.flush(Commit(3, claim.epoch, claim.seq, "done", parent=1))
    assert (store.row(1)["status"], store.row(1)["children_pending"]) == ("runnable", 0)


def test_a_parent_that_went_on_does_not_hear_of_it(store: Store) -> None:
    """A child of a former round, or of a parent that runs or has ended, ends again without a trace there."""
    store.given(
        parent(1, 1, round=2) + executing(2, parent_id=1, parent_round=2)
        + ended(3, status="failed", parent_id=1, parent_round=1)
        + ended(4, round=1) + ended(5, status="failed", parent_id=4, parent_round=1)
    )  # fmt: skip
    for id_ in (3, 5):
        store.run(store.reads.retry(id_, None))
    for claim in store.pick().claims:
        store.flush(Commit(claim.id, claim.epoch, claim.seq, "done", parent=claim.parent_id))
    assert (store.row(1)["status"], store.row(1)["children_pending"]) == ("awaiting_children", 1)
    assert store.row(4)["status"] == "done"


def test_a_join_that_failed_sees_its_children_again(store: Store) -> None:
    """The children of the last round come along with the retried step."""
    store.given(ended(1, status="failed", round=1) + ended(2, parent_id=1, parent_round=1, result="7"))
    store.run(store.reads.retry(1, None))
    (claim,) = store.pick().claims
    assert claim.children is not None
    assert [one.id for one in claim.children] == [2]


def test_retry_of_one_that_was_cancelled_while_it_ran(store: Store) -> None:
    """Nothing of the cancel is left: its outcomes count again."""
    store.given(ended(1, status="cancelled", cancel_reason="enough", last_error="enough", seq=0))
    store.run(store.reads.retry(1, None))
    (claim,) = store.pick().claims
    assert store.flush(Commit(1, claim.epoch, claim.seq, "next", step="t")).stale_ids == set()
    assert store.row(1)["status"] == "runnable"


def test_a_retried_parent_is_not_followed_into_its_next_round(store: Store) -> None:
    """Its children are still being cancelled when it goes on: the old ones end, the new one is none of them."""
    family = {"parent_id": 1, "parent_round": 1}
    store.given(parent(1, pending=2) + parked(2, **family) + parked(3, **family))
    store.run(store.calls.cancel([(1, None)], "why", cascade=True))
    assert store.run(store.calls.cancel_listed_descendants(1, None)).more
    store.run(store.reads.retry(1, None))
    (claim,) = store.pick().claims
    child = {"fsm": "m", "version": 1, "step": "s", "state": {}, "queue": "default", "priority": 0, "delay": 0}
    store.flush(Commit(1, claim.epoch, claim.seq, "children", step="t", extra=json.dumps({"children": [child]})))
    while store.run(store.calls.cancel_listed_descendants(1, None)).more:
        pass
    assert [(row["id"], row["status"]) for row in store.rows()] == [
        (1, "awaiting_children"), (2, "cancelled"), (3, "cancelled"), (101, "runnable"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("inbox", "status"),
    [
        ("", "awaiting_signal"),
        (signal(7, 1, name="other"), "awaiting_signal"),
        (signal(7, 1, consumed=True, dedup_key="d"), "awaiting_signal"),
        (signal(8, 1), "awaiting_signal"),
        (signal(9, 1), "runnable"),
    ],
    ids=["nothing", "another name", "consumed", "seen", "come"],
)
def test_a_retry_of_a_cancelled_wait_waits_again(store: Store, inbox: str, status: str) -> None:
    """Otherwise its step would run without its signal, as if its timeout had passed."""
    store.given(parked(1, seen=[8], await_deadline=seconds(60)) + inbox)
    store.run(store.calls.cancel([(1, None)], "why", cascade=True))
    assert store.run(store.reads.retry(1, None)) == RetryResult(1, Status.CANCELLED, "default")
    row = store.row(1)
    assert (row["status"], row["awaits"], row["seen"], row["joined"]) == (status, ["go"], [8], False)
    assert row["deadline_in"] == pytest.approx(60, abs=5)
    assert store.signal(OutgoingSignal(1, None, "go", None, None))[0][1] == "delivered"
    (claim,) = store.pick().claims
    assert (claim.timed_out, claim.awaits) == (False, ["go"])


def test_a_retry_of_a_wait_whose_deadline_has_passed_times_out(store: Store) -> None:
    store.given(parked(1, await_deadline=seconds(-1)))
    store.run(store.calls.cancel([(1, None)], "why", cascade=True))
    store.run(store.reads.retry(1, None))
    (claim,) = store.pick().claims
    assert (claim.timed_out, claim.awaits) == (True, ["go"])


@pytest.mark.parametrize("kind", ["fail", "cancel"])
def test_a_retry_of_a_step_is_given_its_signals_again(store: Store, kind: str) -> None:
    """A failed or cancelled execution consumed nothing, so the step runs as it was woken."""
    store.given(parked(1) + signal(7, 1))
    store.sql("update @schema.instances set status = 'runnable'")
    (claim,) = store.pick().claims
    store.flush(Commit(1, claim.epoch, claim.seq, kind, error="no"))
    store.run(store.reads.retry(1, None))
    (again,) = store.pick().claims
    assert ([s.id for s in again.inbox], again.awaits, again.timed_out) == ([7], ["go"], False)
