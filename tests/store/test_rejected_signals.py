"""Signals that a worker cannot read: set aside with their payloads, tried again by other definitions, restored."""

from __future__ import annotations

import pytest
from tests.support.machine import send
from tests.support.rows import ended, executing, instance, parked, seconds, signal
from tests.support.store import Store

from gen_durable.store.inbox import InboxStatementBuilder, RejectResult, RetryRejectedResult

WAITING = {"awaits": ["go"], "has_signals": True}
REJECTED = {"consumed": True, "rejection": "no", "rejected_by": ["old"]}


def reject(store: Store, *ids: int, target: int = 1, epoch: int = 1, mark: str = "old") -> RejectResult:
    calls = InboxStatementBuilder(store.schema)
    return store.run(calls.reject_signals_and_release_claims(target, epoch, ids, [f"reason {n}" for n in ids], mark))


def retry(store: Store, mark: str = "new", *, batch: int = 100, after: tuple[int, int] = (0, 0)) -> RetryRejectedResult:
    return store.run(InboxStatementBuilder(store.schema).retry_signals_others_rejected([("m", 1, mark)], after, batch))


def restore(store: Store, *ids: int) -> list[tuple[str, str | None]]:
    return store.run(InboxStatementBuilder(store.schema).restore_signals(ids))


def test_a_rejected_signal_is_kept_and_its_row_waits_again(store: Store) -> None:
    """No crash, no attempt; the old deadline stays, and what the row awaits."""
    store.given(
        executing(1, attempt=3, crashes=1, await_deadline=seconds(100), **WAITING) + signal(7, 1, payload='"x"')
    )
    assert reject(store, 7) == RejectResult(frozenset({7}), [])
    row = store.row(1)
    assert (row["status"], row["awaits"], row["seen"]) == ("awaiting_signal", ["go"], [])
    assert (row["attempt"], row["crashes"], row["claims"], row["seq"]) == (3, 0, 2, 0)
    assert (row["locked_by"], row["lease_expires_at"]) == (None, None)
    assert 90 < row["deadline_in"] < 110
    (kept,) = store.inbox()
    assert (kept["payload"], kept["rejection"], kept["rejected_by"]) == ('"x"', "reason 7", ["old"])
    assert store.pick().claims == []


def test_another_awaited_signal_keeps_the_row_runnable(store: Store) -> None:
    store.given(executing(1, attempt=2, **WAITING) + signal(7, 1) + signal(8, 1))
    assert reject(store, 7) == RejectResult(frozenset({7}), ["default"])
    row = store.row(1)
    assert (row["status"], row["attempt"], row["crashes"], row["claims"]) == ("runnable", 2, 0, 2)
    (claim,) = store.pick().claims
    assert [received.id for received in claim.inbox] == [8]


def test_a_signal_of_another_name_does_not(store: Store) -> None:
    store.given(executing(1, **WAITING) + signal(7, 1) + signal(8, 1, "other"))
    reject(store, 7)
    assert store.row(1)["status"] == "awaiting_signal"


@pytest.mark.parametrize("columns", [{"awaits": ["go"], "timed_out_claim": 1}, {}], ids=["timed out", "awaits nothing"])
def test_a_row_that_would_run_without_the_signal_runs(store: Store, columns: dict[str, object]) -> None:
    store.given(executing(1, **columns) + signal(7, 1))
    assert reject(store, 7).woken_queues == ["default"]
    (claim,) = store.pick().claims
    assert (claim.inbox, claim.timed_out) == ((), bool(columns))


def test_a_claim_that_was_taken_over_rejects_nothing(store: Store) -> None:
    """Nor does a second call, after the answer of the first was lost."""
    store.given(executing(1, **WAITING) + signal(7, 1))
    assert reject(store, 7, epoch=0) == RejectResult(frozenset(), [])
    assert store.row(1)["status"] == "executing"
    reject(store, 7)
    assert reject(store, 7) == RejectResult(frozenset(), [])
    assert store.row(1)["claims"] == 2


def test_a_claim_that_has_ended_rejects_nothing(store: Store) -> None:
    """Its own outcome has parked the row, and raised no epoch."""
    store.given(parked(1) + signal(7, 1))
    assert reject(store, 7) == RejectResult(frozenset(), [])
    assert (store.row(1)["claims"], store.inbox()[0]["rejection"]) == (1, None)
    store.sql("delete from @schema.signals")


def test_the_signal_of_another_instance_is_not_rejected(store: Store) -> None:
    store.given(executing(1, **WAITING) + executing(2, **WAITING) + signal(7, 2))
    assert reject(store, 7).ids == frozenset()
    assert store.inbox()[0]["rejection"] is None


def test_a_row_with_a_cancel_request_is_left_to_the_reaper(store: Store) -> None:
    store.given(executing(1, cancel_reason="stop", **WAITING) + signal(7, 1))
    reject(store, 7)
    row = store.row(1)
    assert (row["status"], row["locked_by"]) == ("executing", "w")
    assert row["lease_in"] <= 0


