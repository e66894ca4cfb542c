"""Making instances: in order, in bulk, and one per unique key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from tests.support.machine import M, fan_out, park, send
from tests.support.rows import LIVE, executing, instance, parked
from tests.support.store import Store

from gen_durable.starts import Start
from gen_durable.store.types import Commit, InsertResult


def keyed(key: str, **more: object) -> Start[object]:
    return Start(M.s, {}, unique_key=key, **more)  # type: ignore[arg-type]


def test_a_row_is_as_it_was_described(store: Store) -> None:
    """Every option arrives in its column; the rest has its default."""
    start = Start(M.s, {"n": 1}, queue="q", priority=-5, partition_key="p", unique_key=b"\x00\xff")
    (made,) = store.insert(start)
    assert made.new
    row = store.row(made.id or 0)
    assert (row["fsm"], row["fsm_version"], row["step"], row["state"]) == ("m", 1, "s", '{"n": 1}')
    assert (row["queue"], row["priority"], row["partition_key"]) == ("q", -5, "p")
    assert (row["unique_key"], row["unique_guard"]) == (b"\x00\xff", b"\x00\xff")
    assert (row["status"], row["attempt"], row["claims"], row["seq"], row["crashes"]) == ("runnable", 0, 0, 0, 0)
    assert row["eligible_in"] == pytest.approx(0, abs=5)


def test_delay_and_schedule(store: Store) -> None:
    """A delay counts from the database's now; a moment is taken as it is."""
    at = datetime(2100, 1, 1, tzinfo=UTC)
    later, fixed = store.insert(Start(M.s, {}, delay=timedelta(minutes=1)), Start(M.s, {}, schedule_at=at))
    assert store.row(later.id or 0)["eligible_in"] == pytest.approx(60, abs=5)
    assert store.row(fixed.id or 0)["eligible_at"] == at


def test_ids_follow_the_order_handed_in(store: Store) -> None:
    """Whatever the order of the keys, ids and answers come in input order, so equal rows run in that order."""
    made = store.insert(keyed("c"), keyed("a"), Start(M.s, {}), keyed("b"))
    ids = [one.id or 0 for one in made]
    assert ids == sorted(ids)
    assert [claim.id for claim in store.pick().claims] == ids


def test_raise_makes_nothing(store: Store) -> None:
    """One taken key refuses the whole batch, and says which key and who holds it."""
    (holder,) = store.insert(keyed("a"))
    with pytest.raises(asyncpg.PostgresError) as caught:
        store.insert(Start(M.s, {}), keyed("b"), keyed("a"))
    assert caught.value.sqlstate == "GD001"
    assert (caught.value.detail, caught.value.hint) == (b"a".hex(), str(holder.id))
    assert len(store.rows()) == 1


def test_skip_and_existing(store: Store) -> None:
    """skip answers without an id, existing with the holder's; new rows are made in both cases."""
    (holder,) = store.insert(keyed("a"))
    skipped, made = store.insert(keyed("a"), keyed("b"), on_conflict="skip")
    assert skipped == InsertResult(None, new=False)
    assert made.new
    again, other = store.insert(keyed("a"), keyed("c"), on_conflict="existing")
    assert again == InsertResult(holder.id, new=False)
    assert other.new


def test_duplicates_inside_one_batch(store: Store) -> None:
    """The first of a key in the batch is made; the others are told of it, skipped, or refuse the batch."""
    first, second = store.insert(keyed("a"), keyed("a"), on_conflict="existing")
    assert (first.new, second) == (True, InsertResult(first.id, new=False))
    third, fourth = store.insert(keyed("b"), keyed("b"), on_conflict="skip")
    assert (third.new, fourth) == (True, InsertResult(None, new=False))
    with pytest.raises(asyncpg.PostgresError) as caught:
        store.insert(keyed("c"), keyed("c"))
    assert caught.value.sqlstate == "GD001"
    assert len(store.rows()) == 2


def test_an_unknown_way_to_conflict_is_refused(store: Store) -> None:
    """A typo in on_conflict is an error, not a default."""
    with pytest.raises(asyncpg.PostgresError, match="on_conflict"):
        store.insert(Start(M.s, {}), on_conflict="ignore")


def test_an_empty_batch(store: Store) -> None:
    """Nothing in, nothing out."""
    assert store.insert() == []


