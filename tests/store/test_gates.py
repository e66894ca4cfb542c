"""Partition keys in corners: several queues in one pick, crowds, the reaper, rings."""

from __future__ import annotations

from tests.store.test_partition import blocked
from tests.support.rows import executing, instance, seconds
from tests.support.store import Store


def test_a_claim_of_another_queue_is_not_blocked_by_the_crowd(store: Store) -> None:
    """One pick of two queues: the head is in a, ten others of its key are in b."""
    store.given(
        instance(1, partition_key="k", queue="a", eligible_at=seconds(-60))
        + "".join(instance(i, partition_key="k", queue="b", eligible_at=seconds(-50)) for i in range(2, 12))
    )
    picked = store.pick(a=20, b=20)
    assert [c.id for c in picked.claims] == [1]


def test_the_head_in_a_queue_that_is_not_asked_for_is_not_blocked_by_the_crowd(store: Store) -> None:
    """The head waits in a, which this worker does not serve."""
    store.given(
        instance(1, partition_key="k", queue="a", eligible_at=seconds(-60))
        + "".join(instance(i, partition_key="k", queue="b", eligible_at=seconds(-50)) for i in range(2, 12))
    )
    assert store.pick(b=20).claims == []
    assert blocked(store) == list(range(2, 12))
    assert [c.id for c in store.pick(a=20).claims] == [1]


def test_a_deep_backlog_with_a_free_key(store: Store) -> None:
    """1,500 due rows of one free key in one queue: the first is claimed."""
    store.given(
        "insert into @schema.instances (fsm, step, partition_key, eligible_at)"
        " select 'm', 's', 'hot', now() - interval '1 hour' from generate_series(1, 1500);"
    )
    first = store.sql("select min(id) as id from @schema.instances")[0]["id"]
    assert [c.id for c in store.pick(100).claims] == [first]


def test_the_sweep_hands_over_what_the_reaper_could_not(store: Store, dsn: str) -> None:
    """A pick blocks a row for a poison row that is failed meanwhile: the reaper does not wait for the pick."""
    other = Store(dsn, store.schema.name)
    store.given(
        executing(1, partition_key="k", lease_expires_at=seconds(-5), eligible_at=seconds(-9))
        + instance(2, partition_key="k", eligible_at=seconds(-1))
    )
    other.given("begin")
    assert other.pick().claims == []
    store.given("set lock_timeout = 200")
    try:
        store.run(store.calls.reap(10, 1))
    finally:
        other.given("commit")
        other.close()
    assert store.run(store.calls.unblock_missed_rows(None, 10)) == (None, ["default"])
    assert blocked(store) == []


def test_a_release_names_the_queue_of_the_next(store: Store) -> None:
    """The next row of the key is in another queue."""
    store.given(
        executing(1, partition_key="k", queue="a") + instance(2, partition_key="k", queue="b", blocked_on="partition/k")
    )
    assert store.run(store.calls.release_claims([(1, 1, 60.0, "x")])).woken_queues == ["b"]


def test_a_ring_is_not_lost_behind_another_denied_row(store: Store) -> None:
    """Two rows are passed over one after the other; for the first of them another one, elsewhere, is let back."""
    store.given(
        instance(1, partition_key="m", queue="b", priority=-1, eligible_at=seconds(-9), blocked_on="partition/m")
        + instance(2, partition_key="m", queue="c", eligible_at=seconds(-8))
        + executing(3, partition_key="k")
        + instance(4, partition_key="k", queue="c", eligible_at=seconds(-7))
    )
    picked = store.pick(c=1)
    assert (picked.claims, picked.woken_queues) == ([], {"b"})


def test_the_reaper_lets_a_more_urgent_row_back(store: Store) -> None:
    """It came while the dead worker held the key; nobody serves the queue of the row that was taken back."""
    store.given(
        executing(1, partition_key="k", queue="dead", lease_expires_at=seconds(-5), eligible_at=seconds(-9))
        + instance(2, partition_key="k", priority=-1, eligible_at=seconds(-1))
    )
    assert store.pick().claims == []
    store.run(store.calls.reap(10, None))
    assert [claim.id for claim in store.pick().claims] == [2]
