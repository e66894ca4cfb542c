"""Leases: beats that keep a claim, the reaper that takes it back, and giving it back by hand."""

from __future__ import annotations

import pytest
from tests.support.rows import LIVE, ended, executing, instance, parent, seconds, signal
from tests.support.store import Store

from gen_durable.store.journal import JournalStatementBuilder
from gen_durable.store.types import Commit, ReapedClaim

LATE = {"lease_expires_at": seconds(-1)}


def beat(store: Store, *claims: tuple[int, int], lease: float = 60) -> list[int]:
    return store.run(store.calls.heartbeat(claims, lease))


def reap(store: Store, batch: int = 10, max_crashes: int | None = None) -> list[ReapedClaim]:
    return store.run(store.calls.reap(batch, max_crashes)).claims


def test_a_beat_extends(store: Store) -> None:
    """A beat moves the end of the lease, and nothing else."""
    store.given(executing(1, lease_expires_at=seconds(5)))
    before = store.row(1)
    assert beat(store, (1, 1)) == []
    after = store.row(1)
    assert after["lease_in"] == pytest.approx(60, abs=5)
    assert {c for c in dict(after) if after[c] != before[c] and not c.endswith("_in")} == {"lease_expires_at"}


def test_a_beat_never_shortens(store: Store) -> None:
    """A shorter lease leaves a longer one as it is."""
    store.given(executing(1, lease_expires_at=seconds(500)))
    beat(store, (1, 1), lease=1)
    assert store.row(1)["lease_in"] > 400


def test_a_beat_reports_what_was_stolen(store: Store) -> None:
    """Claimed by another, taken back, or gone: lost. Finished by the owner's own outcome: not lost."""
    store.given(
        executing(1, claims=2) + instance(2, claims=2) + executing(4) + executing(5) + ended(6) + executing(7, claims=9)
    )
    store.flush(Commit(5, 1, 0, "next"))
    lost = beat(store, (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), lease=900)
    assert sorted(lost) == [1, 2, 3, 7]
    assert store.row(4)["lease_in"] == pytest.approx(900, abs=5)
    assert [store.row(i)["lease_expires_at"] for i in (2, 5, 6)] == [None, None, None]
    assert [store.row(i)["lease_in"] < 400 for i in (1, 7)] == [True, True]


def test_a_beat_keeps_a_late_claim(store: Store) -> None:
    """A lease that ran out but was not taken back is kept by the next beat."""
    store.given(executing(1, **LATE))
    assert beat(store, (1, 1)) == []
    assert reap(store) == []


def test_the_reaper_takes_back(store: Store) -> None:
    """The row is runnable in its old place, the attempt burned, a crash counted, and every old claim fenced off."""
    held = {"attempt": 2, "crashes": 0, "awaits": ["go"], "joined": True, "last_error": "e", "queue": "q"}
    store.given(executing(1, eligible_at=seconds(-90), **held, **LATE))
    before = store.row(1)
    assert reap(store) == [ReapedClaim(1, "m", 1, "s", "q", 1, dead=False)]
    row = store.row(1)
    assert (row["status"], row["attempt"], row["claims"], row["crashes"]) == ("runnable", 3, 2, 1)
    assert (row["locked_by"], row["lease_expires_at"], row["last_error"]) == (None, None, "e")
    assert (row["awaits"], row["joined"], row["seq"]) == (["go"], True, 0)
    assert row["due_at"] == before["eligible_at"]


def test_the_reaper_leaves_the_rest(store: Store) -> None:
    """Living leases and rows that are not executing are not touched."""
    store.given(executing(1) + instance(2) + ended(3))
    assert reap(store) == []
    assert [row["claims"] for row in store.rows()] == [1, 0, 1]


def test_the_reaper_works_in_batches(store: Store) -> None:
    """The oldest leases first, as many as asked for."""
    store.given("".join(executing(i, lease_expires_at=seconds(-10 * i)) for i in (1, 2, 3)))
    assert sorted(r.id for r in reap(store, batch=2)) == [2, 3]
    assert [r.id for r in reap(store, batch=2)] == [1]


def test_a_crash_loop_ends(store: Store) -> None:
    """The claim that reaches max_crashes fails the row, says why, and frees its key."""
    store.given(executing(1, crashes=2, unique_key=b"k", unique_scope=LIVE, awaits=["go"], **LATE) + signal(7, 1))
    assert reap(store, max_crashes=3) == [ReapedClaim(1, "m", 1, "s", "default", 3, dead=True)]
    row = store.row(1)
    assert (row["status"], row["crashes"], row["unique_guard"], row["awaits"]) == ("failed", 3, None, ["go"])
    assert "crash loop" in row["last_error"]
    assert row["finished_at"] is not None
    assert [s["id"] for s in store.inbox()] == [7], "a retry is given it again"


