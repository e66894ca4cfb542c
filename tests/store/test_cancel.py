"""Cancel, one statement at a time: what each kind of row becomes, and what it leaves to others."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.store.test_limits import blocked, ids, limit, one_by_one
from tests.support.machine import M, child, fan_out, send
from tests.support.rows import LIVE, ended, executing, instance, parent, parked, seconds, signal
from tests.support.store import Store

from gen_durable.instances import Status
from gen_durable.limits import Concurrency, Rate
from gen_durable.starts import Start
from gen_durable.store.types import NO_FOLLOW_UPS, CancelResult, Commit, FollowUps


def cancel(store: Store, *targets: int | bytes, cascade: bool = True) -> list[CancelResult]:
    """What became of each; the tree is not carried on."""
    several = [(t, None) if isinstance(t, int) else (None, t) for t in targets]
    answers, _ = store.run(store.calls.cancel(several, "why", cascade=cascade))
    return answers


def carry_on(store: Store, batch: int = 1000) -> tuple[int, int]:
    """Cancel what is listed, to the end: how many were ended, how many asked to stop."""
    total = (0, 0)
    for _ in range(1000):
        done = store.run(store.calls.cancel_listed_descendants(batch, None))
        total = (total[0] + done.ended, total[1] + done.requested)
        if not done.more:
            return total
    raise AssertionError("it never ends")


def status(store: Store, *several: int) -> list[str]:
    return [store.row(i)["status"] for i in several]


WAITING = {
    "runnable": instance(1),
    "future": instance(1, eligible_at=seconds(3600)),
    "parked": parked(1),
    "parked with a deadline": parked(1, await_deadline=seconds(60)),
    "barrier": parent(1, pending=1) + instance(2, parent_id=1, parent_round=1),
    "barrier with a deadline": parent(1, pending=1, await_deadline=seconds(60), children_needed=1)
    + instance(2, parent_id=1, parent_round=1),
    "retrying": instance(1, attempt=3, claims=4, last_error="no", eligible_at=seconds(60)),
    "with mail": parked(1) + signal(1, 1, name="other"),
    "with a key": instance(1, unique_key=b"k", unique_scope=LIVE),
}


@pytest.mark.parametrize("given", WAITING.values(), ids=WAITING)
def test_what_waits_ends_at_once(store: Store, given: str) -> None:
    """Whatever it waits for; the fence goes up, the key is free. What it awaits and its inbox stay for a retry."""
    store.given(given)
    before, inbox = store.row(1), store.inbox()
    assert cancel(store, 1) == [CancelResult(1, Status(before["status"]), "ended")]
    row = store.row(1)
    assert (row["status"], row["last_error"], row["claims"]) == ("cancelled", "why", before["claims"] + 1)
    assert row["finished_at"] is not None
    assert (row["due_at"], row["unique_guard"], row["children_pending"]) == (None, None, 0)
    kept = before["await_deadline"] if before["awaits"] is not None else None
    assert (row["awaits"], row["seen"], row["await_deadline"]) == (before["awaits"], before["seen"], kept)
    assert store.inbox() == inbox
    assert store.pick().claims == [] or given == WAITING["barrier"] or given == WAITING["barrier with a deadline"]


def test_what_executes_is_marked_and_its_worker_named(store: Store) -> None:
    store.given(executing(1))
    assert store.run(store.calls.cancel([(1, None)], "why", cascade=True)) == (
        [CancelResult(1, Status.EXECUTING, "requested")],
        FollowUps(workers_with_cancel_requests=frozenset({"w"})),
    )
    assert (store.row(1)["status"], store.row(1)["cancel_reason"]) == ("executing", "why")
    assert store.run(store.calls.cancel_requests_of([(1, 1), (2, 1)])) == {1: "why"}
    assert store.run(store.calls.cancel_requests_of([(1, 0)])) == {}


def test_asked_again_the_first_reason_stays(store: Store) -> None:
    store.given(executing(1))
    cancel(store, 1)
    answers, follow_ups = store.run(store.calls.cancel([(1, None)], "another", cascade=True))
    assert (answers[0].verdict, follow_ups.workers_with_cancel_requests) == ("requested", {"w"})
    assert store.row(1)["cancel_reason"] == "why"


def test_by_key_and_in_a_batch(store: Store) -> None:
    """The answers are in the order of the targets; what is not there, or has ended, is told apart."""
    store.given(instance(1) + instance(2, unique_key=b"k", unique_scope=LIVE) + ended(3) + executing(4))
    assert [a.verdict for a in cancel(store, 4, b"k", 3, b"nobody", 99, 1)] == [
        "requested", "ended", "over", "no_target", "no_target", "ended",
    ]  # fmt: skip
    assert cancel(store, b"k") == [CancelResult(None, None, "no_target")]


def test_a_scope_that_outlives_the_end_keeps_its_key(store: Store) -> None:
    store.given(instance(1, unique_key=b"k", unique_scope="{runnable,cancelled}"))
    cancel(store, b"k")
    assert bytes(store.row(1)["unique_guard"]) == b"k"
    assert cancel(store, b"k") == [CancelResult(None, None, "no_target")]  # a key cancels its live holder only
    assert cancel(store, 1) == [CancelResult(1, Status.CANCELLED, "over")]


def test_one_that_has_ended_is_left_as_it_is(store: Store) -> None:
    store.given(ended(1))
    before = store.row(1)
    assert cancel(store, 1) == [CancelResult(1, Status.DONE, "over")]
    after = store.row(1)
    assert [after[c] for c in ("status", "claims", "last_error")] == [
        before[c] for c in ("status", "claims", "last_error")
    ]


@pytest.mark.parametrize("kind", ["continue", "next", "retry", "await", "children"])
def test_no_outcome_leads_on_from_a_marked_row(store: Store, kind: str) -> None:
    """It is refused, and said so: nothing of it happens, and the claim stays its owner's."""
    store.given(executing(1) + signal(1, 1))
    cancel(store, 1)
    commit = {
        "await": Commit(1, 1, 0, "await", extra='{"awaits": ["go"], "seen": []}'),
        "children": fan_out(1, child("c")),
    }.get(kind, Commit(1, 1, 0, kind, step="t", extra='{"consumed": [1]}'))
    flushed = store.flush(commit)
    assert (
        flushed.cancel_requested_ids,
        flushed.stale_ids,
        flushed.already_committed_ids,
        flushed.follow_ups.queues,
    ) == (
        {1},
        set(),
        set(),
        set(),
    )
    assert [row["id"] for row in store.rows()] == [1]
    assert (store.row(1)["status"], store.row(1)["seq"], len(store.inbox())) == ("executing", 0, 1)
    assert store.flush(Commit(1, 1, 0, "cancel", error="why")).cancel_requested_ids == frozenset()
    assert (store.row(1)["status"], store.row(1)["last_error"], len(store.inbox())) == ("cancelled", "why", 1)


