"""The view step_status: one row per visit of a step, derived from the row, its history and its progress."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.machine import child, fan_out
from tests.support.rows import executing, instance
from tests.support.store import Store

from gen_durable.store.journal import ActivityRecord, Fence, JournalStatementBuilder, ProgressReport
from gen_durable.store.types import Commit


@pytest.fixture
def journal(store: Store) -> JournalStatementBuilder:
    return JournalStatementBuilder(store.schema)


def statuses(store: Store, target: int = 2) -> list[tuple[int, str, str, int]]:
    rows = store.sql("select * from @schema.step_status where instance_id = $1 order by visit", target)
    return [(row["visit"], row["step"], row["status"], row["attempts"]) for row in rows]


def last(store: Store, target: int = 2) -> Any:
    """The row of the newest visit."""
    return store.sql("select * from @schema.step_status where instance_id = $1 order by visit", target)[-1]


def commit(store: Store, kind: str, then: str | None = None, *, took: float = 0.0, **more: Any) -> None:
    """Commit an outcome of instance 2, with its history; `then` is the next step."""
    row = store.row(2)
    extra = {"attempt": row["attempt"]} | ({"awaits": ["go"], "seen": []} if kind == "await" else {})
    outcome = Commit(2, row["claims"], row["seq"], kind, step=then, extra=json.dumps(extra), **more)
    outcome.ran_step, outcome.began, outcome.took = row["step"], 10.0 - took, took
    store.run(store.calls.flush([outcome], "w", 10.0))


def test_a_row_that_has_not_run_is_pending(store: Store) -> None:
    """Without any history there is one visit, the row's own."""
    store.given(instance(2))
    assert statuses(store) == [(0, "s", "pending", 0)]
    row = last(store)
    assert (row["started_at"], row["finished_at"], row["worker"], row["activity"]) == (None, None, None, None)


def test_the_first_claim_starts_the_visit(store: Store) -> None:
    """Running, by the worker that has the claim, since started_at."""
    store.given(instance(2))
    store.pick(worker="w9")
    assert statuses(store) == [(0, "s", "running", 1)]
    row = last(store)
    assert (row["worker"], row["started_at"]) == ("w9", store.row(2)["started_at"])
    store.run(store.calls.release_claims([(2, 1, None, None)]))
    assert statuses(store) == [(0, "s", "pending", 0)]
    assert last(store)["started_at"] == row["started_at"]


def test_a_chain_shows_each_step(store: Store) -> None:
    """Steps that led on are done, with their times; a step that is visited again has a row for each visit."""
    store.given(executing(2))
    for step in ("t", "s", "t"):
        commit(store, "continue", step, value="1", took=1.5)
    assert statuses(store) == [(0, "s", "done", 1), (1, "t", "done", 1), (2, "s", "done", 1), (3, "t", "running", 1)]
    first, *_, current = store.sql("select * from @schema.step_status order by visit")
    assert (first["finished_at"] - first["started_at"]).total_seconds() == 1.5
    assert (first["outcome"], first["next_step"], first["worker"]) == ("Next", "t", "w")
    assert current["started_at"] == store.row(2)["updated_at"]
    store.run(store.calls.flush([Commit(2, 1, 3, "done", value="1")], "w", 10.0))
    assert statuses(store)[-1] == (3, "t", "done", 0)  # its outcome is not in the history
    assert last(store)["finished_at"] == store.row(2)["finished_at"]


def test_retries_stay_in_the_visit(store: Store) -> None:
    """A retry is the same visit with one attempt more, and shows its error until the step leads on."""
    store.given(executing(2))
    commit(store, "retry", error="no line")
    assert statuses(store) == [(0, "s", "retrying", 1)]
    assert last(store)["error"] == "no line"
    store.pick()
    assert statuses(store) == [(0, "s", "running", 2)]
    commit(store, "next", "t")
    assert statuses(store) == [(0, "s", "done", 2), (2, "t", "pending", 0)]
    assert last(store)["error"] is None


def test_crashes_count_as_attempts(store: Store) -> None:
    """A claim whose worker died leaves no outcome, but the row knows of it."""
    store.given(executing(2))
    store.sql("update @schema.instances set lease_expires_at = now() - interval '1 second'")
    store.run(store.calls.reap(10, None))
    assert statuses(store) == [(0, "s", "retrying", 1)]
    store.pick()
    assert statuses(store) == [(0, "s", "running", 2)]
    commit(store, "done", value="1")
    assert statuses(store) == [(0, "s", "done", 2)]