def test_ten_thousand_in_one_call(store: Store) -> None:
    """A large batch is one statement; half of its keys are taken and answered with their holders."""
    keys = [f"k{n}" for n in range(10_000)]
    first = store.insert(*(keyed(k) for k in keys[::2]))
    assert all(one.new for one in first)
    answer = store.insert(*(keyed(k) for k in keys), on_conflict="existing")
    assert [one.new for one in answer] == [False, True] * 5_000
    assert [one.id for one in answer[::2]] == [one.id for one in first]


@pytest.mark.parametrize("kind", ["done", "fail"])
def test_an_end_frees_the_key(store: Store, kind: str) -> None:
    """The default scope is live: after the end the key can be taken again, and the old row keeps it for the record."""
    store.given(executing(1, unique_key=b"a", unique_scope=LIVE))
    store.flush(Commit(1, 1, 0, kind, error="no"))
    (made,) = store.insert(keyed("a"))
    assert made.new
    assert (store.row(1)["unique_key"], store.row(1)["unique_guard"]) == (b"a", None)


@pytest.mark.parametrize("status", ["executing", "awaiting_signal", "awaiting_children", "runnable"])
def test_a_live_holder_keeps_the_key(store: Store, status: str) -> None:
    """Whatever a live holder does, its key stays taken."""
    (made,) = store.insert(keyed("a"))
    assert made.id is not None
    if status != "runnable":
        store.pick()
    match status:
        case "awaiting_signal":
            store.flush(park(made.id, "go"))
        case "awaiting_children":
            store.flush(
                fan_out(
                    made.id,
                    {"fsm": "m", "version": 1, "step": "s", "queue": "q", "priority": 0, "state": {}, "delay": 0},
                )
            )
    assert store.row(made.id)["status"] == status
    assert store.insert(keyed("a"), on_conflict="existing") == [InsertResult(made.id, new=False)]


def test_a_scope_with_done_outlives_the_instance(store: Store) -> None:
    """A key that is scoped to done as well is taken until the row is deleted."""
    (made,) = store.insert(keyed("a", unique_scope=["runnable", "executing", "done"]))
    (claim,) = store.pick().claims
    store.flush(Commit(claim.id, 1, 0, "done"))
    assert store.insert(keyed("a"), on_conflict="existing") == [InsertResult(made.id, new=False)]


def test_a_scope_is_left_for_good(store: Store) -> None:
    """A row that leaves its scope does not come back into it: another may hold the key by then."""
    (first,) = store.insert(keyed("a", unique_scope=["runnable"]))
    assert first.id is not None
    store.pick()
    row = store.row(first.id)
    assert (row["unique_guard"], row["unique_scope"]) == (None, [])
    (second,) = store.insert(keyed("a", unique_scope=["runnable"]))
    assert second.new
    store.flush(Commit(first.id, 1, 0, "next"))
    assert (store.row(first.id)["status"], store.row(first.id)["unique_guard"]) == ("runnable", None)


@pytest.mark.parametrize("how", ["signal", "recheck", "reap", "release", "join", "idle"])
def test_every_wake_leaves_the_scope_for_good(store: Store, how: str) -> None:
    """Each way back to runnable empties a scope that does not hold runnable."""
    scope = "{executing,awaiting_signal,awaiting_children}"
    held = {"unique_key": b"a", "unique_scope": scope}
    store.given(parked(1, **held) if how == "signal" else executing(1, **held))
    match how:
        case "signal":
            store.signal(send(1))
        case "recheck":
            store.signal(send(1))
            store.flush(park(1, "go"))
        case "reap":
            store.sql("update @schema.instances set lease_expires_at = now() - interval '1 second'")
            store.run(store.calls.reap(1, None))
        case "release":
            store.run(store.calls.release_claims([(1, 1, None, None)]))
        case "join":
            store.given(executing(2, parent_id=1, parent_round=1))
            store.sql(
                "update @schema.instances set status = 'awaiting_children', round = 1, children_pending = 1,"
                " locked_by = null, lease_expires_at = null where id = 1"
            )
            store.flush(Commit(2, 1, 0, "done", parent=1))
        case "idle":
            store.flush(fan_out(1))
    row = store.row(1)
    assert (row["status"], row["unique_guard"], row["unique_scope"]) == ("runnable", None, [])


def test_a_row_outside_its_scope_from_the_start_does_not_hold(store: Store) -> None:
    """The guard follows from key, scope and status alone."""
    store.given(instance(1, unique_key=b"a", unique_scope="{executing}"))
    assert store.row(1)["unique_guard"] is None
    assert store.insert(keyed("a"))[0].new
