"""Rows whose workers died: which crashes count, and which rows run apart."""

from __future__ import annotations

import time

from tests.support.rows import executing, instance, seconds
from tests.support.store import KNOWN, Store

from gen_durable.limits import Concurrency
from gen_durable.store.types import Commit, ReapedClaim

LATE = {"lease_expires_at": seconds(-1)}


def pick(
    store: Store,
    demand: int = 10,
    *,
    free: int | None = None,
    crashed: int | None = 0,
    last_chance: bool = False,
    queue: str = "default",
) -> list[int]:
    """The ids claimed."""
    statement = store.calls.pick(
        "w",
        {queue: demand},
        KNOWN,
        60,
        free=None if free is None else [free],
        crashed=crashed,
        last_chance=last_chance,
    )
    return [claim.id for claim in store.run(statement).claims]


def reap(store: Store, max_crashes: int | None = None) -> list[ReapedClaim]:
    return sorted(store.run(store.calls.reap(100, max_crashes)).claims, key=lambda row: row.id)


def die(store: Store) -> None:
    """The worker that has all claims dies."""
    store.given("update @schema.instances set lease_expires_at = now() - interval '1 s' where status = 'executing'")


def columns(store: Store, *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in names) for row in store.rows()]


def test_rows_beyond_the_free_slots_are_marked(store: Store) -> None:
    """In the update that claims them; a pick whose rows all start at once marks none."""
    store.given("".join(instance(n) for n in range(1, 6)))
    assert pick(store, 3, free=1) == [1, 2, 3]
    assert pick(store, 2) == [4, 5]
    assert columns(store, "claimed_ahead") == [(False,), (True,), (True,), (False,), (False,)]


def test_the_marks_follow_the_free_slots_of_each_queue(store: Store) -> None:
    store.given("".join(instance(n, queue="a") for n in (1, 2)) + "".join(instance(n, queue="b") for n in (3, 4, 5)))
    store.run(store.calls.pick("w", {"a": 2, "b": 3}, KNOWN, 60, free=[1, 2]))
    assert columns(store, "claimed_ahead") == [(False,), (True,), (False,), (False,), (True,)]


def test_a_crash_before_a_slot_was_free_is_not_counted_once(store: Store) -> None:
    """The row is not claimed ahead again, so its next crash is counted, until it has an outcome."""
    store.given("".join(instance(n) for n in (1, 2)))
    assert pick(store, 2, free=1) == [1, 2]
    die(store)
    assert [(row.id, row.crashes) for row in reap(store)] == [(1, 1), (2, 0)]
    assert columns(store, "attempt") == [(1,), (1,)]  # it may have begun
    assert pick(store, 2, free=0) == []
    assert pick(store, 2, free=1) == [1]
    assert pick(store, 2, free=0) == []
    assert pick(store, 2, free=1) == [2]
    die(store)
    assert [(row.id, row.crashes) for row in reap(store)] == [(1, 2), (2, 1)]
    assert pick(store, 2, free=0) == []


def test_a_row_that_was_claimed_ahead_does_not_fail(store: Store) -> None:
    """Nor does it enter the history as crashed."""
    store.given(executing(1, crashes=2, claimed_ahead=True, **LATE))
    assert reap(store, 3) == [ReapedClaim(1, "m", 1, "s", "default", 2, dead=False)]
    assert columns(store, "status", "blocked_on") == [("runnable", "last_chance/default")]
    assert store.sql("select * from @schema.transitions") == []


def test_an_outcome_forgets_the_mark(store: Store) -> None:
    store.given(executing(1, claimed_ahead=True))
    store.flush(Commit(1, 1, 0, "retry"))
    assert columns(store, "claimed_ahead", "crashes") == [(False, 0)]


def test_a_row_that_crashed_twice_leaves_the_queue(store: Store) -> None:
    """It waits at a gate of its own, in its place; one that the next crash would fail at another."""
    store.given("".join(executing(n, crashes=n - 1, eligible_at=seconds(-90), **LATE) for n in (1, 2, 3, 4)))
    assert [(row.id, row.crashes, row.dead) for row in reap(store, 5)] == [
        (1, 1, False), (2, 2, False), (3, 3, False), (4, 4, False),
    ]  # fmt: skip
    assert columns(store, "blocked_on") == [
        (None,), ("crashed/default",), ("crashed/default",), ("last_chance/default",),
    ]  # fmt: skip
    store.given(instance(5))
    assert pick(store) == [1, 5]


def crashed(store: Store, *ids: int, gate: str = "crashed", queue: str = "default", **columns: object) -> None:
    for number in ids:
        store.given(instance(number, crashes=2, blocked_on=f"{gate}/{queue}", queue=queue, **columns))


def test_as_many_as_asked_for_run(store: Store) -> None:
    """In their order among the others; the rest keep waiting."""
    crashed(store, 1, 2, 3)
    store.given(instance(4))
    assert pick(store, crashed=2) == [1, 2, 4]
    assert columns(store, "blocked_on") == [(None,), (None,), ("crashed/default",), (None,)]
    assert pick(store, crashed=0) == []
    assert pick(store, crashed=None) == [3]


def test_one_at_its_last_chance_runs_if_there_is_no_other(store: Store) -> None:
    crashed(store, 1, 2, gate="last_chance")
    crashed(store, 3)
    assert pick(store, crashed=5, last_chance=True) == [3]
    assert pick(store, crashed=5, last_chance=False) == []
    assert pick(store, crashed=5, last_chance=True) == [1]
    assert columns(store, "blocked_on") == [(None,), ("last_chance/default",), (None,)]