def test_the_next_row_of_the_partition_is_unblocked(store: Store) -> None:
    """A row that waits again leaves its partition key to the next."""
    store.given(
        executing(1, partition_key="p", **WAITING)
        + signal(7, 1)
        + instance(2, partition_key="p", blocked_on="partition/p", queue="other")
    )
    assert reject(store, 7).woken_queues == ["other"]
    assert store.row(2)["blocked_on"] is None


def test_a_rejected_signal_frees_its_dedup_key(store: Store) -> None:
    store.given(executing(1, **WAITING) + signal(7, 1, dedup_key="d"))
    assert store.signal(send(1, dedup="d"))[0][1] == "duplicate"
    reject(store, 7)
    assert store.signal(send(1, dedup="d")) == [(1, "delivered", "default")]
    assert store.signal(send(1, dedup="d"))[0][1] == "duplicate"


def test_an_instance_keeps_a_bounded_number_of_rejected_signals(store: Store) -> None:
    store.given(executing(1, **WAITING) + signal(7, 1))
    store.sql(
        "insert into @schema.signals (target_id, name, consumed, rejection, rejected_by, dedup_key)"
        " select 1, 'go', true, 'no', '{old}', 'd' || n from generate_series(1, 10000) as n"
    )
    store.signal(send(1))
    assert len(reject(store, *(s["id"] for s in store.inbox() if s["rejection"] is None)).ids) == 2
    left = store.inbox()
    assert len(left) == 10_000
    assert 7 not in {s["id"] for s in left}  # the oldest went


def test_another_definition_tries_it_again_once(store: Store) -> None:
    store.given(parked(1, has_signals=True, queue="q") + signal(7, 1, payload='"x"', **REJECTED))
    assert retry(store, "old") == RetryRejectedResult([], [], (0, 0))
    assert retry(store, "new") == RetryRejectedResult([7], ["q"], (0, 0))
    (claim,) = store.pick(q=1).claims
    assert [(s.id, s.payload) for s in claim.inbox] == [(7, b'"x"')]
    reject(store, 7, epoch=claim.epoch, mark="new")
    assert store.inbox()[0]["rejected_by"] == ["new", "old"]
    assert retry(store, "old").ids == retry(store, "new").ids == []
    assert store.row(1)["status"] == "awaiting_signal"


def test_of_several_signals_only_those_that_others_rejected_are_tried_again(store: Store) -> None:
    """Also if they belong to one instance."""
    mine = {**REJECTED, "rejected_by": ["new"]}
    store.given(parked(1) + signal(7, 1, **mine) + signal(8, 1, **REJECTED))
    assert retry(store, "new").ids == [8]
    assert {s["id"]: s["rejection"] for s in store.inbox()} == {7: "no", 8: None}


def test_an_old_worker_that_gets_it_first_does_not_end_it(store: Store) -> None:
    """Its fingerprint is there already, and stays there once: the new one tries again."""
    store.given(parked(1, has_signals=True) + signal(7, 1, **REJECTED))
    for round_ in (1, 2, 3):
        assert retry(store, "new").ids == [7]
        (claim,) = store.pick().claims
        assert claim.epoch == 2 * round_
        reject(store, 7, epoch=claim.epoch, mark="old")
        assert store.inbox()[0]["rejected_by"] == ["old"]


@pytest.mark.parametrize(
    "row",
    [ended(1, has_signals=True), parked(1, fsm="n"), parked(1, fsm_version=2)],
    ids=["ended", "machine", "version"],
)
def test_what_is_not_tried_again(store: Store, row: str) -> None:
    store.given(row + signal(7, 1, **REJECTED))
    assert retry(store).ids == []


def test_a_round_looks_at_a_bounded_number(store: Store) -> None:
    """The next call goes on behind the last; the one after the end begins anew."""
    store.given(parked(1) + parked(2) + "".join(signal(n, 1 + n % 2, **REJECTED) for n in range(10, 15)))
    first = retry(store, batch=3)
    assert (sorted(first.ids), first.after) == ([10, 12, 14], (1, 14))
    second = retry(store, batch=3, after=first.after)
    assert (sorted(second.ids), second.after) == ([11, 13], (0, 0))


def test_a_key_that_is_taken_again_keeps_the_signal_rejected(store: Store) -> None:
    store.given(parked(1) + signal(7, 1, dedup_key="d", **REJECTED) + signal(8, 1, dedup_key="d", **REJECTED))
    assert retry(store).ids == [7]  # the older of the two
    assert restore(store, 8) == [("duplicate", None)]
    assert {s["id"]: s["rejection"] for s in store.inbox()} == {7: None, 8: "no"}


