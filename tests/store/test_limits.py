"""Limits: slots and tokens, one statement at a time."""

from __future__ import annotations

import json
from datetime import timedelta

import asyncpg
import pytest
from tests.support.machine import KNOWN, M
from tests.support.store import Store

from gen_durable.limits import Concurrency, Limit, Rate
from gen_durable.starts import Start
from gen_durable.store.blocked_rows import merge_blocked_rows
from gen_durable.store.types import Commit, PickResult


def ids(store: Store, demand: int = 10, **queues: int) -> list[int]:
    return [claim.id for claim in store.pick(demand, **queues).claims]


def blocked(store: Store) -> dict[int, str]:
    rows = store.sql("select id, blocked_on from @schema.instances where blocked_on is not null order by id")
    return {row["id"]: row["blocked_on"] for row in rows}


def limit(store: Store, name: str, policy: Concurrency | Rate) -> None:
    store.run(store.calls.set_limit(name, policy, declared=False))


def one_by_one(store: Store, count: int, **options: object) -> None:
    for _ in range(count):
        store.insert(Start(M.s, {}, **options))  # type: ignore[arg-type]


def test_so_many_at_a_time(store: Store) -> None:
    limit(store, "l", Concurrency(2))
    one_by_one(store, 5, limit="l")  # 101 to 105
    assert ids(store) == [101, 102]
    assert blocked(store) == dict.fromkeys((103, 104, 105), "slot/l")
    assert ids(store) == []
    assert store.flush(Commit(102, 1, 0, "done")).follow_ups.queues == {"default"}
    assert ids(store) == [103]
    assert blocked(store) == dict.fromkeys((104, 105), "slot/l")


def test_a_batch_comes_in_as_many_as_can_run(store: Store) -> None:
    limit(store, "l", Concurrency(2))
    store.insert(*[Start(M.s, {}, limit="l") for _ in range(5)])
    assert list(blocked(store)) == [103, 104, 105]
    assert ids(store) == [101, 102]
    store.flush(Commit(101, 1, 0, "done"), Commit(102, 1, 0, "done"))
    assert ids(store) == [103, 104]


@pytest.mark.parametrize("policy", [Concurrency(1), Rate(1, timedelta(days=1))], ids=["slots", "tokens"])
def test_a_crowd_behind_does_not_block_what_was_let_run(store: Store, policy: Concurrency | Rate) -> None:
    """A pick that goes on behind many blocked rows, and then blocks a limit's crowd, keeps what it has let run."""
    limit(store, "l", policy)
    limit(store, "crowded", Concurrency(1))
    one_by_one(store, 1, limit="l")  # 101
    one_by_one(store, 11, limit="crowded")  # 102 to 112
    one_by_one(store, 1, limit="l")  # 113
    assert ids(store, 12) == [101, 102]
    assert store.row(113)["blocked_on"] is not None or store.row(113)["token_at"] is not None


@pytest.mark.parametrize(
    ("policy", "gate"), [(Concurrency(1), "slot/l"), (Rate(1, timedelta(days=1)), "rate/l")], ids=["slots", "tokens"]
)
def test_a_pick_tells_how_many_it_has_blocked(store: Store, policy: Concurrency | Rate, gate: str) -> None:
    """All of them: those that it came to one after the other, and those that it blocked because they are a crowd."""
    limit(store, "l", policy)
    one_by_one(store, 9, limit="l")
    assert counts(store.pick(4)) == {(gate, 8)}
    assert ids(store) == []
    one_by_one(store, 100, limit="l")
    assert counts(store.pick(20)) == {(gate, 100)}


def counts(picked: PickResult) -> set[tuple[str, int]]:
    return {(group.gate, group.count) for group in merge_blocked_rows(picked.blocked)}


