"""Retention: ended instances go after their time, and only those that nobody needs."""

from __future__ import annotations

import pytest
from tests.support.rows import ended, executing, instance, parked, seconds
from tests.support.store import Store

DAY = 86_400.0


def gc(
    store: Store, done: float | None = 60, failed: float | None = 60, cancelled: float | None = 60, batch: int = 100
) -> int:
    return store.run(store.calls.gc(done, failed, cancelled, batch)).deleted


def left(store: Store) -> list[int]:
    return [row["id"] for row in store.rows()]


def test_ended_rows_go_after_their_time(store: Store) -> None:
    """What ended longer ago than the retention goes; what ended since stays."""
    store.given(ended(1, ago=120) + ended(2, ago=30))
    assert gc(store) == 1
    assert left(store) == [2]


def test_live_rows_stay(store: Store) -> None:
    """However old, a live row is never deleted."""
    old = {"inserted_at": seconds(-DAY), "updated_at": seconds(-DAY), "eligible_at": seconds(-DAY)}
    store.given(instance(1, **old) + executing(2, **old) + parked(3, **old))
    assert gc(store, 0, 0, 0) == 0
    assert left(store) == [1, 2, 3]


@pytest.mark.parametrize(("kept", "expected"), [("done", [1]), ("failed", [2]), ("cancelled", [3])])
def test_each_status_has_its_own_retention(store: Store, kept: str, expected: list[int]) -> None:
    """A status with a longer retention stays while the others go; None keeps for good."""
    store.given(ended(1) + ended(2, status="failed") + ended(3, status="cancelled"))
    for long in (DAY, None):
        options = {"done": 60.0, "failed": 60.0, "cancelled": 60.0} | {kept: long}
        gc(store, **options)  # type: ignore[arg-type]
        assert left(store) == expected


def test_none_for_all_keeps_all(store: Store) -> None:
    """Without any retention nothing is deleted."""
    store.given(ended(1, ago=DAY))
    assert gc(store, None, None, None) == 0


def test_a_child_of_a_live_parent_is_spared(store: Store) -> None:
    """A parent may still read its children; when it has ended, or is gone, they go."""
    store.given(
        executing(1, round=1) + ended(2, parent_id=1, parent_round=1)
        + ended(3) + ended(4, parent_id=3, parent_round=0) + ended(5, parent_id=99, parent_round=1)
    )  # fmt: skip
    assert gc(store) == 3
    assert left(store) == [1, 2]


def test_spared_children_do_not_stop_the_rest(store: Store) -> None:
    """Old children of a live parent in front of the batch do not keep what is behind them alive."""
    store.given(executing(1, round=1) + "".join(ended(i, ago=999, parent_id=1, parent_round=1) for i in range(2, 12)))
    store.given(ended(20))
    assert gc(store, batch=5) == 1


def test_a_batch_is_a_ceiling_and_the_oldest_go_first(store: Store) -> None:
    """As many as asked for, by the time they ended."""
    store.given("".join(ended(i, ago=100 * i) for i in range(1, 6)))
    assert gc(store, batch=2) == 2
    assert left(store) == [1, 2, 3]
    assert gc(store, batch=10) == 3


@pytest.mark.dirty
def test_signals_go_with_their_instance(store: Store) -> None:
    """Whatever is left in an inbox is deleted too."""
    store.given(ended(1, has_signals=True) + "insert into @schema.signals (target_id, name) values (1, 'go');")
    assert gc(store) == 1
    assert store.inbox() == []


def test_locked_rows_are_passed_over(store: Store, dsn: str) -> None:
    """A row that somebody holds is left for the next time."""
    store.given(ended(1) + ended(2))
    other = Store(dsn, store.schema.name)
    try:
        other.given("begin; select from @schema.instances where id = 1 for no key update")
        assert gc(store) == 1
        other.given("rollback")
    finally:
        other.close()
    assert left(store) == [1]


def test_a_call_continues_where_the_one_before_ended(store: Store) -> None:
    """Rows that are kept are visited once, and each call visits some thousand at most."""
    store.sql(
        "insert into @schema.instances (fsm, step, status, finished_at, claims, seq) "
        "select 'm', 's', (case when n % 4 = 0 then 'done' else 'failed' end)::@schema.durable_status, "
        "now() - interval '1 day' + make_interval(secs => n), 1, 1 from generate_series(1, 4000) as n"
    )
    calls = [store.run(store.calls.gc(60, None, None, 400))]
    while calls[-1].more:
        calls.append(store.run(store.calls.gc(60, None, None, 400, after=calls[-1].visited_until)))
    assert [call.deleted for call in calls] == [350, 350, 300]
    store.given(ended(1, ago=61))
    assert store.run(store.calls.gc(60, None, None, 400, after=calls[-1].visited_until)).deleted == 1


def test_many_that_ended_at_once_do_not_stop_a_walk(store: Store) -> None:
    """A call comes past rows of one moment, however many they are and although all of them are kept."""
    store.given("".join(ended(n, ago=DAY + n, status="failed") for n in (1, 2)) + ended(3) + ended(4, ago=1800))
    store.sql(
        "insert into @schema.instances (fsm, step, status, finished_at, claims, seq) "
        "select 'm', 's', 'failed', now() - interval '1 day', 1, 1 from generate_series(1, 3000) as n"
    )
    calls = [store.run(store.calls.gc(60, None, None, 10))]
    for _ in range(3):
        calls.append(store.run(store.calls.gc(60, None, None, 10, after=calls[-1].visited_until)))
    assert [(call.deleted, call.more) for call in calls] == [(0, True), (0, True), (2, False), (0, False)]


def test_an_end_that_is_committed_late_is_found(store: Store, dsn: str) -> None:
    """A transaction that began before a call, and ends an instance after it, has the older time."""
    store.given(instance(1))
    other = Store(dsn, store.schema.name)
    try:
        other.given("begin; update @schema.instances set status = 'done', finished_at = now() where id = 1")
        after = store.run(store.calls.gc(0, 0, 0, 10)).visited_until
        other.given("commit")
    finally:
        other.close()
    assert store.run(store.calls.gc(0, 0, 0, 10, after=after)).deleted == 1
