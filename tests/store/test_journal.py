"""The journal's statements: what is written, and that a claim which was lost writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.machine import child, fan_out, park
from tests.support.rows import ended, executing, parent, signal
from tests.support.store import Store

from gen_durable.store.journal import CHECKPOINT_FORMAT, ActivityRecord, Fence, JournalStatementBuilder, ProgressReport
from gen_durable.store.statements import Statement
from gen_durable.store.types import Commit

FENCE = Fence(2, 1, 0)
RECORD = ActivityRecord(1, "charge", '{"amount": 7}', '"ok"', None, 0.5, 0.25, 0)
REPORT = ProgressReport(2, 1, "s", "", 0.4, "so far", '{"n": 4}')
TABLES = ("transitions", "checkpoints", "activities", "progress")
WRITES: dict[str, Callable[[JournalStatementBuilder, Fence], Statement[Any]]] = {
    "checkpoint": lambda calls, fence: calls.record_checkpoint(fence, "1"),
    "clear": lambda calls, fence: calls.clear_checkpoint(fence),
    "activity": lambda calls, fence: calls.record_activity(fence, RECORD),
    "progress": lambda calls, fence: calls.record_progress(
        [ProgressReport(fence.id, fence.epoch, "s", "", 1.0, None, None)]
    ),
}
KINDS: dict[str, tuple[Callable[[], Commit], str, str | None]] = {
    "continue": (lambda: Commit(2, 1, 0, "continue", step="t", value="1"), "Next", "t"),
    "next": (lambda: Commit(2, 1, 0, "next", step="t", value="1"), "Next", "t"),
    "retry": (lambda: Commit(2, 1, 0, "retry", value="1", error="why"), "Retry", "s"),
    "await": (lambda: park(2, "go"), "Await", "t"),
    "children": (lambda: fan_out(2, child()), "ScheduleChildren", "t"),
    "done": (lambda: Commit(2, 1, 0, "done", value="1", parent=1), "Done", None),
    "fail": (lambda: Commit(2, 1, 0, "fail", error="no", parent=1), "Fail", None),
}
FAMILY = parent(1, pending=1) + executing(2, parent_id=1, parent_round=1, attempt=3)


@pytest.fixture
def journal(store: Store) -> JournalStatementBuilder:
    return JournalStatementBuilder(store.schema)


def told(commit: Commit, *, keep: bool = False) -> Commit:
    """An outcome of a machine that keeps history, of a step that began 2 s before moment 10 and took 1.5 s."""
    commit.ran_step, commit.began, commit.took = "s", 8.0, 1.5
    extra = {**json.loads(commit.extra or "{}"), **({"with_state": True} if keep else {})}
    commit.extra = json.dumps(extra)
    return commit


def everything(store: Store) -> list[Any]:
    return [[tuple(row) for row in store.sql(f"select * from @schema.{table}")] for table in TABLES]


@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_leaves_one_row(store: Store, journal: JournalStatementBuilder, kind: str) -> None:
    """Each kind of outcome is written down by its public name, with where it led; sent twice it is written once."""
    make, outcome, following = KINDS[kind]
    store.given(FAMILY)
    for _ in range(2):
        store.run(store.calls.flush([told(make())], "w", 10.0))
    (row,) = store.run(journal.history(2, None))
    assert (row.seq, row.step, row.outcome, row.next_step, row.attempt) == (1, "s", outcome, following, 3)
    assert (row.duration, row.worker, row.error, row.state) == (1.5, "w", make().error, None)
    (ago,) = store.sql("select extract(epoch from now() - started_at)::float8 as s from @schema.history_of(2)")
    assert 2.0 <= ago["s"] < 4.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_stale_outcome_leaves_none(store: Store, journal: JournalStatementBuilder, kind: str) -> None:
    """An outcome of a claim that was taken over is not part of the history."""
    store.given(FAMILY.replace("'executing', 1", "'executing', 2"))
    assert store.run(store.calls.flush([told(KINDS[kind][0]())], "w", 10.0)).stale_ids == {2}
    assert store.run(journal.history(2, None)) == []


def test_of_a_batch_only_what_was_committed_is_told(store: Store, journal: JournalStatementBuilder) -> None:
    """A stale outcome, one that was committed before, and a new one in one call: the new one leaves a row."""
    store.given(executing(2) + executing(3, claims=4) + executing(4))
    store.flush(Commit(4, 1, 0, "done", value="1"))
    commits = [told(Commit(i, 1, 0, "done", value="1")) for i in (2, 3, 4)]
    answer = store.run(store.calls.flush(commits, "w", 10.0))
    assert (answer.stale_ids, answer.already_committed_ids) == ({3}, {4})
    assert [len(store.run(journal.history(i, None))) for i in (2, 3, 4)] == [1, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_kept_where_they_are_asked_for(store: Store, journal: JournalStatementBuilder, kind: str) -> None:
    """With keep, the row has the state after the outcome; an end changes none."""
    make, _, _ = KINDS[kind]
    store.given(FAMILY)
    store.run(store.calls.flush([told(make(), keep=True)], "w", 10.0))
    (row,) = store.run(journal.history(2, None))
    assert row.state == json.loads(store.row(2)["state"])


def test_history_off_writes_nothing_and_sends_nothing(store: Store) -> None:
    """Outcomes without an origin are committed as before, beside others that have one."""
    store.given(executing(2) + executing(3))
    call = store.calls.flush([Commit(2, 1, 0, "continue"), Commit(3, 1, 0, "continue")], "w", 10.0)
    assert call.args[11:] == ("",)
    store.run(call)
    assert everything(store)[0] == []
    store.flush(Commit(2, 1, 1, "continue"), told(Commit(3, 1, 1, "continue")))
    assert [row["id"] for row in store.sql("select id from @schema.instances where history is not null")] == [3]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("how", ["reaped", "claimed again", "released", "gone"])
def test_a_lost_claim_writes_nothing(store: Store, journal: JournalStatementBuilder, write: str, how: str) -> None:
    """What comes for a claim that was taken over changes no row, and the writer is told."""
    store.given(executing(2))
    store.run(journal.record_checkpoint(FENCE, '"mine"'))
    store.run(journal.record_activity(FENCE, RECORD))
    store.run(journal.record_progress([REPORT]))
    if how == "gone":
        store.sql("delete from @schema.instances")
    elif how == "released":
        store.run(store.calls.release_claims([(2, 1, None, None)]))
    else:
        store.sql("update @schema.instances set lease_expires_at = now() - interval '1 second' where id = 2")
        store.run(store.calls.reap(10, None))
        if how == "claimed again":
            store.pick(worker="w")
    before, rows = everything(store), [tuple(row) for row in store.rows()]
    answer = store.run(WRITES[write](journal, FENCE))
    assert answer in (False, set())
    assert (everything(store), [tuple(row) for row in store.rows()]) == (before, rows)


@pytest.mark.parametrize("write", ["checkpoint", "clear", "activity"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_was_left_writes_nothing(
    store: Store, journal: JournalStatementBuilder, write: str, kind: str
) -> None:
    """After its own outcome, also a held one, the step's fence does not hold any more."""
    store.given(FAMILY)
    store.run(journal.record_checkpoint(FENCE, '"mine"'))
    store.flush(KINDS[kind][0]())
    before = everything(store)
    assert store.run(WRITES[write](journal, FENCE)) is False
    assert everything(store) == before