@pytest.mark.parametrize(("kind", "becomes"), [("done", "done"), ("fail", "failed")])
def test_an_end_that_comes_first_wins(store: Store, kind: str, becomes: str) -> None:
    store.given(executing(1))
    cancel(store, 1)
    assert store.flush(Commit(1, 1, 0, kind, value="1", error="no")).cancel_requested_ids == frozenset()
    assert store.row(1)["status"] == becomes


def test_a_lost_answer_of_a_cancel_commit(store: Store) -> None:
    store.given(executing(1))
    cancel(store, 1)
    store.flush(Commit(1, 1, 0, "cancel", error="why"))
    assert store.flush(Commit(1, 1, 0, "cancel", error="why")).already_committed_ids == {1}


def test_many_children_of_a_marked_row_are_not_begun(store: Store) -> None:
    store.given(executing(1))
    cancel(store, 1)
    assert store.run(store.calls.lock_parent_and_allocate_ids(Commit(1, 1, 0, "children"), 2000)) is None


def test_the_reaper_ends_what_is_marked(store: Store) -> None:
    """Its worker is dead: it does not come back, its parent is told, its key goes on."""
    store.given(
        parent(1, pending=1)
        + executing(2, parent_id=1, parent_round=1, partition_key="k", lease_expires_at=seconds(-1))
        + instance(3, partition_key="k", blocked_on="partition/k")
    )
    cancel(store, 2)
    reaped = store.run(store.calls.reap(10, None))
    assert [(c.id, c.dead) for c in reaped.claims] == [(2, False)]
    assert (store.row(2)["status"], store.row(2)["last_error"], store.row(2)["claims"]) == ("cancelled", "why", 2)
    assert status(store, 1, 3) == ["runnable", "runnable"]
    assert blocked(store) == {}


