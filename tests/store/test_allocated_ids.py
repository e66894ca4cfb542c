"""Ids that are drawn before their rows are written: used once, by the login that drew them, and never again."""

from __future__ import annotations

import dataclasses
from typing import Any

import asyncpg
import msgspec
import pytest
from tests.support.machine import M, child, fan_out
from tests.support.rows import ended, executing, instance, parked
from tests.support.store import Store

from gen_durable.operations.start_or_update import make_debounce, make_signal_or_start
from gen_durable.pg.sqlstate_errors import IdTaken, to_library_error
from gen_durable.signals import Signal
from gen_durable.starts import Start
from gen_durable.store.start_or_update import StartOrUpdateStatementBuilder, with_payload_for_holder
from gen_durable.store.types import Commit, InsertResult

go = Signal("go", int)


def draw(store: Store, count: int = 1) -> list[int]:
    return store.run(store.calls.allocate_ids(count))


def drawn(store: Store) -> list[int]:
    """The ids that can still be used."""
    return [row[0] for row in store.sql("select id from @schema.allocated_ids order by id")]


def insert(store: Store, ids: list[Any], *keys: str, on_conflict: str = "raise") -> list[InsertResult]:
    starts = [Start(M.s, {}, unique_key=key) for key in keys] or [Start(M.s, {}) for _ in ids]
    statement = store.calls.insert(starts, on_conflict)
    return store.run(store.calls.insert_with_ids(statement, ids, ["{}"] * len(starts), []))


def keyed(store: Store, start_id: int, key: str = "k", *, debounced: bool = False, holder: int | None = None) -> str:
    """The verdict of a keyed start whose new instance would have this id."""
    if debounced:
        made: Any = make_debounce(Start(M.s, {}, unique_key=key, delay=60), None)
    else:
        made = make_signal_or_start(key, go, 1, None, Start(M.s, {}))
    made = dataclasses.replace(made, start={**made.start, "id": msgspec.Raw(str(start_id).encode())})
    if holder is not None:
        made = with_payload_for_holder(made, holder, "1")
    return store.run(StartOrUpdateStatementBuilder(store.schema).start_or_update(made)).verdict


def test_an_id_is_used_once(store: Store) -> None:
    """Also after its row is deleted; and only ids that were drawn are taken, each for one row."""
    (first, second, third) = draw(store, 3)
    assert [row.id for row in insert(store, [second, first])] == [second, first]
    assert drawn(store) == [third]
    store.sql("update @schema.instances set status = 'done', finished_at = now() where id = $1", first)
    assert store.sql("select deleted from @schema.delete_instance($1)", first)[0][0]
    rows = store.rows()
    for wrong in ([first], [second], [5000], [0], [None], [third, third], [third, first], [third, None]):
        with pytest.raises(asyncpg.PostgresError, match="not drawn by this login") as refused:
            insert(store, wrong)
        assert isinstance(to_library_error(refused.value, "insert", "s"), IdTaken)
        assert (store.rows(), drawn(store)) == (rows, [third])
    with pytest.raises(asyncpg.PostgresError, match="allocated_ids must hold an id"):
        insert(store, [third], "a", "b")
    # By plain SQL too, with the overload for one row: it takes no id at all.
    assert store.sql("select @schema.insert('m', 's')")[0][0] == third + 1


def test_ids_of_rows_that_are_not_inserted_are_used_up(store: Store) -> None:
    """A taken key: the id is lost, and nothing is left for gc. After a refusal all of it can be tried again."""
    holder = store.insert(Start(M.s, {}, unique_key="a"))[0].id
    for on_conflict, answer in (("skip", None), ("existing", holder)):
        ids = draw(store, 2)
        assert [row.id for row in insert(store, ids, "a", on_conflict, on_conflict=on_conflict)] == [answer, ids[1]]
        assert drawn(store) == []
    (one,) = draw(store)
    with pytest.raises(asyncpg.PostgresError, match="the unique key is taken"):
        insert(store, [one], "a")
    assert drawn(store) == [one]
    assert insert(store, [one], "free")[0].id == one


@pytest.mark.parametrize("debounced", [False, True])
def test_keyed_starts_use_their_id_or_give_it_up(store: Store, debounced: bool) -> None:
    """Started: used. For another holder: kept for the next try. Any other verdict: not needed any more."""
    (first, second) = draw(store, 2)
    assert (keyed(store, first, debounced=debounced), drawn(store)) == ("started", [second])
    assert (keyed(store, second, debounced=debounced), drawn(store)) == ("other_holder", [second])
    done = "restarted" if debounced else "delivered"
    assert (keyed(store, second, debounced=debounced, holder=first), drawn(store)) == (done, [])
    with pytest.raises(asyncpg.PostgresError, match="not drawn by this login"):
        keyed(store, second, "free", debounced=debounced)
    if debounced:
        store.given(parked(1, unique_key=b"k2", unique_scope="{awaiting_signal}"))
        (third,) = draw(store)
        assert (keyed(store, third, "k2", debounced=True), drawn(store)) == ("taken", [])