def test_partitions_are_limits_of_their_own(store: Store) -> None:
    limit(store, "l", Concurrency(1))
    store.insert(*[Start(M.s, {}, limit=("l", tenant)) for tenant in ("a", "a", "b", "b/c", "b")])
    assert ids(store) == [101, 103, 104]
    assert blocked(store) == {102: "slot/l/a", 105: "slot/l/b"}


@pytest.mark.parametrize(
    "outcome",
    [
        Commit(101, 1, 0, "done"),
        Commit(101, 1, 0, "fail", error="no"),
        Commit(101, 1, 0, "retry", delay=60.0),
        Commit(101, 1, 0, "next", step="t", extra=json.dumps({"limits": []})),
        Commit(101, 1, 0, "await", extra=json.dumps({"awaits": ["x"], "seen": []})),
        Commit(101, 1, 0, "children", step="t", extra=json.dumps({"limits": [], "children": []})),
    ],
    ids=lambda commit: commit.kind,
)
def test_every_outcome_gives_the_slot_back(store: Store, outcome: Commit) -> None:
    limit(store, "l", Concurrency(1))
    one_by_one(store, 2, limit="l")
    assert ids(store) == [101]
    assert ids(store) == []
    assert store.flush(outcome).follow_ups.queues >= {"default"}
    assert 102 in ids(store)


def test_the_reaper_and_release_give_slots_back(store: Store) -> None:
    limit(store, "l", Concurrency(1))
    one_by_one(store, 3, limit="l")
    assert ids(store) == [101]
    assert ids(store) == []
    store.run(store.calls.release_claims([(101, 1, 60.0, "no")]))
    assert ids(store) == [102]
    store.sql("update @schema.instances set lease_expires_at = now() - interval '1 s' where id = 102")
    store.run(store.calls.reap(10, 1))
    assert ids(store) == [103]


def test_tokens(store: Store) -> None:
    """Three at once, then one a minute: the first that waits is told the moment, the others wait behind it."""
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=3))
    one_by_one(store, 6, limit="r")
    picked = store.pick()
    assert [c.id for c in picked.claims] == [101, 102, 103]
    assert blocked(store) == dict.fromkeys((105, 106), "rate/r")
    assert picked.unmet[0].next_due == pytest.approx(60, abs=1)
    (told,) = store.sql("select extract(epoch from token_at - now())::float8 as s from @schema.instances where id=104")
    assert told["s"] == pytest.approx(60, abs=1)
    pass_by(store, 61)
    assert ids(store) == [104]
    assert blocked(store) == {106: "rate/r"}
    pass_by(store, 180)
    assert ids(store) == [105]  # it was told its moment
    assert ids(store) == [106]


def pass_by(store: Store, seconds: float) -> None:
    """Time passes."""
    store.sql(
        "update @schema.instances set token_at = token_at - make_interval(secs => $1),"
        " eligible_at = eligible_at - make_interval(secs => $1)",
        seconds,
    )
    store.sql("update @schema.rate_buckets set drained_until = drained_until - make_interval(secs => $1)", seconds)


def test_weights(store: Store) -> None:
    """A heavy row is not overtaken by light ones."""
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=5))
    for weight in (3, 3, 1):
        store.insert(Start(M.s, {}, limit=Limit("r", weight=weight)))
    assert ids(store) == [101]
    pass_by(store, 60)
    assert ids(store) == [102]
    pass_by(store, 59)
    assert ids(store) == []
    pass_by(store, 2)
    assert ids(store) == [103]


def test_both_kinds_on_one_step(store: Store) -> None:
    limit(store, "l", Concurrency(1))
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=2))
    one_by_one(store, 4, limit=["l", "r"])
    assert ids(store) == [101]
    assert ids(store) == []
    store.flush(Commit(101, 1, 0, "done"))
    assert ids(store) == [102]
    store.flush(Commit(102, 1, 0, "done"))
    assert ids(store) == []  # a slot is free, but there is no token
    pass_by(store, 61)
    assert ids(store) == [103]


