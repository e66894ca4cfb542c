"""Guards that only a corner needs: each of these rows would slip through if one condition were not asked."""

from __future__ import annotations

import json

import pytest
from tests.store.test_no_waiting import pick
from tests.support.machine import KNOWN, send
from tests.support.rows import ended, executing, instance, parent, parked, seconds
from tests.support.store import Store

from gen_durable.limits import Concurrency
from gen_durable.store.journal import JournalStatementBuilder, ProgressReport
from gen_durable.store.types import NO_FOLLOW_UPS, Commit

CASCADE = "insert into @schema.cascades (parent_id, first_round, last_round, origin, reason) "


def test_only_claims_that_live_and_are_marked_are_asked(store: Store) -> None:
    """Not one that nobody cancels, and not one whose owner has ended it meanwhile."""
    store.given(executing(1) + executing(2, cancel_reason="why") + executing(3, cancel_reason="why"))
    store.flush(Commit(3, 1, 0, "done", value="1"))
    assert store.run(store.calls.cancel_requests_of([(1, 1), (2, 1), (3, 1)])) == {2: "why"}


def test_what_ends_at_once_is_not_marked(store: Store) -> None:
    """And nobody is rung for it: there is no worker to be told."""
    store.given(parked(1))
    assert store.run(store.calls.cancel([(1, None)], "why", cascade=False))[1] == NO_FOLLOW_UPS
    assert store.row(1)["cancel_reason"] is None


def test_the_oldest_of_the_list_come_first(store: Store) -> None:
    """A turn takes fifty: the fifty-first waits, however many come after it."""
    store.given("".join(ended(i) for i in range(1, 53)))
    store.given(CASCADE + "select i, 0, 1, i, 'why' from generate_series(1, 52) as i order by i")
    store.run(store.calls.cancel_listed_descendants(1000, None))
    assert [row["parent_id"] for row in store.sql("select * from @schema.cascades")] == [51, 52]


def test_a_marked_child_is_not_asked_again(store: Store) -> None:
    store.given(
        ended(1, round=1)
        + executing(2, parent_id=1, parent_round=1, cancel_reason="before")
        + executing(3, parent_id=1, parent_round=1)
        + CASCADE
        + "values (1, 0, 1, 1, 'why')"
    )
    cascaded = store.run(store.calls.cancel_listed_descendants(10, None))
    assert (cascaded.ended, cascaded.requested) == (0, 1)
    assert [store.row(i)["cancel_reason"] for i in (2, 3)] == ["before", "why"]


@pytest.mark.dirty  # a cascade that nobody carries out
def test_the_reaper_rings_for_the_oldest_cascade(store: Store) -> None:
    """One that has just been written down does not hide it."""
    store.given(ended(1) + ended(2) + CASCADE + "values (1, 0, 1, 1, 'why'), (2, 0, 1, 2, 'why')")
    store.sql("update @schema.cascades set inserted_at = now() - interval '9 seconds' where parent_id = 1")
    assert None in store.run(store.calls.reap(10, None)).follow_ups.cascade_origins


def test_the_reaper_keeps_a_key_whose_scope_has_cancelled(store: Store) -> None:
    late = {"lease_expires_at": seconds(-1), "cancel_reason": "why"}
    store.given(executing(1, unique_key=b"k", unique_scope="{executing,cancelled}", **late))
    store.run(store.calls.reap(10, None))
    assert (store.row(1)["status"], bytes(store.row(1)["unique_guard"])) == ("cancelled", b"k")


def test_a_marked_row_that_is_given_back_keeps_its_key(store: Store) -> None:
    """It still executes, for all that others see."""
    store.given(executing(1, unique_key=b"k", unique_scope="{executing}", cancel_reason="why"))
    store.run(store.calls.release_claims([(1, 1, None, None)]))
    assert bytes(store.row(1)["unique_guard"]) == b"k"


def test_a_claim_that_has_parked_is_not_given_back(store: Store) -> None:
    """Its owner's outcome has come first; the claim has the same number still."""
    store.given(parked(1))
    assert store.run(store.calls.release_claims([(1, 1, None, None)])).ids == []
    assert store.row(1)["status"] == "awaiting_signal"


def test_a_beat_gives_no_lease_to_a_row_that_has_parked(store: Store) -> None:
    store.given(parked(1))
    assert store.run(store.calls.heartbeat([(1, 1)], 60)) == []
    assert store.row(1)["lease_expires_at"] is None


def test_a_child_goes_with_its_ended_parent(store: Store) -> None:
    """By age and by hand: only a parent that has not ended keeps its children."""
    store.given(ended(1) + ended(2, parent_id=1, parent_round=0) + ended(3, parent_id=1, parent_round=0))
    (removed,) = store.sql("select deleted, waiting from @schema.delete_instance(2)")
    assert tuple(removed) == (True, None)
    assert store.run(store.calls.gc(60, 60, 60, 10)).deleted == 2


