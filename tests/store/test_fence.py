"""An outcome counts once, and only for the claim that made it."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import pytest
from tests.support.machine import M, child, fan_out, park
from tests.support.rows import executing, parent, signal
from tests.support.store import Store

from gen_durable.starts import Start
from gen_durable.store.types import Commit

CONSUMING = '{"consumed": [7]}'
KINDS: dict[str, Callable[[], Commit]] = {
    "continue": lambda: Commit(2, 1, 0, "continue", step="t", value='{"n": 1}', extra=CONSUMING),
    "next": lambda: Commit(2, 1, 0, "next", step="t", value='{"n": 1}', extra=CONSUMING),
    "retry": lambda: Commit(2, 1, 0, "retry", value='{"n": 1}', error="why"),
    "await": lambda: park(2, "other"),
    "children": lambda: fan_out(2, child("a"), child()),
    "done": lambda: Commit(2, 1, 0, "done", value="1", parent=1, extra=CONSUMING),
    "fail": lambda: Commit(2, 1, 0, "fail", error="no", parent=1),
}
# A parent that waits for two, one of which has mail.
GIVEN = (
    parent(1, pending=2)
    + executing(2, parent_id=1, parent_round=1)
    + signal(7, 2)
    + executing(3, parent_id=1, parent_round=1)
)


def snapshot(store: Store) -> list[object]:
    return [[tuple(row) for row in store.rows()], [tuple(row) for row in store.inbox()]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_after_a_lost_answer_changes_nothing(store: Store, kind: str) -> None:
    """The same outcome sent twice: the second is told `already`, and every effect has happened once."""
    store.given(GIVEN)
    first = store.flush(KINDS[kind]())
    assert (first.stale_ids, first.already_committed_ids) == (set(), set())
    after = snapshot(store)
    again = store.flush(KINDS[kind]())
    assert (again.stale_ids, again.already_committed_ids, again.follow_ups.queues) == (set(), {2}, set())
    assert snapshot(store) == after


@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_of_an_older_claim_is_stale(store: Store, kind: str) -> None:
    """Claimed by w, lease run out, reaped, claimed by w again: the old outcome consumes, joins and starts nothing."""
    store.given(GIVEN)
    store.sql("update @schema.instances set lease_expires_at = now() - interval '1 second' where id = 2")
    assert [r.id for r in store.run(store.calls.reap(10, None)).claims] == [2]
    (claim,) = store.pick(worker="w").claims
    assert (claim.id, claim.epoch, store.row(2)["locked_by"]) == (2, 3, "w")
    before = snapshot(store)
    answer = store.flush(KINDS[kind]())
    assert (answer.stale_ids, answer.already_committed_ids, answer.follow_ups.queues) == ({2}, set(), set())
    assert snapshot(store) == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_of_a_reaped_claim_is_stale(store: Store, kind: str) -> None:
    """The same before anybody has claimed it again."""
    store.given(GIVEN)
    store.sql("update @schema.instances set lease_expires_at = now() - interval '1 second' where id = 2")
    store.run(store.calls.reap(10, None))
    before = snapshot(store)
    assert store.flush(KINDS[kind]()).stale_ids == {2}
    assert snapshot(store) == before


def test_a_retry_of_a_held_chain_is_known_at_every_step(store: Store) -> None:
    """A claim that goes on is fenced by seq: the last outcome again is `already`, an older one is stale."""
    store.given(executing(2))
    for seq in range(3):
        store.flush(Commit(2, 1, seq, "continue", value=str(seq)))
    assert store.flush(Commit(2, 1, 2, "continue", value="2")).already_committed_ids == {2}
    assert store.flush(Commit(2, 1, 1, "continue", value="1")).stale_ids == {2}
    row = store.row(2)
    assert (row["seq"], row["state"]) == (3, "2")


def test_a_retry_after_another_claim_is_stale(store: Store) -> None:
    """The outcome was committed and somebody else has the row by now: it is not mine any more, and stays untouched."""
    store.given(executing(2))
    commit = Commit(2, 1, 0, "next", step="t")
    store.flush(commit)
    store.pick(worker="other")
    assert store.flush(commit).stale_ids == {2}
    assert store.row(2)["locked_by"] == "other"


def test_an_unknown_instance_is_stale(store: Store) -> None:
    """An outcome for a row that is gone is told so."""
    assert store.flush(Commit(99, 1, 0, "done")).stale_ids == {99}


def test_a_partly_known_batch(store: Store) -> None:
    """New, repeated and stale outcomes in one call are told apart, and only the new one acts."""
    store.given(executing(1) + executing(2) + executing(3, claims=4))
    store.flush(Commit(2, 1, 0, "done", value="1"))
    answer = store.flush(Commit(1, 1, 0, "done"), Commit(2, 1, 0, "done", value="2"), Commit(3, 1, 0, "done"))
    assert (answer.stale_ids, answer.already_committed_ids) == ({3}, {2})
    assert (store.row(1)["status"], store.row(2)["result"], store.row(3)["status"]) == ("done", "1", "executing")


def test_a_released_claim_is_stale(store: Store) -> None:
    """What was given back cannot be finished any more."""
    store.given(executing(1))
    assert store.run(store.calls.release_claims([(1, 1, None, None)])).ids == [1]
    assert store.flush(Commit(1, 1, 0, "done")).stale_ids == {1}
    assert store.row(1)["status"] == "runnable"


def test_a_key_held_by_an_open_transaction_is_not_waited_for(store: Store, dsn: str) -> None:
    """A child's key is being taken by somebody's open transaction: the flush gives up soon, and nothing has changed."""
    store.given(executing(1) + executing(2))
    before = snapshot(store)
    other = Store(dsn, store.schema.name)
    try:
        other.given("begin")
        other.insert(Start(M.s, {}, unique_key="taken"))
        with pytest.raises(asyncpg.LockNotAvailableError):
            store.flush(Commit(1, 1, 0, "done"), fan_out(2, child("taken")))
        # The rows themselves are free: asking for locks does not tell which outcome is at fault.
        assert store.run(store.calls.unlocked_ids([1, 2])) == {1, 2}
        other.given("rollback")
    finally:
        other.close()
    assert snapshot(store) == before