def test_more_slots_and_fewer_while_rows_execute(store: Store) -> None:
    limit(store, "l", Concurrency(2))
    one_by_one(store, 8, limit="l")
    assert ids(store) == [101, 102]
    limit(store, "l", Concurrency(4))
    assert ids(store) == [103, 104]
    limit(store, "l", Concurrency(1))
    for done in (101, 102, 103):
        store.flush(Commit(done, 1, 0, "done"))
        assert ids(store) == []
    store.flush(Commit(104, 1, 0, "done"))
    assert ids(store) == [105]


def test_a_faster_rate_tells_the_waiting_anew(store: Store) -> None:
    limit(store, "r", Rate(1, timedelta(days=1)))
    one_by_one(store, 4, limit="r")
    assert ids(store) == [101]
    assert ids(store) == []
    limit(store, "r", Rate(100, timedelta(seconds=1), burst=10))
    assert ids(store) == [102, 103, 104]


def test_a_limit_that_was_removed_holds_nobody(store: Store) -> None:
    limit(store, "l", Concurrency(1))
    limit(store, "r", Rate(1, timedelta(days=1)))
    one_by_one(store, 3, limit="l")
    one_by_one(store, 3, limit="r")
    assert ids(store) == [101, 104]
    assert ids(store) == []
    store.run(store.calls.remove_limit("l"))
    store.run(store.calls.remove_limit("r"))
    assert ids(store) == [102, 103, 105, 106]


def test_a_limit_across_queues_of_which_one_has_no_worker(store: Store) -> None:
    """Rows that were let back into a queue that nobody serves do not keep the slot from another's."""
    limit(store, "l", Concurrency(1))
    for queue in ("default", "a", "a", "b", "b"):
        store.insert(Start(M.s, {}, limit="l", queue=queue))
    assert ids(store, default=5, a=5, b=5) == [101]
    assert len(blocked(store)) == 4
    store.flush(Commit(101, 1, 0, "done"))
    assert ids(store, b=5) == [104]


def test_refused(store: Store) -> None:
    limit(store, "l", Concurrency(1))
    limit(store, "m", Concurrency(1))
    limit(store, "r", Rate(1, timedelta(days=1), burst=2))
    for names, code in (
        ("x", "GD002"),
        (Limit("r", weight=3), "GD003"),
        (Limit("l", weight=2), "GD003"),
        (["l", "m"], "GD004"),
    ):
        with pytest.raises(asyncpg.PostgresError) as refused:
            store.insert(Start(M.s, {}, limit=names))  # type: ignore[arg-type]
        assert refused.value.sqlstate == code
    with pytest.raises(asyncpg.PostgresError) as refused:
        limit(store, "l", Rate(1, timedelta(days=1)))
    assert refused.value.sqlstate == "GD005"
    assert store.rows() == []


def test_what_code_declares_does_not_undo_what_an_operator_changed(store: Store) -> None:
    def slots() -> int:
        return int(store.sql("select slots from @schema.limits")[0]["slots"])

    assert store.run(store.calls.set_limit("l", Concurrency(5), declared=True))[0]
    assert store.run(store.calls.set_limit("l", Concurrency(2), declared=False))[0]
    assert not store.run(store.calls.set_limit("l", Concurrency(5), declared=True))[0]
    assert slots() == 2
    assert store.run(store.calls.set_limit("l", Concurrency(6), declared=True))[0]
    assert slots() == 6


def test_order_in_a_partition_key_holds_at_a_limit(store: Store) -> None:
    """The head of a key waits for a slot: nobody of the key overtakes it, though he needs none."""
    limit(store, "l", Concurrency(1))
    store.insert(Start(M.s, {}, limit="l"))  # 101 takes the slot
    assert ids(store) == [101]
    store.insert(Start(M.s, {}, limit="l", partition_key="k"))
    store.insert(Start(M.s, {}, partition_key="k"))
    assert ids(store) == []
    assert blocked(store) == {102: "slot/l", 103: "partition/k"}
    store.flush(Commit(101, 1, 0, "done"))
    assert ids(store) == [102]
    store.flush(Commit(102, 1, 0, "done"))
    assert ids(store) == [103]


