"""Limits in corners: what a pick, a hand-over or a change of policy must not do to rows that wait."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from tests.store.test_limits import blocked, ids, limit, one_by_one, pass_by
from tests.support.machine import M
from tests.support.rows import executing, instance, seconds
from tests.support.store import Store

from gen_durable.limits import Concurrency, Limit, Rate
from gen_durable.starts import Start
from gen_durable.store.types import Commit

DAY = timedelta(days=1)


@pytest.mark.parametrize("policy", [Concurrency(2), Rate(1, DAY, burst=2)])
def test_a_crowd_does_not_take_along_who_may_run(store: Store, policy: Concurrency | Rate) -> None:
    """A pick passes over so many rows of a gate that it blocks all that are behind: not those it has let run."""
    limit(store, "l", policy)
    one_by_one(store, 40, limit="l")
    assert ids(store) == [101, 102]


def test_a_crowd_in_another_queue(store: Store) -> None:
    limit(store, "l", Concurrency(2))
    one_by_one(store, 2, limit="l", queue="a")
    one_by_one(store, 20, limit="l", queue="b")
    assert ids(store, a=10, b=10) == [101, 102]


def test_a_row_whose_key_is_busy_does_not_keep_a_slot_from_others(store: Store) -> None:
    """A slot falls free; the row that could be picked for it must wait for its partition key: another gets the slot."""
    limit(store, "l", Concurrency(1))
    store.insert(Start(M.s, {}, partition_key="k"))
    store.insert(Start(M.s, {}, limit="l"))
    assert ids(store) == [101, 102]
    store.insert(Start(M.s, {}, limit="l"))
    assert ids(store) == []
    store.insert(Start(M.s, {}, limit="l", partition_key="k"))
    store.flush(Commit(102, 1, 0, "done"))
    picked = store.pick()
    assert picked.claims or "default" in picked.woken_queues
    assert [c.id for c in picked.claims] or ids(store) == [103]


def test_a_row_let_back_that_is_overtaken_in_its_key(store: Store) -> None:
    limit(store, "l", Concurrency(1))
    store.insert(Start(M.s, {}, limit="l"))
    assert ids(store) == [101]
    store.insert(Start(M.s, {}, limit="l", partition_key="k"))
    store.insert(Start(M.s, {}, limit="l"))
    assert ids(store) == []
    store.insert(Start(M.s, {}, partition_key="k", priority=-1))
    assert ids(store) == []
    store.flush(Commit(101, 1, 0, "done"))  # lets 102 back; 104 is before it
    assert sorted(ids(store) + ids(store)) == [103, 104]


def test_weight_above_a_burst_that_has_shrunk(store: Store) -> None:
    """A row that asks for more than there can ever be gets all there is; it does not stall those behind it."""
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=5))
    store.insert(Start(M.s, {}, limit=Limit("r", weight=5)))
    assert ids(store) == [101]
    store.insert(Start(M.s, {}, limit=Limit("r", weight=5)))
    store.insert(Start(M.s, {}, limit="r"))
    assert ids(store) == []
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=2))
    pass_by(store, 121)
    assert ids(store) == [102]
    pass_by(store, 61)
    assert ids(store) == [103]


def test_a_burst_that_has_shrunk_leaves_no_debt(store: Store) -> None:
    """Of a bucket of 100 all are gone; then it is one of 1. The next token comes after one period, not after 99."""
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=100))
    store.insert(*[Start(M.s, {}, limit="r") for _ in range(101)])
    assert len(ids(store, 200)) == 100
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=1))
    assert ids(store) == []
    pass_by(store, 61)
    assert ids(store) == [201]


def test_a_limit_made_anew_begins_with_a_full_bucket(store: Store) -> None:
    limit(store, "r", Rate(1, DAY))
    one_by_one(store, 2, limit=("r", "x"))
    assert ids(store) == [101]
    store.run(store.calls.remove_limit("r"))
    limit(store, "r", Rate(10, timedelta(seconds=1)))
    assert ids(store) == [102]


def test_a_limit_made_anew_of_the_other_kind(store: Store) -> None:
    """More rows waited for its slots than are let back at a time; as a rate limit it has no slots to wait for."""
    limit(store, "l", Concurrency(1))
    store.insert(*[Start(M.s, {}, limit="l") for _ in range(1200)])
    store.run(store.calls.remove_limit("l"))
    limit(store, "l", Rate(1, DAY))
    assert len(ids(store, 2000)) + len(ids(store, 2000)) == 1200


def test_unknown_rows_at_the_head_do_not_keep_slots_for_long(store: Store) -> None:
    """Nobody runs the row that was let back: after a while it does not count, and flushes let others back."""
    limit(store, "l", Concurrency(1))
    store.given(
        instance(1, slot_key="l", fsm="stranger", eligible_at=seconds(-99), updated_at=seconds(-99))
        + executing(2, slot_key="l")
        + "".join(instance(i, slot_key="l", blocked_on="slot/l", eligible_at=seconds(i - 50)) for i in range(3, 7))
    )
    for done in range(2, 6):
        store.flush(Commit(done, 1, 0, "done"))
        assert ids(store) == [done + 1]
    assert blocked(store) == {}


def test_a_crowd_of_a_rate_does_not_keep_slots(store: Store) -> None:
    """A due row with a slot is blocked for its tokens, with a crowd behind others: its slot is not lost with it."""
    limit(store, "l", Concurrency(1))
    limit(store, "r", Rate(1, DAY))
    one_by_one(store, 1, limit=["l", "r"])
    assert ids(store) == [101]
    one_by_one(store, 2, limit="l")
    assert ids(store) == []
    store.insert(Start(M.s, {}, limit=["l", "r"], queue="b", priority=1))
    store.insert(Start(M.s, {}, limit="l", queue="b", priority=2))
    assert ids(store, b=5) == []
    store.flush(Commit(101, 1, 0, "done"))  # lets back one in each queue
    one_by_one(store, 15, limit="r", queue="c")
    assert ids(store, c=20) == []
    assert ids(store, b=5) + ids(store, b=5) == [105]


def test_the_sweep_does_not_fill_a_queue_that_nobody_serves(store: Store) -> None:
    """It lets all that have slots back once; as long as nobody picks them, one more each time."""
    limit(store, "l", Concurrency(5))
    store.given("".join(instance(i, slot_key="l", blocked_on="slot/l") for i in range(1, 21)))
    waiting = []
    for _ in range(4):
        store.run(store.calls.unblock_missed_rows(None, 10))
        waiting.append(len(blocked(store)))
        store.sql("update @schema.instances set updated_at = now() - interval '6 seconds'")
    assert waiting == [15, 14, 13, 12]


def test_the_sweep_gets_past_unknown_rows(store: Store) -> None:
    limit(store, "l", Concurrency(3))
    store.given(
        "".join(
            instance(i, slot_key="l", fsm="stranger", eligible_at=seconds(-99), updated_at=seconds(-99))
            for i in range(1, 4)
        )
        + "".join(instance(i, slot_key="l", blocked_on="slot/l", eligible_at=seconds(i - 50)) for i in range(4, 12))
    )
    store.run(store.calls.unblock_missed_rows(None, 10))
    assert ids(store) == [4, 5, 6]
    store.flush(Commit(4, 1, 0, "done"))
    assert ids(store) == [7]


def test_strangers_first_in_a_batch(store: Store) -> None:
    """Of rows inserted together as many of each machine come in as there are slots."""
    limit(store, "l", Concurrency(1))
    names = ["stranger", "stranger", "m", "m"]
    store.sql(
        "select @schema.insert($1, array[1,1,1,1], array['s','s','s','s'], array['{}','{}','{}','{}']::jsonb[],"
        " array['default','default','default','default'], '{}', '{}', '{}', '{}', '{}', '{}', 'raise',"
        """ array['[["l",null,1]]','[["l",null,1]]','[["l",null,1]]','[["l",null,1]]']::jsonb[])""",
        names,
    )
    assert ids(store) == [103]


def test_leaving_a_limit_by_an_outcome_and_its_gate_is_shared(store: Store) -> None:
    """Two rows leave by one flush: two are let back."""
    limit(store, "l", Concurrency(2))
    one_by_one(store, 5, limit="l")
    assert ids(store) == [101, 102]
    assert ids(store) == []
    left = json.dumps({"limits": []})
    store.flush(*(Commit(i, 1, 0, "next", step="t", extra=left) for i in (101, 102)))
    assert sorted(ids(store)) == [101, 102, 103, 104]