def test_a_marked_row_that_is_given_back_is_left_to_the_reaper(store: Store) -> None:
    store.given(executing(1))
    cancel(store, 1)
    assert store.run(store.calls.release_claims([(1, 1, None, None)])).ids == [1]
    assert store.pick().claims == []
    assert store.flush(Commit(1, 1, 0, "done", value="1")).stale_ids == {1}
    assert [c.id for c in store.run(store.calls.reap(10, None)).claims] == [1]
    assert status(store, 1) == ["cancelled"]


def test_a_cancelled_child_ends_like_a_failed_one(store: Store) -> None:
    store.given(parent(1, pending=1) + instance(2, parent_id=1, parent_round=1))
    assert set(store.run(store.calls.cancel([(2, None)], "why", cascade=True))[1].queues) == {"default"}
    (claim,) = store.pick().claims
    assert claim.id == 1
    assert claim.children is not None
    assert [(c.status, c.last_error, c.ok) for c in claim.children] == [(Status.CANCELLED, "why", False)]


FAMILY = (
    parent(1, pending=2)
    + parent(2, pending=1, parent_id=1, parent_round=1)
    + executing(3, parent_id=1, parent_round=1)
    + parked(4, parent_id=2, parent_round=1)
)


def test_a_tree_ends_from_the_root_to_the_leaves(store: Store) -> None:
    store.given(FAMILY)
    cancel(store, 1)
    assert status(store, 1, 2, 3, 4) == ["cancelled", "awaiting_children", "executing", "awaiting_signal"]
    assert store.run(store.calls.reap(10, None)).follow_ups == NO_FOLLOW_UPS  # whoever has cancelled it is at it
    store.sql("update @schema.cascades set inserted_at = now() - interval '3 seconds'")
    assert store.run(store.calls.reap(10, None)).follow_ups == FollowUps(cascade_origins=frozenset({None}))
    assert carry_on(store) == (2, 1)
    assert status(store, 1, 2, 3, 4) == ["cancelled", "cancelled", "executing", "cancelled"]
    assert store.run(store.calls.cancel_requests_of([(3, 1)])) == {3: "why"}
    assert store.sql("select * from @schema.cascades") == []
    assert store.run(store.calls.reap(10, None)).follow_ups == NO_FOLLOW_UPS


def test_without_cascade_children_go_on(store: Store) -> None:
    store.given(FAMILY)
    cancel(store, 1, cascade=False)
    assert carry_on(store) == (0, 0)
    assert status(store, 1, 2, 3, 4) == ["cancelled", "awaiting_children", "executing", "awaiting_signal"]
    store.flush(Commit(3, 1, 0, "done", value="1", parent=1))
    assert status(store, 1, 3) == ["cancelled", "done"]


def test_a_large_tree_goes_in_parts(store: Store) -> None:
    """3,000 children, some with children, a hundred at a time."""
    store.given(
        parent(1, pending=3000)
        + "insert into @schema.instances (id, fsm, step, parent_id, parent_round, round, status, children_pending)"
        " overriding system value"
        " select n, 'm', 's', 1, 1, 1, 'awaiting_children', 1 from generate_series(20001, 23000) as n;"
        "insert into @schema.instances (fsm, step, parent_id, parent_round)"
        " select 'm', 's', n, 1 from generate_series(20001, 23000) as n;"
    )
    cancel(store, 1)
    assert carry_on(store, 100) == (6000, 0)
    assert store.sql("select count(*) as n from @schema.instances where status <> 'cancelled'")[0]["n"] == 0


