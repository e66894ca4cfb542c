"""A cascade comes past children that are locked, and past children that the database does not let change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.rows import ended, instance, parked, seconds
from tests.support.store import Store

CASCADE = "insert into @schema.cascades (parent_id, first_round, last_round, origin, reason) values "


@pytest.fixture
def other(store: Store, dsn: str) -> Iterator[Store]:
    """Another session."""
    made = Store(dsn, store.schema.name)
    yield made
    made.close()


def family(store: Store, parents: range, children: int) -> None:
    """Cancelled parents, each with children that wait; child n of parent p has the id 1000 * p + n."""
    for id_ in parents:
        store.given(ended(id_, status="cancelled", round=1) + CASCADE + f"({id_}, 0, 1, {id_}, 'why')")
        store.sql(
            "insert into @schema.instances (id, fsm, step, status, awaits, seen, parent_id, parent_round) "
            "overriding system value select 1000 * $1 + n, 'm', 's', 'awaiting_signal', '{go}', '{}', $1, 1 "
            "from generate_series(1, $2::int) as n",
            id_,
            children,
        )


def refuse(store: Store, condition: str) -> None:
    """A trigger of the user that does not let some rows change."""
    store.given(f"""
        create function @schema.refuse() returns trigger language plpgsql as $$
        begin raise exception 'refused' using errcode = '23514'; end $$;
        create trigger refuse before update on @schema.instances for each row
          when ({condition}) execute function @schema.refuse();
    """)


def live(store: Store) -> list[int]:
    return [row["id"] for row in store.rows() if row["finished_at"] is None]


@pytest.mark.dirty
def test_fifty_cascades_with_locked_children_do_not_hold_up_others(store: Store, other: Store) -> None:
    """Sixty parents are listed before one whose children can be cancelled: two batches reach it."""
    family(store, range(1, 62), children=3)
    other.given("begin; select from @schema.instances where parent_id <= 60 for no key update")
    try:
        batches = [store.run(store.calls.cancel_listed_descendants(1000, None)) for _ in range(2)]
        assert [(batch.ended, batch.more) for batch in batches] == [(0, True), (3, True)]
        assert not [id_ for id_ in live(store) if id_ > 61_000]
    finally:
        other.given("rollback")
    while store.run(store.calls.cancel_listed_descendants(1000, None)).more:
        pass
    assert live(store) == []


@pytest.mark.dirty
def test_locked_children_do_not_hold_up_the_children_after_them(store: Store, other: Store) -> None:
    """The first 20 of 40 children are locked: the others are cancelled, and the entry starts again at the first."""
    family(store, range(1, 2), children=40)
    other.given("begin; select from @schema.instances where id between 1001 and 1020 for no key update")
    try:
        batches = [store.run(store.calls.cancel_listed_descendants(10, None)) for _ in range(6)]
        assert sum(batch.ended for batch in batches) == 20
        assert live(store) == list(range(1001, 1021))
    finally:
        other.given("rollback")
    (entry,) = store.sql("select * from @schema.cascades")
    assert min(entry["after"], entry["first_skipped"] or 10_000) <= 1000 + 20
    while store.run(store.calls.cancel_listed_descendants(10, None)).more:
        pass
    assert live(store) == []


@pytest.mark.dirty
def test_a_child_that_is_unlocked_late_is_not_forgotten(store: Store, other: Store) -> None:
    """One child in the middle is locked while the walk passes it in parts."""
    family(store, range(1, 2), children=30)
    other.given("begin; select from @schema.instances where id = 1011 for no key update")
    try:
        for _ in range(5):
            assert store.run(store.calls.cancel_listed_descendants(7, None)).more
        assert live(store) == [1011]
    finally:
        other.given("rollback")
    while store.run(store.calls.cancel_listed_descendants(7, None)).more:
        pass
    assert live(store) == []


@pytest.mark.dirty
def test_a_refused_child_does_not_hold_up_the_others(store: Store) -> None:
    """Two of 40 children cannot be changed: the others end in the same call, and the two are reported."""
    family(store, range(1, 3), children=20)
    store.given("update @schema.instances set metadata = '{\"bad\": 1}' where id in (1007, 2020)")
    refuse(store, "new.metadata ? 'bad'")
    first = store.run(store.calls.cancel_listed_descendants(1000, None))
    assert (first.ended, first.more, sorted(first.refused), first.refusal) == (38, True, [1007, 2020], "23514")
    again = store.run(store.calls.cancel_listed_descendants(1000, None))
    assert (again.ended, again.more, sorted(again.refused)) == (0, True, [1007, 2020])
    store.given("drop trigger refuse on @schema.instances")
    assert (store.run(store.calls.cancel_listed_descendants(1000, None)).ended, live(store)) == (2, [])
    assert not store.run(store.calls.cancel_listed_descendants(1000, None)).more


def test_a_gate_whose_row_is_refused_does_not_stop_a_cascade(store: Store) -> None:
    """The row that waits behind a child cannot be changed: the child ends, the row is left to unblock_missed_rows."""
    store.given(
        ended(1, round=1)
        + instance(2, parent_id=1, parent_round=1, partition_key="k", eligible_at=seconds(-9))
        + instance(3, partition_key="k", blocked_on="partition/k")
        + CASCADE
        + "(1, 0, 1, 1, 'why');"
    )
    refuse(store, "new.id = 3")
    assert not store.run(store.calls.cancel_listed_descendants(10, None)).more
    assert store.row(2)["status"] == "cancelled"
    store.given("drop trigger refuse on @schema.instances")
    store.run(store.calls.unblock_missed_rows(None, 10))
    assert store.row(3)["blocked_on"] is None


@pytest.mark.dirty
def test_an_error_that_does_not_lie_in_a_row_fails_the_call(store: Store) -> None:
    """A statement_timeout or a deadlock is no refusal: the caller tries the whole batch again."""
    store.given(ended(1, round=1) + parked(2, parent_id=1, parent_round=1) + CASCADE + "(1, 0, 1, 1, 'why');")
    store.given("""
        create function @schema.refuse() returns trigger language plpgsql as $$
        begin raise exception 'deadlock' using errcode = '40P01'; end $$;
        create trigger refuse before update on @schema.instances for each row execute function @schema.refuse();
    """)
    with pytest.raises(Exception, match="deadlock"):
        store.run(store.calls.cancel_listed_descendants(10, None))
    assert live(store) == [2]