def test_only_a_crash_loop_is_called_one(store: Store) -> None:
    """A cancelled row whose worker has died has no class of error, in its row and in its history."""
    store.given(executing(1, crashes=2, **LATE) + executing(2, cancel_reason="why", **LATE))
    reap(store, max_crashes=3)
    assert [(row["status"], row["error_type"]) for row in store.rows()] == [
        ("failed", "CrashLoop"),
        ("cancelled", None),
    ]
    found = store.sql("select outcome, error_type from @schema.transitions order by instance_id")
    assert [tuple(row) for row in found] == [("Crashed", "CrashLoop"), ("Cancel", None)]


def ends(store: Store) -> list[tuple[object, ...]]:
    found = store.sql("select * from @schema.transitions where outcome in ('Crashed', 'Cancel') order by instance_id")
    return [(t["instance_id"], t["seq"], t["outcome"], t["step"], t["attempt"], t["worker"]) for t in found]


def test_the_end_of_a_crash_loop_is_in_the_history(store: Store) -> None:
    """Of rows that have a history, with the next number; the first step's, unless its machine is known to keep none."""
    noted = "insert into @schema.transitions (instance_id, seq, step, outcome, attempt, started_at, duration) values "
    store.given(
        executing(1, seq=2, attempt=4, **LATE) + executing(2, seq=2, **LATE)
        + executing(3, **LATE) + executing(4, fsm="quiet", **LATE)
        + executing(5, seq=1, cancel_reason="why", **LATE) + executing(6, seq=1, cancel_reason="why", **LATE)
        + noted + "(1, 1, 's', 'Next', 0, now(), 0), (1, 2, 's', 'Next', 0, now(), 0),"
        "(5, 1, 's', 'Next', 0, now(), 0);"
    )  # fmt: skip
    store.run(store.calls.reap(10, 1, ["quiet"]))
    assert ends(store) == [
        (1, 3, "Crashed", "s", 4, "w"), (3, 1, "Crashed", "s", 0, "w"), (5, 2, "Cancel", "s", 0, "w"),
    ]  # fmt: skip
    assert [(row["id"], row["seq"], row["status"]) for row in store.rows()] == [
        (1, 3, "failed"), (2, 3, "failed"), (3, 1, "failed"), (4, 1, "failed"),
        (5, 2, "cancelled"), (6, 2, "cancelled"),
    ]  # fmt: skip
    (last,) = [t for t in store.run(JournalStatementBuilder(store.schema).history(1, None)) if t.seq == 3]
    assert (last.next_step, last.error) == (None, store.row(1)["last_error"])


def test_a_claim_that_is_taken_back_is_in_the_history(store: Store) -> None:
    """Under the number of the outcome before it."""
    store.given(executing(1, **LATE))
    reap(store, max_crashes=3)
    assert ends(store) == [(1, 0, "Crashed", "s", 0, "w")]


def test_below_max_crashes_it_lives(store: Store) -> None:
    """One crash short of the cap is taken back as usual."""
    store.given(executing(1, crashes=1, **LATE))
    assert [r.dead for r in reap(store, max_crashes=3)] == [False]
    assert store.row(1)["status"] == "runnable"


def test_an_outcome_forgets_crashes(store: Store) -> None:
    """Crashes count since the last outcome, so a long life with rare crashes is no crash loop."""
    store.given(executing(1, crashes=2))
    store.flush(Commit(1, 1, 0, "next"))
    assert store.row(1)["crashes"] == 0


def test_a_dead_letter_joins_its_parent(store: Store) -> None:
    """A child that is failed by the reaper releases its parent like any end, and others are only taken back."""
    family = {"parent_id": 1, "parent_round": 1}
    store.given(parent(1, pending=2) + executing(2, crashes=4, **family, **LATE) + executing(3, **family, **LATE))
    assert sorted((r.id, r.dead) for r in reap(store, max_crashes=5)) == [(2, True), (3, False)]
    assert (store.row(1)["status"], store.row(1)["children_pending"]) == ("awaiting_children", 1)
    assert reap(store, max_crashes=1) == []
    store.sql(
        "update @schema.instances set status = 'executing', locked_by = 'w',"
        " lease_expires_at = now() - interval '1 second' where id = 3"
    )
    assert [(r.id, r.dead) for r in reap(store, max_crashes=1)] == [(3, True)]
    (claim,) = store.pick().claims
    assert [(c.id, c.status) for c in claim.children] == [(2, "failed"), (3, "failed")]