def test_a_report_of_a_lost_claim_changes_nothing(store: Store) -> None:
    """Alone, or in one batch with one of the claim that took over."""
    journal = JournalStatementBuilder(store.schema)
    store.given(executing(1, claims=2))
    assert store.run(journal.record_progress([ProgressReport(1, 1, "s", "", 0.1, None, None)])) == set()
    assert not store.row(1)["has_journal"]
    both = [ProgressReport(1, 2, "s", "", 0.2, None, None), ProgressReport(1, 1, "s", "", 0.1, None, None)]
    assert store.run(journal.record_progress(both)) == set()
    assert [r.fraction for r in store.run(journal.progress(1, None))] == [0.2]


def test_of_a_thousand_without_a_group_the_oldest_runs(store: Store) -> None:
    """A fair queue looks at the thousand oldest of them."""
    store.sql(
        "insert into @schema.instances (id, fsm, step, eligible_at) overriding system value"
        " select 2000 - i, 'm', 's', now() - make_interval(secs => i) from generate_series(1, 1001) as i"
    )
    assert pick(store, 1, kind="t") == [999]


def test_groups_take_turns_in_the_order_of_their_names(store: Store) -> None:
    """And within a group the oldest is first, whatever was taken before."""
    store.given("".join(instance(i, group_key=f"t/{g}", eligible_at=seconds(-i)) for i, g in enumerate("abcabc", 1)))
    assert sorted(pick(store, 2, kind="t")) == [4, 5]


def test_a_slot_is_offered_in_every_queue_that_waits_for_it(store: Store) -> None:
    """Perhaps only one of them has a worker."""
    store.given(
        "insert into @schema.limits (name, kind, slots) values ('l', 'concurrency', 1);\n"
        + executing(1, slot_key="l")
        + "".join(instance(i, queue=q, slot_key="l", blocked_on="slot/l") for i, q in enumerate("abcd", 2))
    )
    assert store.flush(Commit(1, 1, 0, "done", value="1")).follow_ups.queues == set("abcd")


def test_a_pick_begins_at_the_lowest_row_above_its_scan_position(store: Store) -> None:
    store.given("".join(instance(i, eligible_at=seconds(i - 60)) for i in (1, 2, 3)))
    ((moment,),) = store.sql("select (now() - interval '1 hour')::text")
    scan_positions = json.dumps({"default": [[0, moment, 0]]})
    picked = store.run(store.calls.pick("w", {"default": 2}, KNOWN, 60, scan_positions=scan_positions))
    assert [claim.id for claim in picked.claims] == [1, 2]


def test_signals_of_a_batch_lie_in_the_order_of_sending(store: Store) -> None:
    store.given(parked(1))
    store.signal(*(send(1, name) for name in "abc"))
    assert [row["name"] for row in store.inbox()] == list("abc")


def test_an_outcome_that_leaves_the_scope_empties_it(store: Store) -> None:
    """Or the claim that comes next would take the key again, which somebody else may have by then."""
    store.given(executing(1, unique_key=b"k", unique_scope="{executing}"))
    store.flush(Commit(1, 1, 0, "next"))
    assert store.row(1)["unique_scope"] == []


def test_a_claim_that_is_given_back_while_marked_keeps_its_owner(store: Store) -> None:
    store.given(executing(1, cancel_reason="why"))
    store.run(store.calls.release_claims([(1, 1, None, None)]))
    assert (store.row(1)["status"], store.row(1)["locked_by"]) == ("executing", "w")


def test_the_rest_is_cancelled_when_the_barrier_opens_and_not_before(store: Store) -> None:
    family = "".join(executing(i, parent_id=1, parent_round=1) for i in (2, 3, 4))
    store.given(parent(1, pending=3, children_needed=2, cancel_rest=True) + family)
    for id, listed in ((2, 0), (3, 1)):  # noqa: A001
        store.flush(Commit(id, 1, 0, "done", value="1", parent=1))
        assert len(store.sql("select from @schema.cascades")) == listed


def test_a_parent_that_went_on_counts_nobody(store: Store) -> None:
    """A child of its round is retried: it is not waited for any more."""
    store.given(
        instance(1, round=1, claims=1, seq=1)
        + instance(2, parent_id=1, parent_round=1, status="failed", finished_at=seconds(-1))
    )
    store.run(store.reads.retry(2, None))
    assert store.row(1)["children_pending"] == 0


def test_a_pick_tells_the_nearest_of_the_rows_to_come(store: Store) -> None:
    store.given(instance(1) + instance(2, eligible_at=seconds(900)) + instance(3, eligible_at=seconds(90)))
    (news,) = store.pick(5).unmet
    assert news.next_due is not None
    assert news.next_due < 91


def test_limits_are_listed_by_name(store: Store) -> None:
    for name in "bac":
        store.run(store.calls.set_limit(name, Concurrency(1), declared=False))
    assert [limit.name for limit in store.run(store.calls.limit_states())] == list("abc")