def test_an_operator_restores(store: Store) -> None:
    """Every worker may try it again, also those that have rejected it; the row is woken."""
    store.given(parked(1) + signal(7, 1, payload='"x"', **REJECTED) + signal(8, 1, "other"))
    assert restore(store, 8, 7, 99) == [("not_rejected", None), ("restored", "default"), ("unknown", None)]
    restored = store.inbox()[0]
    assert (restored["rejected_by"], restored["rejection"], restored["consumed"]) == (None, None, False)
    assert store.row(1)["status"] == "runnable"
    (claim,) = store.pick().claims
    assert {s.id for s in claim.inbox} == {7, 8}


def test_the_signal_of_an_ended_instance_is_restored_for_its_retry(store: Store) -> None:
    store.given(ended(1, status="failed", awaits=["go"]) + signal(7, 1, **REJECTED))
    assert restore(store, 7) == [("restored", "default")]
    assert store.row(1)["status"] == "failed"


@pytest.mark.parametrize(("name", "left"), [(None, [9]), ("go", [8, 9])])
def test_an_inbox_is_emptied(store: Store, name: str | None, left: list[int]) -> None:
    """Unread and rejected signals go; what was consumed is still known."""
    store.given(
        executing(1)
        + signal(6, 1)
        + signal(7, 1, **REJECTED)
        + signal(8, 1, "other")
        + signal(9, 1, consumed=True, dedup_key="d")
    )
    found = store.run(InboxStatementBuilder(store.schema).delete_signals(1, None, name))
    assert found is not None
    assert (found.id, found.deleted) == (1, 4 - len(left))
    assert [s["id"] for s in store.inbox()] == left
    assert store.run(InboxStatementBuilder(store.schema).delete_signals(99, None, None)) is None


def test_a_row_that_a_deleted_signal_had_woken_waits_again(store: Store) -> None:
    """Else its step would run as if its deadline had passed. The next row of its partition key is unblocked."""
    store.given(
        parked(1, partition_key="p") + instance(2, partition_key="p", blocked_on="partition/p", eligible_at=seconds(-9))
    )
    store.signal(send(1))
    assert store.row(1)["status"] == "runnable"
    found = store.run(InboxStatementBuilder(store.schema).delete_signals(1, None, None))
    assert found is not None
    assert found.woken_queues == ["default"]
    assert (store.row(1)["status"], store.row(1)["seen"], store.row(2)["blocked_on"]) == ("awaiting_signal", [], None)
    assert [claim.id for claim in store.pick().claims] == [2]
    store.signal(send(1))
    assert store.row(1)["status"] == "runnable"


@pytest.mark.parametrize(
    "row",
    [
        executing(1, awaits=["go"]),
        instance(1),
        instance(1, awaits=["go"], timed_out_claim=1),
        ended(1, status="failed", awaits=["go"]),
    ],
    ids=["executes", "awaits nothing", "timed out", "ended"],
)
def test_other_rows_stay_as_they_are(store: Store, row: str) -> None:
    store.given(row + signal(7, 1))
    before = store.row(1)["status"]
    store.run(InboxStatementBuilder(store.schema).delete_signals(1, None, None))
    assert store.row(1)["status"] == before


def test_a_row_whose_signals_stay_is_left_alone(store: Store) -> None:
    """It awaits a name, and was made runnable by a retry: nothing was deleted, so nothing changes."""
    store.given(instance(1, awaits=["go"]) + signal(7, 1, "other"))
    store.run(InboxStatementBuilder(store.schema).delete_signals(1, None, "third"))
    assert store.row(1)["status"] == "runnable"


def test_a_row_with_another_awaited_signal_stays_runnable(store: Store) -> None:
    store.given(parked(1, awaits=["go", "stop"]))
    store.signal(send(1), send(1, "stop"))
    store.run(InboxStatementBuilder(store.schema).delete_signals(1, None, "go"))
    assert store.row(1)["status"] == "runnable"


def test_signals_are_read_with_their_states(store: Store) -> None:
    calls = InboxStatementBuilder(store.schema)
    store.given(
        executing(1)
        + ended(2)
        + signal(6, 1, consumed=True, dedup_key="d")
        + signal(7, 1, payload='"x"', size=3, **REJECTED)
        + signal(8, 1)
        + signal(9, 2)
    )
    found = store.run(calls.signals_of(1, None, 10, payloads=False))
    assert [(s.id, s.state, s.reason, s.raw_payload) for s in found] == [
        (8, "waiting", None, None),
        (7, "rejected", "no", None),
        (6, "consumed", None, None),
    ]
    assert [s.state for s in store.run(calls.signals_of(2, None, 10, payloads=False))] == ["never_read"]
    assert [s.id for s in store.run(calls.signals_of(1, None, 1, payloads=False))] == [8]
    (rejected,) = store.run(calls.rejected_signals((0, 0), 10, payloads=True))
    assert (rejected.id, rejected.target_id, rejected.machine, rejected.payload) == (7, 1, "m", "x")
    assert store.run(calls.rejected_signals((1, 7), 10, payloads=True)) == []
