"""Rows with a keep of their own, and retentions that machines declare: what gc deletes and when."""

from __future__ import annotations

import pytest
from tests.support.rows import LIVE, ended, executing, seconds
from tests.support.store import Store

from gen_durable.retention import Retention
from gen_durable.store.retention import RetentionStatementBuilder

FOREVER = LIVE[:-1] + ",done,failed,cancelled}"


@pytest.fixture
def calls(store: Store) -> RetentionStatementBuilder:
    return RetentionStatementBuilder(store.schema)


def gc(store: Store, keep: float | None = 60, min_age: float | None = None) -> int:
    return store.run(store.calls.gc(keep, keep, keep, 100, min_age=min_age)).deleted


def left(store: Store) -> list[int]:
    return [row["id"] for row in store.rows()]


def test_retention_spares_rows_with_a_keep_of_their_own(store: Store, calls: RetentionStatementBuilder) -> None:
    """For good or for a time, longer or shorter than the retention."""
    store.given(ended(1) + ended(2, keep_seconds="Infinity") + ended(3, keep_seconds=7200) + ended(4, keep_seconds=0))
    assert gc(store) == 1
    assert left(store) == [2, 3, 4]
    assert store.run(calls.gc_rows_with_own_retention(10)).deleted == 1
    assert left(store) == [2, 3]


def test_a_row_goes_when_its_keep_has_passed(store: Store, calls: RetentionStatementBuilder) -> None:
    """It counts from the end, whatever the status."""
    store.given(
        ended(1, ago=100, keep_seconds=99)
        + ended(2, ago=100, keep_seconds=101)
        + ended(3, ago=100, keep_seconds=99, status="failed")
        + ended(4, ago=100, keep_seconds=99, status="cancelled")
        + executing(5, keep_seconds=0)
    )
    assert store.run(calls.gc_rows_with_own_retention(10)).deleted == 3
    assert left(store) == [2, 5]


def test_a_batch_is_a_ceiling_and_the_first_to_pass_go_first(store: Store, calls: RetentionStatementBuilder) -> None:
    """Not those that ended first."""
    store.given(ended(1, ago=500, keep_seconds=100) + ended(2, ago=1000, keep_seconds=800) + ended(3, keep_seconds=1))
    result = store.run(calls.gc_rows_with_own_retention(1))
    assert (result.deleted, result.more, left(store)) == (1, True, [1, 2])
    assert store.run(calls.gc_rows_with_own_retention(1)).deleted == 1
    assert left(store) == [2]


def test_a_refused_row_is_left_out(store: Store, calls: RetentionStatementBuilder) -> None:
    store.given(ended(1, ago=100, keep_seconds=1) + ended(2, ago=50, keep_seconds=1))
    assert store.run(calls.gc_rows_with_own_retention(10, skip=1)).deleted == 1
    assert left(store) == [1]


def test_a_child_is_kept_while_its_parent_lives(store: Store, calls: RetentionStatementBuilder) -> None:
    """As by retention; and a walk does not visit it again and again."""
    store.given(executing(1, round=1) + ended(2, parent_id=1, parent_round=1, keep_seconds=0))
    first = store.run(calls.gc_rows_with_own_retention(10))
    assert (first.deleted, first.more) == (0, False)
    store.given(
        "update @schema.instances set status = 'done', finished_at = now(), lease_expires_at = null, locked_by = null"
        " where id = 1"
    )
    assert store.run(calls.gc_rows_with_own_retention(10, after=first.visited_until)).deleted == 0
    assert store.run(calls.gc_rows_with_own_retention(10)).deleted == 1


def seed(store: Store, count: int, seconds_apart: int, child_of: str) -> None:
    """Rows whose time passed a day ago; `child_of` is the parent of row n, in SQL."""
    store.given(executing(1, round=1))
    store.sql(
        "insert into @schema.instances (fsm, step, status, finished_at, keep_seconds, parent_id, parent_round) "
        "select 'm', 's', 'done', now() - interval '2 days' + make_interval(secs => n * $2), 86400, "
        f"{child_of}, 1 from generate_series(1, $1) as n",
        count, seconds_apart,
    )  # fmt: skip


def test_a_call_continues_where_the_one_before_ended(store: Store, calls: RetentionStatementBuilder) -> None:
    """Rows that are kept are visited once, and each call visits some thousand at most."""
    seed(store, 4000, 1, "case when n % 4 > 0 then 1 end")
    results = [store.run(calls.gc_rows_with_own_retention(400))]
    while results[-1].more:
        results.append(store.run(calls.gc_rows_with_own_retention(400, after=results[-1].visited_until)))
    assert [result.deleted for result in results] == [350, 350, 300]


