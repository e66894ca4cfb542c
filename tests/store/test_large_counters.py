"""Counters beyond 2^31: an instance that is woken for years is picked, committed, signalled and reaped as any other."""

from __future__ import annotations

import pytest
from tests.support.machine import child, fan_out
from tests.support.rows import executing, instance, parked, seconds
from tests.support.store import Store

from gen_durable.store.journal import ActivityRecord, Fence, JournalStatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

BIG = 2**31 - 1
OLD = {"claims": BIG, "seq": BIG, "visit": BIG, "attempt": BIG, "round": BIG}


def test_a_pick_and_its_outcome(store: Store) -> None:
    """Each counter passes the bound of an int, in the row, the claim and the history."""
    store.given(instance(1, **OLD))
    (claim,) = store.pick().claims
    assert (claim.epoch, claim.seq, claim.visit, claim.attempt) == (BIG + 1, BIG, BIG, BIG)
    retry = Commit(1, claim.epoch, claim.seq, "retry", ran_step="s")
    assert not store.flush(retry).stale_ids
    row = store.row(1)
    assert (row["seq"], row["attempt"]) == (BIG + 1, BIG + 1)
    (again,) = store.pick().claims
    assert store.run(store.calls.heartbeat([(1, again.epoch)], 60)) == []
    assert not store.flush(Commit(1, again.epoch, again.seq, "next", step="t", value="1", ran_step="s")).stale_ids
    assert store.row(1)["visit"] == BIG + 2
    moves = store.run(JournalStatementBuilder(store.schema).history(1, None))
    assert [(move.seq, move.attempt) for move in moves] == [(BIG + 1, BIG), (BIG + 2, BIG + 1)]
    assert store.run(store.calls.get(1, None)).claims == again.epoch  # type: ignore[union-attr]


def test_a_reap_and_a_release(store: Store) -> None:
    """A crashed claim is taken back, and one that is given back gets a new epoch."""
    store.given(executing(1, **OLD, lease_expires_at=seconds(-1)) + executing(2, **OLD))
    (reaped,) = store.run(store.calls.reap(10, None)).claims
    assert reaped.id == 1
    assert (store.row(1)["claims"], store.row(1)["attempt"]) == (BIG + 1, BIG + 1)
    assert store.run(store.calls.release_claims([(2, BIG, None, None)])).ids == [2]
    assert store.row(2)["claims"] == BIG + 1


def test_a_signal_and_a_cancel(store: Store) -> None:
    store.given(parked(1, **OLD) + executing(2, **{**OLD, "claims": BIG + 1}) + parked(3, **OLD))
    assert store.signal(OutgoingSignal(1, None, "go", "1", None))[0][1] == "delivered"
    assert store.row(1)["status"] == "runnable"
    store.run(store.calls.cancel([(2, None), (3, None)], "why", cascade=True))
    assert store.run(store.calls.cancel_requests_of([(2, BIG + 1)])) == {2: "why"}
    assert (store.row(3)["status"], store.row(3)["claims"]) == ("cancelled", BIG + 1)


def test_a_fan_out_and_its_join(store: Store) -> None:
    """The round of the parent is a counter too."""
    store.given(executing(1, **{**OLD, "claims": BIG + 1, "seq": BIG + 1}))
    assert not store.flush(fan_out(1, child(), claim=BIG + 1, seq=BIG + 1)).stale_ids
    (claim,) = store.pick().claims
    assert store.row(claim.id)["parent_round"] == BIG + 1
    store.flush(Commit(claim.id, claim.epoch, claim.seq, "done", value="7", parent=1))
    (joined,) = store.pick().claims
    assert [c.id for c in joined.children or ()] == [claim.id]
    assert [c.id for c in store.run(store.calls.children_page(1, 0, 10))] == [claim.id]


@pytest.mark.parametrize("what", ["activity", "checkpoint"])
def test_a_journal(store: Store, what: str) -> None:
    """Activities and checkpoints of such a visit come with its next claim."""
    store.given(
        executing(1, **{**OLD, "claims": BIG + 1, "seq": BIG + 1, "visit": BIG + 1}, lease_expires_at=seconds(-1))
    )
    journal, fence = JournalStatementBuilder(store.schema), Fence(1, BIG + 1, BIG + 1)
    written = (
        journal.record_activity(fence, ActivityRecord(1, "charge", "[]", '"ok"', None, 0.5, 0.25, 0))
        if what == "activity"
        else journal.record_checkpoint(fence, '"half"')
    )
    assert store.run(written)
    store.run(store.calls.reap(10, None))
    (claim,) = store.pick().claims
    assert ("ok" if what == "activity" else "half") in (claim.journal or "")
