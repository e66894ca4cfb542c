"""Partition keys: a row that must wait leaves the pick index, and whoever frees its key lets it back."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from tests.support.machine import M, park, send
from tests.support.rows import executing, instance, parked, seconds
from tests.support.store import Store

from gen_durable.starts import Start
from gen_durable.store.blocked_rows import BlockedRows
from gen_durable.store.types import Commit

GATE = "partition/k"


def blocked(store: Store) -> list[int]:
    return [row["id"] for row in store.sql("select id from @schema.instances where blocked_on is not null order by id")]


def waiting(id: int, **columns: object) -> str:  # noqa: A002  # the column's name
    """A row that waits for the key."""
    return instance(id, partition_key="k", blocked_on=GATE, **{"eligible_at": seconds(-50 + id), **columns})


def test_of_one_insert_only_the_first_of_a_key_is_to_be_picked(store: Store) -> None:
    """By priority and then in the order handed in; rows of the future and without a key are not concerned."""
    store.insert(
        Start(M.s, {}, partition_key="k"),  # 101
        Start(M.s, {}, partition_key="k", priority=-1),  # 102: the head
        Start(M.s, {}, partition_key="k", priority=-5, delay=timedelta(hours=1)),
        Start(M.s, {}, partition_key="other"),
        Start(M.s, {}),
        Start(M.s, {}, partition_key="k"),
    )
    assert blocked(store) == [101, 106]
    assert [claim.id for claim in store.pick().claims] == [102, 104, 105]
    assert store.flush(Commit(102, 1, 0, "done")).follow_ups.queues == {"default"}
    assert [claim.id for claim in store.pick().claims] == [101]


def test_with_unique_keys_all_come_into_the_index(store: Store) -> None:
    """The first of the key may turn out a duplicate: then nobody would hand over to the others."""
    store.given(instance(1, unique_key=b"u", unique_scope="{runnable}", queue="elsewhere"))
    store.insert(
        Start(M.s, {}, partition_key="k", unique_key="u"), Start(M.s, {}, partition_key="k"), on_conflict="skip"
    )
    assert blocked(store) == []
    assert len(store.pick().claims) == 1


def test_a_pick_names_the_keys_that_rows_wait_for(store: Store) -> None:
    """With the first row of each, up to about a hundred keys; all rows are blocked."""
    for number in range(1, 131):
        store.given(executing(number, partition_key=f"k{number}") + instance(1000 + number, partition_key=f"k{number}"))
    groups = store.pick(10).blocked
    assert groups[0] == BlockedRows("partition/k1", "default", 1, 1001, "m")
    assert 100 <= len(groups) < 120
    assert len(blocked(store)) == 130


@pytest.mark.parametrize(
    ("outcome", "next_in_line"),
    [
        (Commit(1, 1, 0, "done"), 2),
        (Commit(1, 1, 0, "fail", error="no"), 2),
        (Commit(1, 1, 0, "retry", delay=60.0), 2),
        (Commit(1, 1, 0, "retry"), 2),  # it is due again, but after those who waited
        (Commit(1, 1, 0, "next", step="t"), 2),
        (Commit(1, 1, 0, "next", step="t", extra=json.dumps({"priority": -1})), 1),
        (Commit(1, 1, 0, "next", step="t", extra=json.dumps({"partition_key": "new", "left": ["partition/k"]})), 2),
        (Commit(1, 1, 0, "next", step="t", extra=json.dumps({"partition_key": None, "left": ["partition/k"]})), 2),
        (park(1, "go"), 2),
        (Commit(1, 1, 0, "children", step="t", extra=json.dumps({"children": []})), 2),
    ],
    ids=lambda value: None if isinstance(value, int) else f"{value.kind} {value.extra or value.delay or ''}",
)
def test_an_outcome_hands_the_key_over(store: Store, outcome: Commit, next_in_line: int) -> None:
    """However the holder leaves: the first of the key runs next."""
    store.given(executing(1, partition_key="k") + waiting(2) + waiting(3))
    assert store.flush(outcome).follow_ups.queues >= {"default"}
    claims = [claim for claim in store.pick().claims if claim.partition_key == "k"]
    assert [claim.id for claim in claims] == [next_in_line]


def test_a_held_step_keeps_the_key(store: Store) -> None:
    """Running ahead does not let others of the key in between."""
    store.given(executing(1, partition_key="k") + waiting(2))
    assert store.flush(Commit(1, 1, 0, "continue", step="t")).follow_ups.queues == set()
    assert store.pick().claims == []
    assert blocked(store) == [2]


def test_a_stale_outcome_hands_nothing_over(store: Store) -> None:
    """The key belongs to the new claim."""
    store.given(executing(1, partition_key="k", claims=2) + waiting(2))
    assert store.flush(Commit(1, 1, 0, "done")).stale_ids == {1}
    assert blocked(store) == [2]


def test_a_release_hands_the_key_over(store: Store) -> None:
    """A row that is given back for a while lets the next one run; one that was merely not begun stays the first."""
    store.given(executing(1, partition_key="k", eligible_at=seconds(-99)) + waiting(2))
    store.run(store.calls.release_claims([(1, 1, None, None)]))
    assert [claim.id for claim in store.pick().claims] == [1]
    store.run(store.calls.release_claims([(1, 3, 60.0, "undecodable")]))
    assert [claim.id for claim in store.pick().claims] == [2]


def test_the_reaper_hands_the_key_of_a_failed_row_over(store: Store) -> None:
    """A crash loop ends, and the next of the key runs; a row taken back stays the first."""
    store.given(executing(1, partition_key="k", lease_expires_at=seconds(-5), eligible_at=seconds(-99)) + waiting(2))
    store.run(store.calls.reap(10, None))
    assert [claim.id for claim in store.pick().claims] == [1]
    store.given("update @schema.instances set lease_expires_at = now() - interval '1 second' where id = 1")
    assert store.run(store.calls.reap(10, 1)).follow_ups.queues == {"default"}
    assert [claim.id for claim in store.pick().claims] == [2]


def test_the_head_may_be_in_another_queue(store: Store) -> None:
    """The commit names the queue of the row that is next; and so does a pick that finds a row before its own."""
    store.given(executing(1, partition_key="k") + waiting(2, queue="other"))
    assert store.flush(Commit(1, 1, 0, "done")).follow_ups.queues == {"other"}
    store.given("delete from @schema.instances;" + waiting(3, queue="other") + instance(4, partition_key="k"))
    picked = store.pick()
    assert (picked.claims, picked.woken_queues) == ([], {"other"})
    assert [claim.id for claim in store.pick(other=1).claims] == [3]
    assert blocked(store) == [4]


def test_a_blocked_row_whose_deadline_has_passed_still_gets_its_signal(store: Store) -> None:
    """It waits for its key; the signal makes it runnable, not due."""
    store.given(executing(1, partition_key="k") + parked(2, partition_key="k", await_deadline=seconds(-1)))
    assert store.pick().claims == []
    assert blocked(store) == [2]
    store.signal(send(2))
    assert (store.row(2)["status"], store.row(2)["due_at"]) == ("runnable", None)
    store.flush(Commit(1, 1, 0, "done"))
    (claim,) = store.pick().claims
    assert (claim.id, [signal.name for signal in claim.inbox]) == (2, ["go"])


def test_a_deep_backlog_is_walked_over_once(store: Store) -> None:
    """5,000 rows of a hot key came in one by one, in front of others: they are blocked by the thousand."""
    store.given(
        executing(1, partition_key="hot") + "insert into @schema.instances (fsm, step, partition_key, eligible_at)"
        " select 'm', 's', 'hot', now() - interval '1 hour' from generate_series(1, 5000);"
        + "".join(instance(i) for i in range(2, 32))
    )
    found: list[int] = []
    picks = 0
    while len(found) < 20:
        found += [claim.id for claim in store.pick(10).claims]
        picks += 1
    assert picks <= 5
    assert len(blocked(store)) == 5000
    still = "select count(*) as n from @schema.instances where due_at is not null and partition_key = 'hot'"
    assert store.sql(still)[0]["n"] == 0  # none of them is in the pick index


def test_the_sweep_finds_what_was_stranded(store: Store) -> None:
    """A key without a holder is handed over; where all is well nothing is written; it goes on where it has stopped."""
    store.given(
        "".join(instance(i, partition_key=f"k{i}", blocked_on=f"partition/k{i}") for i in (1, 2, 3))
        + executing(4, partition_key="k2")
    )
    last, woken = store.run(store.calls.unblock_missed_rows(None, 2))
    assert (last, woken, blocked(store)) == ("partition/k2", ["default"], [2, 3])
    last, woken = store.run(store.calls.unblock_missed_rows(last, 2))
    assert (last, woken, blocked(store)) == (None, ["default"], [2])
    before = store.sql("select xmin::text, ctid::text from @schema.instances order by id")
    assert store.run(store.calls.unblock_missed_rows(None, 10)) == (None, [])
    assert store.sql("select xmin::text, ctid::text from @schema.instances order by id") == before


def test_thousands_of_keys_do_not_fill_the_lock_table(store: Store) -> None:
    """Rows are locked, however many keys one pick and one commit deal with: the server's lock table has tables only."""
    store.given(
        "insert into @schema.instances (fsm, step, partition_key)"
        " select 'm', 's', 'key ' || n from generate_series(1, 5000) as n;"
    )
    counting = "select count(*) as n from pg_locks where pid = pg_backend_pid()"
    store.given("begin")
    claims = store.pick(5000).claims
    assert len(claims) == 5000
    assert store.sql(counting)[0]["n"] <= 100
    store.given("commit")
    store.given("begin")
    store.flush(*(Commit(claim.id, 1, 0, "done") for claim in sorted(claims, key=lambda claim: claim.id)))
    assert store.sql(counting)[0]["n"] <= 100
    store.given("commit")