def test_many_that_passed_at_once_do_not_stop_a_walk(store: Store, calls: RetentionStatementBuilder) -> None:
    """A call comes past rows of one moment, however many they are and although all of them are kept."""
    seed(store, 3000, 0, "1")
    early = "".join(ended(n, ago=90_000 + n, keep_seconds=0, parent_id=1, parent_round=1) for n in (2, 3))
    store.given(early + ended(4, keep_seconds=0) + ended(5, ago=1800, keep_seconds=0))
    results = [store.run(calls.gc_rows_with_own_retention(10))]
    for _ in range(3):
        results.append(store.run(calls.gc_rows_with_own_retention(10, after=results[-1].visited_until)))
    assert [(result.deleted, result.more) for result in results] == [(0, True), (0, True), (2, False), (0, False)]


def test_an_end_that_is_committed_late_is_found(store: Store, calls: RetentionStatementBuilder) -> None:
    """A transaction that began earlier may commit an end with an older time: the position stays a minute behind."""
    store.given(ended(1, ago=10, keep_seconds=0))
    first = store.run(calls.gc_rows_with_own_retention(10))
    store.given(ended(2, ago=30, keep_seconds=0))
    assert store.run(calls.gc_rows_with_own_retention(10, after=first.visited_until)).deleted == 1


def test_a_retry_starts_the_time_anew(store: Store, calls: RetentionStatementBuilder) -> None:
    """A retried instance has not ended, and keeps its own time for its next end."""
    store.given(ended(1, status="failed", keep_seconds=10, unique_key=b"k", unique_scope=FOREVER))
    store.run(store.reads.retry(None, b"k"))
    assert store.run(calls.gc_rows_with_own_retention(10)).deleted == 0
    assert (store.row(1)["keep_seconds"], bytes(store.row(1)["unique_guard"])) == (10, b"k")


def declare(store: Store, **retentions: Retention | None) -> bool:
    return store.run(RetentionStatementBuilder(store.schema).declare_retentions(retentions))


def test_a_machine_keeps_to_its_own_retention(store: Store) -> None:
    """Longer, shorter or for good, by the way of ending; the others have that of the caller."""
    assert declare(store, long=Retention(done=600, failed=None), short=Retention(done=0))
    store.given(
        ended(1, ago=120, fsm="other")
        + ended(2, ago=120, fsm="long")
        + ended(3, ago=700, fsm="long")
        + ended(4, ago=86_400, fsm="long", status="failed")
        + ended(5, ago=30, fsm="short")
        + ended(6, ago=30, fsm="other")
    )
    assert gc(store) == 2
    assert left(store) == [2, 4, 5, 6]
    assert gc(store, min_age=0) == 1
    assert left(store) == [2, 4, 6]
    assert gc(store, keep=None, min_age=0) == 0


def test_a_declaration_is_written_only_if_it_changes_something(store: Store) -> None:
    """The second start of a worker writes nothing; a machine that no longer declares a retention loses its row."""
    assert declare(store, a=Retention(1, 2, None), b=None)
    version = store.sql("select xmin::text, * from @schema.retentions")
    assert not declare(store, a=Retention(1, 2, None), b=None)
    assert store.sql("select xmin::text, * from @schema.retentions") == version
    assert declare(store, a=Retention(1, 3, None), b=Retention(None, None, None))
    calls = RetentionStatementBuilder(store.schema)
    assert store.run(calls.declared_retentions()) == {"a": Retention(1, 3, None), "b": Retention(None, None, None)}
    assert declare(store, b=None)
    assert list(store.run(calls.declared_retentions())) == ["a"]


def test_the_last_inserted_of_a_key_is_by_id(store: Store) -> None:
    """Ended rows that hold their key come first, as live ones do."""
    store.given(
        ended(1, unique_key=b"k")
        + ended(2, unique_key=b"k", unique_scope=FOREVER)
        + ended(3, unique_key=b"k")
        + ended(4, unique_key=b"l", ago=10)
        + ended(5, unique_key=b"l", ago=3600, inserted_at=seconds(-9000))
    )
    assert [store.run(store.calls.id_of_key(key)) for key in (b"k", b"l", b"m")] == [2, 5, None]
    assert store.run(store.calls.live_id_of_key(b"k")) is None
