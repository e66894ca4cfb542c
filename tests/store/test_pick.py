"""Claiming: what is due, in order, as much as asked for, and nothing that another should run."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.support.machine import M
from tests.support.rows import ended, executing, instance, parent, parked, seconds, signal
from tests.support.store import Store

from gen_durable.starts import Start
from gen_durable.store.types import Commit


def ids(store: Store, demand: int = 10, **queues: int) -> list[int]:
    return [claim.id for claim in store.pick(demand, **queues).claims]


def test_a_claim(store: Store) -> None:
    """A claim carries the row, and the row carries the claim."""
    store.given(
        instance(1, state='{"n": 1}', attempt=2, seq=3, claims=4, partition_key="p", unique_key=b"k", parent_id=9)
    )
    (claim,) = store.pick(worker="me").claims
    assert (claim.id, claim.machine, claim.version, claim.step, claim.state) == (1, "m", 1, "s", '{"n": 1}')
    assert (claim.attempt, claim.epoch, claim.seq, claim.queue, claim.priority) == (2, 5, 3, "default", 0)
    assert (claim.partition_key, claim.unique_key, claim.parent_id, claim.awaits) == ("p", b"k", 9, None)
    row = store.row(1)
    assert (row["status"], row["locked_by"], row["claims"]) == ("executing", "me", 5)
    assert row["lease_in"] == pytest.approx(60, abs=5)


def test_priority_then_due_then_id(store: Store) -> None:
    """Lower priorities first, then what is due longest, then the older id."""
    store.given(
        instance(1, priority=5, eligible_at=seconds(-90))
        + instance(2, eligible_at=seconds(-5))
        + instance(3, eligible_at=seconds(-50))
        + instance(4, priority=-1)
        + "insert into @schema.instances (id, fsm, step, eligible_at) overriding system value"
        " select n, 'm', 's', now() - interval '30 seconds' from generate_series(5, 6) as n;"
    )
    assert ids(store) == [4, 3, 5, 6, 2, 1]


def test_no_more_than_asked_for(store: Store) -> None:
    """Demand is a ceiling, and the most urgent rows fill it."""
    store.given("".join(instance(i, priority=-i) for i in range(1, 6)))
    picked = store.pick(2)
    assert [claim.id for claim in picked.claims] == [5, 4]
    assert picked.unmet == []


def test_several_queues_have_demands_of_their_own(store: Store) -> None:
    """Each queue gets its own demand; rows of a queue that was not named stay."""
    store.given("".join(instance(i, queue="abc"[i % 3]) for i in range(9)))
    claims = store.pick(a=1, b=2).claims
    assert sorted(claim.queue for claim in claims) == ["a", "b", "b"]
    assert {row["status"] for row in store.rows() if row["queue"] == "c"} == {"runnable"}


@pytest.mark.parametrize("demand", [0, -1])
def test_no_demand_no_claims(store: Store, demand: int) -> None:
    """A queue with no room is left alone."""
    store.given(instance(1))
    assert store.pick(demand).claims == []


def test_future_rows_wait_and_are_announced(store: Store) -> None:
    """What is not due is not picked; the answer says in how many seconds the next one is, over all priorities."""
    store.given(instance(1, priority=-9, eligible_at=seconds(90)) + instance(2, eligible_at=seconds(30)) + instance(3))
    picked = store.pick()
    assert [claim.id for claim in picked.claims] == [3]
    (news,) = picked.unmet
    assert news.queue == "default"
    assert news.next_due == pytest.approx(30, abs=5)
    assert news.contended == 0


def test_nothing_is_announced_where_nothing_waits(store: Store) -> None:
    """An empty queue, parked rows without a deadline, ended and executing rows: no next moment."""
    store.given(parked(1) + parent(2, pending=1) + executing(3, parent_id=2, parent_round=1) + ended(4))
    picked = store.pick()
    assert (picked.claims, [(n.queue, n.next_due) for n in picked.unmet]) == ([], [("default", None)])


def test_deadlines_are_announced_and_picked(store: Store) -> None:
    """A parked row with a deadline is announced before it and claimed after it."""
    store.given(parked(1, await_deadline=seconds(20)))
    assert store.pick().unmet[0].next_due == pytest.approx(20, abs=5)
    store.sql("update @schema.instances set await_deadline = now()")
    (claim,) = store.pick().claims
    assert (claim.id, claim.awaits) == (1, ["go"])


def test_unknown_names_are_left_alone(store: Store) -> None:
    """A machine, version or step that the worker does not know is passed over, and does not hide what is behind it."""
    strange = [{"fsm": "x"}, {"fsm_version": 2}, {"step": "x"}, {"fsm": "m/1", "step": "x"}]
    store.given("".join(instance(i, **columns) for i, columns in enumerate(strange, 1)) + instance(9))
    assert ids(store, 1) == [9]
    assert {row["status"] for row in store.rows()} == {"runnable", "executing"}
    assert store.row(1)["claims"] == 0


def test_a_name_is_matched_as_a_whole(store: Store) -> None:
    """Machine, version and step are not glued together wrongly: 'm' at step '1/s' is not 'm/1/s'."""
    store.given(instance(1, fsm="m", step="1/s"))
    assert ids(store) == []


def test_mail_and_children_come_along(store: Store) -> None:
    """A claim brings the inbox, oldest first, without tombstones; children only to a parent that they have woken."""
    store.given(
        instance(1) + signal(8, 1, "b") + signal(7, 1, "a", payload='{"n": 1}') + signal(9, 1, "c", consumed=True)
        + instance(2, round=1, joined=True) + ended(3, parent_id=2, parent_round=1, result='"r"')
        + instance(4, round=1) + ended(5, parent_id=4, parent_round=1)
    )  # fmt: skip
    one, two, four = store.pick().claims
    assert [(r.id, r.name, r.payload) for r in one.inbox] == [(7, "a", b'{"n": 1}'), (8, "b", b"null")]
    assert [(c.id, c.result) for c in two.children] == [(3, "r")]
    assert (one.children, two.inbox, four.children) == ((), (), ())


def test_one_of_a_partition_key_runs(store: Store) -> None:
    """Within one pick and over several, one row of a key executes; the next follows when it is out."""
    store.given("".join(instance(i, partition_key="k", eligible_at=seconds(-20 + i)) for i in (1, 2, 3)))
    picked = store.pick()
    assert [claim.id for claim in picked.claims] == [1]
    assert picked.unmet[0].contended == 2
    picked = store.pick()
    assert (picked.claims, picked.unmet[0].contended) == ([], 0)  # they are not even looked at
    assert [store.row(i)["blocked_on"] for i in (2, 3)] == ["partition/k"] * 2
    assert store.flush(Commit(1, 1, 0, "done")).follow_ups.queues == {"default"}
    assert ids(store) == [2]


def test_order_holds_within_a_key(store: Store) -> None:
    """The head of a key is its first by priority, due moment and id, over all queues."""
    store.given(
        instance(1, partition_key="k", eligible_at=seconds(-9))
        + instance(2, partition_key="k", priority=-1, queue="other")
        + instance(3, partition_key="k", eligible_at=seconds(-99))
    )
    assert ids(store) == []
    assert ids(store, other=1) == [2]
    store.flush(Commit(2, 1, 0, "done"))
    assert ids(store) == [3]


def test_a_row_of_the_future_does_not_hold_its_key(store: Store) -> None:
    """A delayed row of a key lets the others pass until it is due."""
    store.given(instance(1, partition_key="k", priority=-1, eligible_at=seconds(60)) + instance(2, partition_key="k"))
    assert ids(store) == [2]


def test_a_parked_row_does_not_hold_its_key(store: Store) -> None:
    """Waiting for a signal is not executing."""
    store.given(parked(1, partition_key="k") + instance(2, partition_key="k"))
    assert ids(store) == [2]


def test_a_hot_key_does_not_hide_others(store: Store) -> None:
    """A deep backlog of one busy key in front: rows without a key and of other keys behind it are still found."""
    store.given(
        executing(1, partition_key="hot") + "insert into @schema.instances (fsm, step, partition_key, eligible_at)"
        " select 'm', 's', 'hot', now() - interval '1 hour' from generate_series(1, 500);"
        + instance(2)
        + instance(3, partition_key="cold")
    )
    assert sorted(ids(store, 2)) == [2, 3]


def test_different_keys_run_side_by_side(store: Store) -> None:
    """One of each key in one pick."""
    store.given("".join(instance(i, partition_key=f"k{i % 3}") for i in range(1, 10)))
    keys = [claim.partition_key for claim in store.pick().claims]
    assert sorted(keys) == ["k0", "k1", "k2"]


def test_locked_rows_are_passed_over(store: Store, dsn: str) -> None:
    """A row that another transaction holds neither blocks a pick nor is picked."""
    store.given(instance(1) + instance(2))
    other = Store(dsn, store.schema.name)
    try:
        other.given("begin; select from @schema.instances where id = 1 for update")
        assert ids(store) == [2]
        other.given("rollback")
    finally:
        other.close()
    assert ids(store) == [1]


def test_rows_due_at_the_ends_of_time_do_not_stop_a_pick(store: Store) -> None:
    """The earliest and the latest moment that a client may ask for: one is picked, the other waits, and both read."""
    early, late = datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, tzinfo=UTC)
    first, last = store.insert(Start(M.s, {}, schedule_at=early), Start(M.s, {}, schedule_at=late))
    picked = store.pick()
    assert [claim.id for claim in picked.claims] == [first.id]
    (report,) = picked.unmet
    assert report.next_due == pytest.approx((late - datetime.now(UTC)).total_seconds(), abs=60)
    assert store.row(last.id or 0)["eligible_at"] == late


def test_a_deadline_wakes_a_row_once(store: Store) -> None:
    """The claim after a deadline is marked, of a wait for signals as of a join; a claim after a crash is not."""
    store.given(
        parked(1, await_deadline=seconds(-1))
        + parent(2, 1, await_deadline=seconds(-1))
        + instance(3)
        + instance(4, awaits=["go"], seq=1)
        + instance(5, parent_id=2, parent_round=1, queue="unserved")
    )
    woken = {claim.id: claim.is_woken_by_deadline for claim in store.pick().claims}
    assert woken == {1: True, 2: True, 3: False, 4: False}
    store.given(
        "update @schema.instances set lease_expires_at = now() - interval '1 second' where status = 'executing'"
    )
    store.run(store.calls.reap(10, None))
    again = {claim.id: (claim.timed_out, claim.is_woken_by_deadline) for claim in store.pick().claims}
    assert again == {1: (True, False), 2: (True, False), 3: (False, False), 4: (False, False)}