def test_one_at_its_last_chance_runs_without_those_of_other_queues(store: Store) -> None:
    crashed(store, 1, gate="last_chance", queue="a")
    crashed(store, 2, queue="b")
    crashed(store, 3, gate="last_chance", queue="b")
    statement = store.calls.pick("w", {"a": 5, "b": 5}, KNOWN, 60, crashed=5, last_chance=True)
    assert [claim.id for claim in store.run(statement).claims] == [1]


def test_they_are_not_claimed_ahead(store: Store) -> None:
    crashed(store, 1)
    assert pick(store, free=0, crashed=1) == []
    assert columns(store, "blocked_on") == [("crashed/default",)]
    assert pick(store, free=1, crashed=1) == [1]


def test_one_that_the_pick_does_not_reach_waits_again(store: Store) -> None:
    """More urgent rows take the demand: it must not stay among the others."""
    crashed(store, 1, priority=5)
    store.given(instance(2) + instance(3))
    assert pick(store, 2, crashed=1) == [2, 3]
    assert columns(store, "blocked_on") == [("crashed/default",), (None,), (None,)]


def test_they_keep_their_place_in_their_partition_key(store: Store) -> None:
    """A row behind it does not overtake it while it waits to run apart."""
    store.given(executing(1, crashes=1, partition_key="k", **LATE) + instance(2, partition_key="k"))
    assert [row.id for row in reap(store, 10)] == [1]
    assert pick(store) == []
    assert columns(store, "blocked_on") == [("crashed/default",), ("partition/k",)]
    store.run(store.calls.unblock_missed_rows(None, 100))
    assert pick(store) == []
    assert pick(store, crashed=1) == [1]


def test_a_slot_that_it_held_is_for_others(store: Store) -> None:
    """It takes a slot again when it runs."""
    store.given(executing(1, crashes=1, slot_key="stripe", **LATE) + instance(2, slot_key="stripe"))
    reap(store, 10)
    assert pick(store) == [2]
    assert store.run(store.calls.unblock_missed_rows(None, 100))[1] == []
    assert pick(store, crashed=1) == [1]


def test_one_that_is_given_back_waits_again(store: Store) -> None:
    """And for a row with a rest not before it is over."""
    crashed(store, 1, 2)
    picked = store.run(store.calls.pick("w", {"default": 2}, KNOWN, 60)).claims
    store.run(store.calls.release_claims([(1, picked[0].epoch, None, None), (2, picked[1].epoch, 5.0, "a rest")]))
    assert columns(store, "status", "blocked_on") == [("runnable", "last_chance/default")] * 2
    assert pick(store, crashed=5, last_chance=True) == [1]
    assert pick(store, crashed=5, last_chance=True) == []


def test_one_with_a_rest_does_not_hide_the_others(store: Store) -> None:
    crashed(store, 1, priority=-5, eligible_at=seconds(60))
    crashed(store, 2)
    assert pick(store, crashed=1) == [2]


def test_one_with_a_cancel_request_is_given_back_unblocked(store: Store) -> None:
    """It stays executing, for the reaper to end it."""
    store.given(executing(1, crashes=2, cancel_reason="stop"))
    store.run(store.calls.release_claims([(1, 1, None, None)]))
    assert columns(store, "status", "blocked_on") == [("executing", None)]


def test_a_queue_with_crashed_rows_comes_before_one_with_last_chances(store: Store) -> None:
    crashed(store, 1, queue="a")
    crashed(store, 2, gate="last_chance", queue="b")
    statement = store.calls.pick("w", {"a": 5, "b": 5}, KNOWN, 60, crashed=5, last_chance=True)
    assert [claim.id for claim in store.run(statement).claims] == [1]


def test_a_limit_with_the_name_of_the_queue_does_not_unblock_them(store: Store) -> None:
    """The gates of crashed rows are no limits: the search for lost wake-ups leaves them out."""
    store.run(store.calls.set_limit("default", Concurrency(5), declared=False))
    crashed(store, 1)
    crashed(store, 2, gate="last_chance")
    assert store.run(store.calls.unblock_missed_rows(None, 100))[1] == []
    assert columns(store, "blocked_on") == [("crashed/default",), ("last_chance/default",)]


def test_a_row_of_another_machine_stays(store: Store) -> None:
    """Another worker has the code."""
    crashed(store, 1, fsm="unknown")
    assert pick(store, crashed=5, last_chance=True) == []
    assert columns(store, "blocked_on") == [("crashed/default",)]


def test_many_of_them_cost_a_pick_nothing(store: Store) -> None:
    """Ten thousand at the head of a queue: a pick of others takes as long as without them."""
    store.given(
        "insert into @schema.instances (fsm, step, crashes, blocked_on, eligible_at)"
        " select 'm', 's', 2, 'crashed/default', now() - interval '1 h' from generate_series(1, 10000)"
    )
    store.given(
        "insert into @schema.instances (fsm, step, queue) select 'm', 's', q from"
        " unnest(array['default', 'other']) as queue (q), generate_series(1, 4000)"
    )
    store.given("analyze @schema.instances")
    took: dict[str, list[float]] = {"default": [], "other": []}
    for _ in range(40):
        for queue, times in took.items():
            began = time.perf_counter()
            assert len(pick(store, 100, queue=queue)) == 100
            times.append(time.perf_counter() - began)
    assert min(took["default"]) < 1.3 * min(took["other"])  # the least disturbed of each