def test_a_child_that_somebody_holds_is_left_to_the_next_turn(store: Store, dsn: str) -> None:
    """A delivery in an open transaction: the others are cancelled, it follows when that has ended."""
    other = Store(dsn, store.schema.name)
    store.given(parent(1, pending=3) + "".join(parked(i, parent_id=1, parent_round=1) for i in (2, 3, 4)))
    other.given("begin")
    other.signal(send(2))
    cancel(store, 1)
    done = store.run(store.calls.cancel_listed_descendants(1000, 1))
    assert (done.ended, done.more) == (2, True)
    assert status(store, 2, 3, 4) == ["awaiting_signal", "cancelled", "cancelled"]
    other.given("commit")
    other.close()
    assert carry_on(store) == (1, 0)
    assert [s["target_id"] for s in store.inbox()] == [2]


def test_the_next_of_a_partition_key(store: Store) -> None:
    """The head is due and others are blocked behind it: when it is cancelled, the next is let back."""
    store.given("".join(instance(i, partition_key="k", eligible_at=seconds(-10 + i)) for i in (1, 2, 3)))
    assert [c.id for c in store.pick(1).claims] == [1]
    store.pick(5)
    store.flush(Commit(1, 1, 0, "retry", delay=3600))
    assert blocked(store) == {3: "partition/k"}
    assert set(store.run(store.calls.cancel([(2, None)], "why", cascade=True))[1].queues) == {"default"}
    assert blocked(store) == {}
    assert ids(store) == [3]


def test_one_that_is_blocked_leaves_the_line(store: Store) -> None:
    store.given("".join(instance(i, partition_key="k", eligible_at=seconds(-10 + i)) for i in (1, 2, 3)))
    assert [c.id for c in store.pick(5).claims] == [1]
    cancel(store, 2)
    assert blocked(store) == {3: "partition/k"}
    store.flush(Commit(1, 1, 0, "done", value="1"))
    assert ids(store) == [3]


def test_a_slot_holder_that_is_cancelled_frees_its_slot(store: Store) -> None:
    limit(store, "l", Concurrency(1))
    one_by_one(store, 3, limit="l")
    assert ids(store) == [101]
    cancel(store, 101)
    assert store.flush(Commit(101, 1, 0, "cancel", error="why")).follow_ups.queues == {"default"}
    assert ids(store) == [102]


def test_one_that_was_let_on_to_a_slot(store: Store) -> None:
    """102 was let back for the slot that fell free and is cancelled before it is picked: 103 takes its place."""
    limit(store, "l", Concurrency(1))
    one_by_one(store, 3, limit="l")
    assert ids(store) == [101]
    store.flush(Commit(101, 1, 0, "done", value="1"))
    assert blocked(store) == {103: "slot/l"}
    cancel(store, 102)
    assert blocked(store) == {}
    assert ids(store) == [103]


def test_one_that_was_told_when_its_token_comes(store: Store) -> None:
    """102 waits for its moment, 103 behind it, and 104 of the same key: cancelled, it keeps none of them."""
    limit(store, "r", Rate(1, per=timedelta(hours=1)))
    store.insert(*[Start(M.s, {}, limit="r") for _ in range(2)])
    store.insert(Start(M.s, {}, limit="r", partition_key="k"))
    store.insert(Start(M.s, {}, partition_key="k"))
    assert ids(store) == [101]
    told = store.sql("select id from @schema.instances where token_at is not null")
    assert [row["id"] for row in told] == [102]
    cancel(store, 102)
    told = store.sql("select id from @schema.instances where token_at is not null")
    assert [row["id"] for row in told] == [103]
    assert 104 in blocked(store)
    cancel(store, 103)
    assert blocked(store) == {}
    assert ids(store) == [104]


def test_the_door_for_psql(store: Store) -> None:
    store.given(instance(1) + instance(2, unique_key=b"k", unique_scope=LIVE))
    assert store.sql("select @schema.cancel(1, 'why') as verdict")[0]["verdict"] == "ended"
    assert store.sql("select @schema.cancel('k', 'why', false) as verdict")[0]["verdict"] == "ended"
    assert status(store, 1, 2) == ["cancelled", "cancelled"]