def test_what_is_committed_already_is_not_asked_to_end(store: Store) -> None:
    store.given(executing(1) + executing(2, claims=4))
    store.flush(Commit(1, 1, 0, "next"))
    again = store.flush(Commit(1, 1, 0, "next"), Commit(2, 1, 0, "next"))
    assert (again.already_committed_ids, again.stale_ids, again.cancel_requested_ids) == ({1}, {2}, set())


def test_the_oldest_due_row_is_taken_first(store: Store) -> None:
    store.given("".join(instance(i, eligible_at=seconds(-i)) for i in (1, 2, 3)))
    assert [pick(store, 1) for _ in range(3)] == [[3], [2], [1]]


def test_of_a_long_line_the_first_is_told_of_the_next_token(store: Store) -> None:
    """As many are looked at as can be told; they are the first, not the last."""
    store.given(
        "insert into @schema.limits (name, kind, period, burst) values ('r', 'rate', 3600, 1);\n"
        "insert into @schema.rate_buckets values ('r', now() + interval '2 hours');\n"
        + "".join(instance(i, rate_key="r", blocked_on="rate/r", eligible_at=seconds(i - 60)) for i in range(1, 9))
    )
    store.run(store.calls.unblock_missed_rows(None, 10))
    assert [row["id"] for row in store.rows() if row["blocked_on"] is None] == [1]


def test_a_signal_leaves_a_row_alone_that_executes(store: Store) -> None:
    """It still has the names that it was woken by: a crash would wake it by them again."""
    store.given(executing(1, awaits=["go"]))
    store.signal(send(1, "go"))
    assert store.row(1)["status"] == "executing"


@pytest.mark.parametrize("lonely", ["t/a", None])
def test_what_a_group_leaves_is_for_others(store: Store, lonely: str | None) -> None:
    """Nobody is taken twice for it. The lonely one has its turn first."""
    store.given(instance(1, group_key=lonely) + "".join(instance(i, group_key="t/b") for i in range(2, 7)))
    turns = json.dumps({"default": ["t", "t/b"]})
    picked = store.run(store.calls.pick("w", {"default": 4}, KNOWN, 60, fair=turns))
    assert len({claim.id for claim in picked.claims}) == 4


def test_a_change_of_policy_reaches_all_partitions(store: Store) -> None:
    store.given("insert into @schema.limits (name, kind, slots) values ('l', 'concurrency', 1);\n")
    for number, part in enumerate("abc", 1):
        key = f"l/{part}"
        store.given(executing(number, slot_key=key) + instance(10 + number, slot_key=key, blocked_on=f"slot/{key}"))
    store.run(store.calls.set_limit("l", Concurrency(2), declared=False))
    assert [row["id"] for row in store.rows() if row["blocked_on"] is not None] == []


def test_the_first_that_waits_for_a_key_comes_instead_of_a_later_one(store: Store) -> None:
    store.given(
        "".join(
            instance(i, partition_key="k", blocked_on="partition/k", eligible_at=seconds(i - 60)) for i in (1, 2, 3)
        )
        + instance(4, partition_key="k", eligible_at=seconds(-1))
    )
    assert pick(store, 5) == []
    assert [row["id"] for row in store.rows() if row["blocked_on"] is None] == [1]


def test_who_waits_behind_a_child_that_is_cancelled_is_let_go(store: Store) -> None:
    store.given(
        ended(1, round=1)
        + instance(2, parent_id=1, parent_round=1, partition_key="k", eligible_at=seconds(-9))
        + instance(3, partition_key="k", blocked_on="partition/k")
        + CASCADE
        + "values (1, 0, 1, 1, 'why')"
    )
    store.run(store.calls.cancel_listed_descendants(10, None))
    assert (store.row(2)["status"], store.row(3)["blocked_on"]) == ("cancelled", None)


@pytest.mark.parametrize(
    ("row", "history", "told"),
    [
        pytest.param({"seq": 0}, [], ["Crashed"], id="never-had-an-outcome"),
        pytest.param({"seq": 0, "fsm": "quiet"}, [], [], id="never-had-one-and-keeps-no-history"),
        pytest.param({"seq": 0, "cancel_reason": "why"}, [], ["Cancel"], id="cancelled"),
        pytest.param({"seq": 2}, [2], ["Next", "Crashed"], id="its-last-outcome-is-told"),
        pytest.param({"seq": 2}, [1], ["Next"], id="history-was-turned-off"),
    ],
)
def test_the_reaper_tells_of_an_end_where_there_is_a_history(
    store: Store, row: dict[str, object], history: list[int], told: list[str]
) -> None:
    store.given(executing(1, lease_expires_at=seconds(-1), **row))
    for seq in history:
        store.sql(
            "insert into @schema.transitions (instance_id, seq, step, outcome, attempt, started_at, duration)"
            " values (1, $1, 's', 'Next', 0, now(), 0)",
            seq,
        )
    store.sql("select * from @schema.reap(10, 1, '{quiet}')")
    assert [r["outcome"] for r in store.sql("select * from @schema.transitions order by seq")] == told
    assert store.row(1)["seq"] == row["seq"] + 1  # type: ignore[operator]
