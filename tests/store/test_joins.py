"""Barriers that open early, one statement at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.store.test_cancel import cancel, carry_on, status
from tests.support.machine import child
from tests.support.rows import executing
from tests.support.store import Store

from gen_durable.instances import Status
from gen_durable.store.types import Claim, Commit, FlushResult, FollowUps


def spread(store: Store, count: int, timeout: float | None = None, **barrier: Any) -> list[int]:
    """Instance 1 starts so many children, 101 and on, and waits for them; all of them are claimed."""
    store.given(executing(1))
    extra = json.dumps({"children": [child() for _ in range(count)], **barrier})
    store.flush(Commit(1, 1, 0, "children", step="t", value='"x"', delay=timeout, extra=extra))
    return [claim.id for claim in store.pick(count).claims]


def end(store: Store, *ids: int, kind: str = "done") -> FlushResult:
    """Children end in one flush."""
    return store.flush(*[Commit(i, 1, 0, kind, value="1", error="no", parent=1) for i in ids])


def woken(store: Store) -> Claim | None:
    """The claim of the parent, if it goes on."""
    claims = store.pick().claims
    return next((claim for claim in claims if claim.id == 1), None)


def shown(claim: Claim | None) -> list[Status]:
    assert claim is not None
    assert claim.children is not None
    return [c.status for c in claim.children]


DONE, FAILED, EXECUTING = Status.DONE, Status.FAILED, Status.EXECUTING


@pytest.mark.parametrize("at_once", [True, False])
def test_so_many_must_be_done(store: Store, at_once: bool) -> None:
    """join=2 of 4: a failure does not count; the second that is done opens the barrier; the rest go on."""
    a, b, c, d = spread(store, 4, join=2)
    assert end(store, a, kind="fail").follow_ups.queues == frozenset()
    if at_once:
        assert end(store, b, c).follow_ups.queues == {"default"}
    else:
        assert end(store, b).follow_ups.queues == frozenset()
        assert end(store, c).follow_ups.queues == {"default"}
    row = store.row(1)
    assert (row["status"], row["children_pending"], row["joined"], row["await_deadline"]) == ("runnable", 0, True, None)
    assert shown(woken(store)) == [FAILED, DONE, DONE, EXECUTING]
    assert end(store, d).follow_ups.queues == frozenset()
    assert (store.row(1)["status"], store.row(1)["children_pending"]) == ("executing", 0)


def test_when_too_few_are_left_it_goes_on_too(store: Store) -> None:
    """join=2 of 3: with two failed it cannot be reached any more."""
    a, b, c = spread(store, 3, join=2)
    assert end(store, a, kind="fail").follow_ups.queues == frozenset()
    assert end(store, b, kind="fail").follow_ups.queues == {"default"}
    assert shown(woken(store)) == [FAILED, FAILED, EXECUTING]
    assert end(store, c).follow_ups.queues == frozenset()


def test_too_few_were_started(store: Store) -> None:
    """join=3 of 2, for a third was a duplicate: it goes straight on, and its rest is cancelled if it wants that."""
    spread(store, 2, join=3, cancel_rest=True, timeout=60)
    store.pick()
    row = store.row(1)
    assert (row["status"], row["children_pending"], row["await_deadline"]) == ("executing", 0, None)
    assert carry_on(store) == (0, 2)


def test_nobody_to_wait_for(store: Store) -> None:
    spread(store, 0, join=1, on_failure="wake", cancel_rest=True)
    assert shown(store.pick().claims[0] if store.row(1)["status"] == "runnable" else claim_of(store)) == []


def claim_of(store: Store) -> Claim:
    """The claim that `spread` has taken already."""
    store.run(store.calls.release_claims([(1, 2, None, None)]))
    (claim,) = store.pick().claims
    return claim


def test_all_and_a_failure(store: Store) -> None:
    """Without more words a failure is an end like others."""
    a, b = spread(store, 2)
    assert end(store, a, kind="fail").follow_ups.queues == frozenset()
    assert end(store, b).follow_ups.queues == {"default"}


def test_the_first_failure_wakes(store: Store) -> None:
    a, b, c = spread(store, 3, on_failure="wake")
    assert end(store, a).follow_ups.queues == frozenset()
    assert end(store, b, kind="fail").follow_ups.queues == {"default"}
    assert carry_on(store) == (0, 0)
    assert shown(woken(store)) == [DONE, FAILED, EXECUTING]
    assert end(store, c).follow_ups.queues == frozenset()


def test_a_cancelled_child_is_a_failure(store: Store) -> None:
    a, _ = spread(store, 2, on_failure="wake")
    store.run(store.calls.release_claims([(a, 1, 60.0, None)]))
    cancel(store, a)
    assert status(store, 1, a) == ["runnable", "cancelled"]


def test_the_first_failure_cancels_the_rest(store: Store) -> None:
    """One runs and is asked to stop, one waits and ends at once; the parent shows them as they are."""
    a, b, c = spread(store, 3, on_failure="cancel_rest")
    store.run(store.calls.release_claims([(c, 1, 60.0, None)]))
    assert end(store, a, kind="fail").follow_ups == FollowUps(frozenset({"default"}), frozenset({1}))
    assert carry_on(store) == (1, 1)
    assert status(store, a, b, c) == ["failed", "executing", "cancelled"]
    assert shown(woken(store)) == [FAILED, EXECUTING, Status.CANCELLED]
    assert end(store, b, kind="cancel").follow_ups.queues == frozenset()
    assert store.row(b)["last_error"] == "no"


def test_the_last_failure_has_no_rest(store: Store) -> None:
    (a,) = spread(store, 1, on_failure="cancel_rest", cancel_rest=True)
    assert end(store, a, kind="fail").follow_ups.queues == {"default"}
    assert store.sql("select * from @schema.cascades") == []


def test_enough_are_done_and_the_rest_is_cancelled(store: Store) -> None:
    a, b, c = spread(store, 3, join=1, cancel_rest=True)
    assert end(store, b).follow_ups == FollowUps(frozenset({"default"}), frozenset({1}))
    assert carry_on(store) == (0, 2)
    assert store.run(store.calls.cancel_requests_of([(a, 1), (c, 1)])) == dict.fromkeys(
        (a, c), "instance 1 goes on without it"
    )
    end(store, a, c, kind="cancel")
    assert shown(woken(store)) == [Status.CANCELLED, DONE, Status.CANCELLED]
    carry_on(store)


@pytest.mark.parametrize("cancel_rest", [False, True])
def test_a_deadline(store: Store, cancel_rest: bool) -> None:
    """The parent goes on with what there is; it is shown its children; late ends disturb nobody."""
    barrier = {"cancel_rest": True} if cancel_rest else {}
    a, b = spread(store, 2, timeout=60, **barrier)
    assert 50 < store.row(1)["deadline_in"] <= 60
    end(store, a)
    assert woken(store) is None
    store.sql("update @schema.instances set await_deadline = now() where id = 1")
    assert shown(woken(store)) == [DONE, EXECUTING]
    assert (store.row(1)["children_pending"], store.row(1)["await_deadline"]) == (0, None)
    assert carry_on(store) == (0, int(cancel_rest))
    assert end(store, b).follow_ups.queues == frozenset()
    store.sql("update @schema.instances set lease_expires_at = now() where id = 1")
    store.run(store.calls.reap(10, None))
    assert shown(woken(store)) == [DONE, DONE]  # by another worker after a crash: as they are then
    carry_on(store)


def test_all_end_before_the_deadline(store: Store) -> None:
    a, b = spread(store, 2, timeout=60)
    assert end(store, a, b).follow_ups.queues == {"default"}
    assert store.row(1)["await_deadline"] is None


def test_a_late_child_of_an_earlier_round(store: Store) -> None:
    """The parent waits for its second round when a child of the first ends: it goes on waiting."""
    _, b = spread(store, 2, join=1, timeout=60)
    end(store, 101)
    assert woken(store) is not None
    extra = json.dumps({"children": [child()]})
    store.flush(Commit(1, 2, 1, "children", step="t", value='"x"', extra=extra))
    assert end(store, b).follow_ups.queues == frozenset()
    row = store.row(1)
    assert (row["status"], row["round"], row["children_pending"]) == ("awaiting_children", 2, 1)
    assert (row["children_needed"], row["on_failure"], row["cancel_rest"]) == (None, None, None)


def test_cancelling_the_rest_of_one_round_spares_the_next(store: Store) -> None:
    """The list says which round is meant."""
    spread(store, 2, join=1, cancel_rest=True)
    end(store, 101)
    assert woken(store) is not None
    store.flush(Commit(1, 2, 1, "children", step="t", value='"x"', extra=json.dumps({"children": [child()]})))
    assert carry_on(store) == (0, 1)
    assert [c.id for c in store.pick().claims] == [103]
    assert store.row(1)["status"] == "awaiting_children"


def test_a_signal_opens_no_barrier(store: Store) -> None:
    """A parent that waits for children is not woken by a signal, early barrier or not."""
    spread(store, 2, join=1, timeout=60)
    store.given("insert into @schema.signals (target_id, name) values (1, 'go');")
    store.sql("update @schema.instances set has_signals = true where id = 1")
    assert woken(store) is None