def test_a_claim_brings_the_journal_of_its_visit(store: Store, journal: JournalStatementBuilder) -> None:
    """After a crash the next claim has the checkpoint and the finished activities; the one after a Next has none."""
    store.given(executing(2))
    for value in ('{"a": 1}', '{"a": 2}'):
        assert store.run(journal.record_checkpoint(FENCE, value))
    store.run(journal.record_activity(FENCE, ActivityRecord(1, "pay", "[]", None, "ValueError: no", 0.1, 0.1, 0)))
    store.run(journal.record_activity(FENCE, ActivityRecord(2, "pay", "[]", "null", None, 0.1, 0.1, 1)))
    store.sql("update @schema.instances set lease_expires_at = now() - interval '1 second' where id = 2")
    store.run(store.calls.reap(10, None))
    (claim,) = store.pick().claims
    assert claim.visit == 0
    assert json.loads(claim.journal or "") == {
        "checkpoint": [CHECKPOINT_FORMAT, 2, {"a": 2}],
        "activities": [[1, "pay", False, None], [2, "pay", True, "null"]],
    }
    store.flush(Commit(2, claim.epoch, 0, "next", step="t"))
    (following,) = store.pick().claims
    assert (following.visit, following.journal) == (1, None)
    store.run(journal.record_checkpoint(Fence(2, following.epoch, 1), "3"))
    assert [(r["visit"], r["version"]) for r in store.sql("select * from @schema.checkpoints")] == [(1, 1)]
    assert len(store.run(journal.activities(2, None))) == 2  # a log: it stays


@pytest.mark.parametrize(
    ("commit", "stays"),
    [
        (Commit(2, 1, 0, "retry"), True),
        (Commit(2, 1, 0, "await", extra='{"awaits": ["go"], "seen": []}'), True),  # then omitted: the same step again
        (park(2, "go"), False),
        (Commit(2, 1, 0, "next", step="s"), False),
        (fan_out(2), False),
    ],
    ids=["retry", "await at the same step", "await for another", "next to itself", "children"],
)
def test_which_outcomes_stay_in_the_visit(
    store: Store, journal: JournalStatementBuilder, commit: Commit, stays: bool
) -> None:
    """A visit lasts while the step is tried again or waits at itself. Next to the same step is a new one."""
    store.given(executing(2))
    store.run(journal.record_checkpoint(FENCE, "1"))
    store.flush(commit)
    assert store.row(2)["visit"] == (0 if stays else 1)
    store.sql("update @schema.instances set status = 'runnable' where id = 2")
    (claim,) = store.pick().claims
    assert (claim.journal is not None) == stays