def test_an_id_survives_a_try_that_found_the_key_taken(store: Store) -> None:
    """The calls try again in the same transaction: the holder may have ended."""
    (one,) = draw(store)
    holder = store.insert(Start(M.s, {}, unique_key="k"))[0].id
    start = f'{{"fsm": "m", "step": "s", "id": {one}}}'
    assert store.sql("select @schema.insert_if_key_free('k', $1)", start)[0][0] is None
    assert drawn(store) == [one]
    store.sql(
        "update @schema.instances set status = 'done', finished_at = now(), unique_scope = '{}' where id = $1",
        holder,
    )
    assert store.sql("select @schema.insert_if_key_free('k', $1)", start)[0][0] == one
    assert drawn(store) == []


def test_children_use_up_the_ids_that_their_worker_drew(store: Store) -> None:
    """Children that are not inserted, because their key is taken, too; a stale outcome uses up none."""
    store.given(executing(1) + executing(2) + instance(3, unique_key=b"a", unique_scope="{runnable}"))
    ids = draw(store, 3)
    stale = store.flush(fan_out(1, child(id=ids[0]), claim=7))
    assert (stale.stale_ids, drawn(store)) == ({1}, ids)
    store.flush(fan_out(1, child("a", id=ids[0]), child(id=ids[1])), fan_out(2, child(id=ids[2])))
    assert drawn(store) == []
    assert {row["id"] for row in store.rows()} == {1, 2, 3, ids[1], ids[2]}


def test_a_child_does_not_take_the_id_of_another_login(store: Store) -> None:
    """An id that another login has drawn and not used yet."""
    store.given(executing(1))
    (one,) = draw(store)
    store.sql("update @schema.allocated_ids set login = 10")
    with pytest.raises(asyncpg.PostgresError, match="drawn by another login"):
        store.flush(fan_out(1, child(id=one)))
    assert ([row["id"] for row in store.rows()], drawn(store)) == ([1], [one])


def test_unused_ids_are_forgotten_after_a_day(store: Store) -> None:
    """And cannot be used any more. Younger ones stay, whatever their place."""
    ids = draw(store, 4)
    store.sql("update @schema.allocated_ids set allocated_at = now() - interval '25 hours' where id <> $1", ids[1])
    assert store.run(store.calls.gc_unused_ids(2)) == 1
    assert store.run(store.calls.gc_unused_ids(100)) == 2
    assert drawn(store) == [ids[1]]
    with pytest.raises(asyncpg.PostgresError, match="not drawn by this login"):
        insert(store, [ids[0]])
    assert insert(store, [ids[1]])[0].new


def test_the_collector_waits_for_no_insert(store: Store, dsn: str) -> None:
    """An open transaction that uses an old id: the collector passes it over."""
    (one,) = draw(store)
    store.sql("update @schema.allocated_ids set allocated_at = now() - interval '25 hours'")
    store.given("set lock_timeout = '100ms'")
    other = Store(dsn, store.schema.name)
    try:
        other.given("begin")
        assert insert(other, [one])[0].new
        assert store.run(store.calls.gc_unused_ids(10)) == 0
    finally:
        other.given("rollback")
        other.close()


def test_a_sequence_that_was_set_back_goes_past_the_highest_id(store: Store) -> None:
    """After a restore: no call fails, and no id of a row that was deleted meanwhile is given again."""
    calls = (
        lambda: store.insert(Start(M.s, {}), Start(M.s, {}))[0].id,
        lambda: store.sql("select @schema.insert('m', 's')")[0][0],
        lambda: draw(store, 3)[0],
        lambda: store.run(store.calls.lock_parent_and_allocate_ids(Commit(1, 1, 0, "children"), 2))[0],  # type: ignore[index]
        lambda: store.flush(fan_out(1, child())) and store.rows()[-1]["id"],
    )
    store.given(executing(1) + ended(150) + ended(5000))
    for call in calls:
        highest = max(store.rows()[-1]["id"], *drawn(store), 0)
        store.sql("select setval('@schema.instances_id_seq', 149)")
        assert highest < call() < highest + 10


def test_an_absurd_id_costs_no_walk_to_it(store: Store) -> None:
    """A row of a table writer far above the sequence: the ids below it are given."""
    store.given(instance(2**62) + executing(1))
    assert (store.insert(Start(M.s, {}))[0].id, draw(store)) == (102, [103])  # 101 showed that a row is above
    store.flush(fan_out(1, child()))
    assert [row["id"] for row in store.rows()] == [1, 102, 105, 2**62]
