"""Retention: ended instances go after their time, and only those that nobody needs."""

from __future__ import annotations

import pytest
from tests.support.rows import ended, executing, instance, parked, seconds
from tests.support.store import Store

DAY = 86_400.0


def gc(
    store: Store, done: float | None = 60, failed: float | None = 60, cancelled: float | None = 60, batch: int = 100
) -> int:
    return store.run(store.calls.gc(done, failed, cancelled, batch))


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