def test_a_dead_letter_whose_parent_is_held_waits(store: Store, dsn: str) -> None:
    """The reaper does not wait for a parent that somebody holds: it comes back later for the child."""
    store.given(parent(1, pending=1) + executing(2, parent_id=1, parent_round=1, **LATE) + executing(3, **LATE))
    other = Store(dsn, store.schema.name)
    try:
        other.given("begin; select from @schema.instances where id = 1 for update")
        assert [r.id for r in reap(store, max_crashes=1)] == [3]
        assert store.row(2)["status"] == "executing"
        other.given("rollback")
    finally:
        other.close()
    assert [r.id for r in reap(store, max_crashes=1)] == [2]
    assert store.row(1)["status"] == "runnable"


def test_a_dead_letter_whose_parent_is_gone(store: Store) -> None:
    """A parent that was deleted keeps nobody from being failed."""
    store.given(executing(2, parent_id=99, parent_round=1, **LATE))
    assert [r.dead for r in reap(store, max_crashes=1)] == [True]


def test_release_of_what_was_not_started(store: Store) -> None:
    """It keeps its place and its attempt, nothing is counted, and the old claim is fenced off."""
    store.given(executing(1, attempt=2, crashes=1, eligible_at=seconds(-90), last_error="e", awaits=["go"]))
    before = store.row(1)
    assert store.run(store.calls.release_claims([(1, 1, None, None)])).ids == [1]
    row = store.row(1)
    assert (row["status"], row["claims"], row["attempt"], row["crashes"]) == ("runnable", 2, 2, 1)
    assert (row["eligible_at"], row["last_error"], row["awaits"]) == (before["eligible_at"], "e", ["go"])
    assert (row["locked_by"], row["lease_expires_at"]) == (None, None)


def test_a_put_back_is_no_crash(store: Store) -> None:
    """The row rests and says why; neither a crash nor an attempt is counted."""
    store.given(executing(1, attempt=2, crashes=1))
    assert store.run(store.calls.release_claims([(1, 1, 30.0, "cannot be read")])).ids == [1]
    row = store.row(1)
    assert (row["attempt"], row["crashes"], row["last_error"]) == (2, 1, "cannot be read")
    assert row["eligible_in"] == pytest.approx(30, abs=5)


def test_the_rest_doubles_with_put_backs_in_a_row(store: Store) -> None:
    """The first rest is the one that was given, however often the row was claimed; an outcome starts again with it."""
    store.given(executing(1, claims=1000))
    rests: list[float] = []
    for epoch in range(1000, 1020, 2):
        store.run(store.calls.release_claims([(1, epoch, 5.0, "cannot be read")]))
        rests.append(store.row(1)["eligible_in"])
        store.sql("update @schema.instances set eligible_at = now()")
        assert [c.epoch for c in store.pick().claims] == [epoch + 2]
    assert rests == [pytest.approx(min(5 * 2**n, 600), rel=0.12, abs=1) for n in range(10)]
    assert store.run(store.calls.flush([Commit(1, 1020, 0, "continue")])).stale_ids == frozenset()
    store.run(store.calls.release_claims([(1, 1020, 5.0, "cannot be read")]))
    assert store.row(1)["eligible_in"] == pytest.approx(5, abs=2)


def test_a_rest_has_a_longest_length(store: Store) -> None:
    """It doubles up to what the caller gives: a row that waits for a limit must not rest for ten minutes."""
    store.given(executing(1, postponements=20))
    store.run(store.calls.release_claims([(1, 1, 1.0, "no limit")], 30.0))
    assert store.row(1)["eligible_in"] == pytest.approx(31.5, abs=2)


def test_release_of_what_is_not_held(store: Store) -> None:
    """Another's claim, an own outcome, an unknown row: nothing is given back, nothing changes."""
    store.given(executing(1, claims=2) + ended(2) + instance(3, claims=1) + executing(4))
    claims: list[tuple[int, int, float | None, str | None]] = [(i, 1, None, None) for i in (1, 2, 3, 4, 99)]
    assert store.run(store.calls.release_claims(claims)).ids == [4]
    assert [row["claims"] for row in store.rows()] == [2, 1, 1, 2]