def test_order_in_a_partition_key_holds_at_a_rate(store: Store) -> None:
    limit(store, "r", Rate(1, timedelta(minutes=1)))
    store.insert(Start(M.s, {}, limit="r"))
    assert ids(store) == [101]
    store.insert(Start(M.s, {}, limit="r", partition_key="k"))
    store.insert(Start(M.s, {}, partition_key="k"))
    assert ids(store) == []
    pass_by(store, 61)
    assert ids(store) == [102]
    store.flush(Commit(102, 1, 0, "done"))
    assert ids(store) == [103]


def test_limits_as_they_stand(store: Store) -> None:
    limit(store, "l", Concurrency(2))
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=2))
    limit(store, "unused", Concurrency(9))
    one_by_one(store, 3, limit=("l", "a"))
    one_by_one(store, 4, limit="r")
    store.pick()
    rows = {(s.name, s.key): (s.taken, s.waiting) for s in store.run(store.calls.limit_states())}
    assert rows == {("l", "l/a"): (2, 1), ("r", "r"): (2, 2), ("unused", None): (0, 0)}


def test_turns(store: Store) -> None:
    """Of a thousand rows of one tenant and one each of two others, each tenant has one in the first three."""
    store.insert(*[Start(M.s, {}, group=("tenant", "big")) for _ in range(1000)])
    store.insert(Start(M.s, {}, group=("tenant", "small")), Start(M.s, {}, group=("tenant", "tiny")))
    store.insert(Start(M.s, {}))
    turn: str | None = None
    seen: list[int] = []
    for _ in range(2):
        told = json.dumps({"default": ["tenant", turn]})
        picked = store.run(store.calls.pick("w", {"default": 2}, KNOWN, 60, fair=told))
        assert len(picked.claims) == 2
        turn = picked.last_groups["default"]
        seen += [c.id for c in picked.claims]
    assert {1101, 1102} <= set(seen)


def test_limits_are_those_of_the_step_that_comes(store: Store) -> None:
    """Into a limited step, on to another with a rate, and out again; the same step again keeps its own."""
    limit(store, "l", Concurrency(1))
    limit(store, "r", Rate(1, timedelta(minutes=1), burst=3))
    store.insert(Start(M.s, {}))
    assert store.pick().claims[0].limited is None
    store.flush(Commit(101, 1, 0, "next", step="t", extra=json.dumps({"limits": [["l", "a", 1]]})))
    assert store.row(101)["slot_key"] == "l/a"
    assert store.pick().claims[0].limited == "l/a"
    store.flush(Commit(101, 2, 1, "retry"))
    assert store.row(101)["slot_key"] == "l/a"
    assert store.pick().claims[0].limited == "l/a"
    store.flush(Commit(101, 3, 2, "next", step="s", extra=json.dumps({"limits": [["r", None, 2]]})))
    row = store.row(101)
    assert (row["slot_key"], row["rate_key"], row["weight"]) == (None, "r", 2)
    assert store.pick().claims[0].limited == ""
    store.flush(Commit(101, 4, 3, "next", step="t", extra=json.dumps({"limits": []})))
    row = store.row(101)
    assert (row["slot_key"], row["rate_key"], row["weight"]) == (None, None, None)


def test_an_unknown_limit_at_an_outcome_refuses_the_batch(store: Store) -> None:
    """The worker finds out by halves which of them it was; nothing of the batch is written."""
    one_by_one(store, 2)
    assert ids(store) == [101, 102]
    with pytest.raises(asyncpg.PostgresError) as refused:
        store.flush(
            Commit(101, 1, 0, "done"),
            Commit(102, 1, 0, "next", step="t", extra=json.dumps({"limits": [["nope", None, 1]]})),
        )
    assert refused.value.sqlstate == "GD002"
    assert store.row(101)["status"] == "executing"