def test_a_step_that_collects_signals_is_one_visit(store: Store) -> None:
    """An await of the same step keeps the visit; one of another step waits there."""
    store.given(executing(2))
    commit(store, "await")
    assert statuses(store) == [(0, "s", "waiting", 1)]
    store.sql("update @schema.instances set status = 'runnable'")
    assert statuses(store) == [(0, "s", "pending", 1)]
    store.pick()
    commit(store, "await", "t")
    assert statuses(store) == [(0, "s", "done", 2), (2, "t", "waiting", 0)]


def test_a_parent_waits_in_the_step_after_the_join(store: Store) -> None:
    """Children belong to the outcome of the step that started them."""
    store.given(executing(2))
    outcome = fan_out(2, child())
    outcome.ran_step, outcome.began, outcome.took = "s", 8.0, 1.5
    store.run(store.calls.flush([outcome], "w", 10.0))
    assert statuses(store) == [(0, "s", "done", 1), (1, "t", "waiting", 0)]


@pytest.mark.parametrize(("kind", "status"), [("fail", "failed"), ("cancel", "cancelled"), ("done", "done")])
def test_an_end_and_an_operators_retry(store: Store, kind: str, status: str) -> None:
    """The visit ends as its instance does; a retry by an operator continues it."""
    store.given(executing(2))
    commit(store, kind, error=None if kind == "done" else "no")
    assert statuses(store) == [(0, "s", status, 1)]
    assert last(store)["finished_at"] == store.row(2)["finished_at"]
    if kind == "done":
        return
    assert last(store)["error"] == "no"
    store.run(store.reads.retry(2, None))
    assert statuses(store) == [(0, "s", "retrying", 1)]
    store.pick()
    assert statuses(store) == [(0, "s", "running", 2)]


def test_progress_and_the_last_activity_belong_to_a_visit(store: Store, journal: JournalStatementBuilder) -> None:
    """The report of a step is shown at its last visit, and not there if it is older than the visit."""
    store.given(executing(2))
    for number, name in ((1, "charge"), (2, "pack")):
        record = ActivityRecord(number, name, "{}", "1", None, 0.1, 0.1, 0)
        store.run(journal.record_activity(Fence(2, 1, 0), record))
    store.run(journal.record_progress([
        ProgressReport(2, 1, "s", "left", 0.1, "left", None), ProgressReport(2, 1, "s", "", 0.4, "so far", '{"n": 4}'),
    ]))  # fmt: skip
    row = last(store)
    assert (row["activity"], row["fraction"], row["message"], row["detail"]) == ("pack", 0.4, "so far", '{"n": 4}')
    commit(store, "continue", "t", value="1")
    assert (last(store)["activity"], last(store)["fraction"]) == (None, None)
    commit(store, "continue", "s", value="1")
    first, second, third = store.sql("select * from @schema.step_status order by visit")
    assert (first["step"], first["activity"], first["fraction"]) == ("s", "pack", None)
    assert (second["step"], second["fraction"]) == ("t", None)
    assert (third["step"], third["activity"], third["fraction"]) == ("s", None, None)
    store.run(journal.record_progress([ProgressReport(2, 1, "s", "right", 0.7, None, None)]))
    store.sql("delete from @schema.progress where branch = ''")
    assert last(store)["fraction"] == 0.7


def test_a_history_that_is_off_or_trimmed(store: Store, journal: JournalStatementBuilder) -> None:
    """The row's own visit is always there; what was deleted is missing, and the rest keeps its numbers."""
    store.given(executing(2, seq=7, visit=7, attempt=1))
    assert statuses(store) == [(7, "s", "running", 2)]
    commit(store, "continue", "t", value="1")
    assert statuses(store) == [(7, "s", "done", 2), (8, "t", "running", 1)]
    for _ in range(3):
        commit(store, "retry")
        store.pick()
    store.run(journal.trim_history({2: 2}, 100))
    assert statuses(store) == [(7, "s", "done", 2), (8, "t", "running", 4)], "what is packed stays"
    store.sql("update @schema.instances set history = null")
    assert statuses(store) == [(8, "t", "running", 4)]