def test_the_same_activity_sent_twice_is_written_once(store: Store, journal: JournalStatementBuilder) -> None:
    """A write whose answer was lost is sent again: it has the same number."""
    store.given(executing(2))
    assert [store.run(journal.record_activity(FENCE, RECORD)) for _ in range(2)] == [True, True]
    (row,) = store.run(journal.activities(2, None))
    assert (row.visit, row.name, row.attempt, row.duration, row.error) == (0, "charge", 0, 0.25, None)
    assert (row.parameters, row.result, row.ok) == ({"amount": 7}, "ok", True)


def test_a_cleared_checkpoint_is_gone(store: Store, journal: JournalStatementBuilder) -> None:
    """Clearing takes the row away, and only that of its own instance."""
    store.given(executing(2) + executing(3))
    for instance in (2, 3):
        store.run(journal.record_checkpoint(Fence(instance, 1, 0), "1"))
    assert store.run(journal.clear_checkpoint(FENCE))
    assert [row["instance_id"] for row in store.sql("select * from @schema.checkpoints")] == [3]


def test_the_last_word_counts(store: Store, journal: JournalStatementBuilder) -> None:
    """Reports overwrite each other by step and branch, in one batch too; each instance has its own fence."""
    store.given(executing(2) + executing(3, claims=4))
    later = ProgressReport(2, 1, "s", "", 0.9, "nearly", None)
    side = ProgressReport(2, 1, "s", "left", None, None, None)
    assert (
        store.run(journal.record_progress([REPORT, later, side, ProgressReport(3, 3, "s", "", 1.0, None, None)]))
        == set()
    )
    rows = store.run(journal.progress(2, None))
    assert {(r.step, r.branch, r.fraction, r.message, r.detail) for r in rows} == {
        ("s", "", 0.9, "nearly", None),
        ("s", "left", None, None, None),
    }
    assert store.run(journal.progress(3, None)) == []


def test_a_report_does_not_wait_for_a_locked_row(store: Store, journal: JournalStatementBuilder, dsn: str) -> None:
    """A row that somebody has locked is passed over and told; its batch mates are written."""
    store.given(executing(2) + executing(3))
    other = Store(dsn, store.schema.name)
    try:
        other.given("begin")
        other.sql("select from @schema.instances where id = 2 for update")
        both = [REPORT, ProgressReport(3, 1, "s", "", 1.0, None, None)]
        assert store.run(journal.record_progress(both)) == {2}
        other.given("rollback")
    finally:
        other.close()
    assert (len(store.run(journal.progress(2, None))), len(store.run(journal.progress(3, None)))) == (0, 1)


def test_a_last_report_may_come_after_the_outcome(store: Store, journal: JournalStatementBuilder) -> None:
    """Nobody waits for a report, so the word said just before the end arrives after it, and counts."""
    store.given(executing(2))
    store.flush(Commit(2, 1, 0, "done", value="1"))
    store.run(journal.record_progress([REPORT]))
    assert [r.fraction for r in store.run(journal.progress(2, None))] == [0.4]


def test_the_journal_goes_with_its_instance(store: Store, journal: JournalStatementBuilder) -> None:
    """Retention leaves nothing behind, and nothing of others is touched."""
    store.given(executing(2) + executing(3) + signal(7, 2) + ended(4, ago=999))
    for instance in (2, 3):
        fence = Fence(instance, 1, 0)
        store.run(journal.record_checkpoint(fence, "1"))
        store.run(journal.record_activity(fence, RECORD))
        store.run(journal.record_progress([ProgressReport(instance, 1, "s", "", 1.0, None, None)]))
        store.flush(told(Commit(instance, 1, 0, "done", value="1"), keep=True))
    store.sql("update @schema.instances set finished_at = now() - interval '1 hour' where id = 2")
    assert store.run(store.calls.gc(60, 60, 60, 100)).deleted == 2
    assert [{row[0] for row in table} for table in everything(store)] == [{3}] * 4


def test_reads_by_unique_key(store: Store, journal: JournalStatementBuilder) -> None:
    """The holder of a key is found as by `get`."""
    store.given(executing(2, unique_key=b"k", unique_scope="{executing}"))
    store.run(journal.record_activity(FENCE, RECORD))
    store.run(journal.record_progress([REPORT]))
    store.run(store.calls.flush([told(Commit(2, 1, 0, "continue"))], "w", 10.0))
    assert [len(store.run(read(None, b"k"))) for read in (journal.history, journal.activities, journal.progress)] == [
        1,
        1,
        1,
    ]
    assert store.run(journal.history(None, b"other")) == []


def test_the_database_before_is_brought_along(store: Store) -> None:
    """A call of flush as an older library makes it is still served."""
    store.given(executing(2))
    text = "select stale, already_committed, woken_queues from @schema.flush($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"
    ((stale, already_committed, _),) = store.sql(text, [2], [1], [0], ["done"], [], ["1"], [], [], [], [])
    assert (stale, already_committed, store.row(2)["status"]) == (None, None, "done")
