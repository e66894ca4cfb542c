"""trim_history: old transitions and activities go, those that a reader or a retry needs stay."""

from __future__ import annotations

import pytest
from tests.support.rows import executing
from tests.support.store import Store

from gen_durable.store.journal import JournalStatementBuilder

pytestmark = pytest.mark.dirty


def given(store: Store, id: int, *, outcomes: int, visit: int, activities: bool = True) -> None:  # noqa: A002
    """An instance with so many outcomes, each of a visit of its own with two activities, up to the current visit."""
    store.given(executing(id, seq=outcomes, visit=visit, has_journal=activities))
    store.sql(
        "insert into @schema.transitions (instance_id, started_at, duration, seq, attempt, step, outcome)"
        " select $1, now(), 0, n, 0, 's', 'Next' from generate_series(1, $2::int) as n",
        id,
        outcomes,
    )
    if activities:
        store.sql(
            "insert into @schema.activities"
            " (instance_id, started_at, duration, visit, n, attempt, step, name, parameters)"
            " select $1, now(), 0, v, n, 0, 's', 'a', '[]'"
            " from generate_series(0, $2::int) as v, generate_series(1, 2) as n",
            id,
            visit,
        )


def trim(store: Store, keep: int, *ids: int, batch: int = 10_000) -> list[int]:
    return store.run(JournalStatementBuilder(store.schema).trim_history(dict.fromkeys(ids, keep), batch))


def seqs(store: Store, id: int = 1) -> list[int]:  # noqa: A002
    found = store.sql("select seq from @schema.transitions where instance_id = $1 order by seq", id)
    return [row["seq"] for row in found]


def visits(store: Store, id: int = 1) -> list[int]:  # noqa: A002
    found = store.sql("select visit from @schema.activities where instance_id = $1 order by visit, n", id)
    return [row["visit"] for row in found]


def test_the_newest_outcomes_and_their_activities_stay(store: Store) -> None:
    """Of 10 outcomes 3 are kept, with the activities of the visits in which they were made."""
    given(store, 1, outcomes=10, visit=10)
    given(store, 2, outcomes=3, visit=3)
    assert trim(store, 3, 1, 2) == []
    assert seqs(store) == [8, 9, 10]
    assert visits(store) == [7, 7, 8, 8, 9, 9, 10, 10]
    assert (seqs(store, 2), visits(store, 2)) == ([1, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3])


def test_activities_of_the_current_visit_stay(store: Store) -> None:
    """A step that was retried a hundred times is still in its visit: its activities are not repeated."""
    given(store, 1, outcomes=104, visit=4)
    assert trim(store, 3, 1) == []
    assert (seqs(store), visits(store)) == ([102, 103, 104], [4, 4])


def test_the_last_transition_stays(store: Store) -> None:
    """The reaper asks for it to learn whether the machine has a history."""
    given(store, 1, outcomes=10, visit=10)
    trim(store, 0, 1)
    assert seqs(store) == [10]


def test_a_call_is_bounded_and_says_what_is_left(store: Store) -> None:
    """A history of thousands goes in several calls, the oldest first."""
    given(store, 1, outcomes=30, visit=0, activities=False)
    given(store, 2, outcomes=12, visit=0, activities=False)
    assert trim(store, 10, 1, 2, batch=20) == [1]
    assert (seqs(store)[0], seqs(store, 2)[0]) == (11, 3)
    assert trim(store, 10, 1, batch=20) == []
    assert seqs(store)[0] == 21


def test_a_call_with_many_activities_deletes_the_oldest(store: Store) -> None:
    """The call says that more are left."""
    given(store, 1, outcomes=5, visit=5)
    assert trim(store, 1, 1, batch=6) == [1]
    assert visits(store) == [3, 3, 4, 4, 5, 5]
    assert trim(store, 1, 1, batch=6) == []
    assert visits(store) == [4, 4, 5, 5]


@pytest.mark.parametrize("table", ["transitions", "activities"])
def test_locked_rows_are_passed_over(store: Store, dsn: str, table: str) -> None:
    """Rows that another transaction has locked are left to the next time."""
    given(store, 1, outcomes=5, visit=5)
    other = Store(dsn, store.schema.name)
    try:
        column = "seq" if table == "transitions" else "visit"
        other.given(f"begin; select from @schema.{table} where {column} = 1 for update")
        store.sql("set lock_timeout = '2s'")
        trim(store, 2, 1)
        other.given("rollback")
    finally:
        other.close()
    assert seqs(store) == ([1, 4, 5] if table == "transitions" else [4, 5])
    assert visits(store) == ([3, 3, 4, 4, 5, 5] if table == "transitions" else [1, 1, 3, 3, 4, 4, 5, 5])
