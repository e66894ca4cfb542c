"""The history: outcomes that are packed into the row, those that are copied, and what happens without an outcome."""

from __future__ import annotations

import pytest
from tests.support.machine import park
from tests.support.rows import ended, executing, instance, parent, seconds
from tests.support.store import Store

from gen_durable.journal import Transition
from gen_durable.store.history_entries import LINES_PER_FULL_LINE
from gen_durable.store.journal import JournalStatementBuilder
from gen_durable.store.types import Commit


def history(store: Store, instance_id: int = 1, last: int | None = None) -> list[Transition]:
    return store.run(JournalStatementBuilder(store.schema).history(instance_id, None, last))


def recorded(store: Store) -> list[int]:
    return [row["seq"] for row in store.sql("select seq from @schema.transitions where n = 0 order by seq")]


def continue_claim(store: Store, first: int, last: int, *, epoch: int = 1) -> None:
    """Commit the outcomes of one claim from seq `first` to `last`; the steps began one second after each other."""
    for number in range(last - first):
        commit = Commit(1, epoch, first + number, "continue", step=f"step_{first + number + 1}", ran_step="s")
        commit.line = number % LINES_PER_FULL_LINE
        commit.began, commit.took, commit.is_first_line = 100.0 + number, 0.5, number == 0
        commit.is_full_line = commit.line == 0
        commit.full_line_began = 100.0 + number - commit.line
        assert not store.run(store.calls.flush([commit], "w", 100.5 + number)).stale_ids


def test_an_outcome_is_packed_into_its_row(store: Store) -> None:
    """A plain outcome writes no row of its own, and is read with everything that a row would have."""
    store.given(executing(1, attempt=2, eligible_at=seconds(-30)))
    commit = Commit(1, 1, 0, "next", step="t", ran_step="s", began=8.0, took=1.5)
    store.run(store.calls.flush([commit], "host:1\ttab", 10.0))
    assert recorded(store) == []
    (one,) = history(store)
    assert (one.seq, one.step, one.outcome, one.next_step, one.attempt) == (1, "s", "Next", "t", 2)
    assert (one.duration, one.worker, one.error, one.cause) == (1.5, "host:1 tab", None, "retry")
    assert 27.9 < one.waited < 30, "until it began, two seconds ago"


def test_a_long_history_is_read_whole(store: Store) -> None:
    """Full texts are copied into rows; nothing is lost or doubled, and times and workers are those of each outcome."""
    store.given(executing(1))
    continue_claim(store, 0, 60)
    found = history(store)
    assert [t.seq for t in found] == list(range(1, 61))
    assert [t.next_step for t in found] == [f"step_{n}" for n in range(1, 61)]
    assert {t.worker for t in found} == {"w"}
    assert {(t.duration, t.attempt) for t in found} == {(0.5, 0)}
    assert [t.cause for t in found] == ["start"] + ["next"] * 59
    assert {t.waited for t in found[1:]} == {0.0}
    assert 2 <= len(recorded(store)) <= 6
    assert len(store.row(1)["history"]) < 1000
    for last in (0, 1, 5, 30, 100):
        assert [t.seq for t in history(store, last=last)] == list(range(1, 61))[60 - min(last, 60) :]


def test_the_times_of_short_lines(store: Store) -> None:
    """A short line counts from the full line of its claim."""
    store.given(executing(1))
    for number in range(3):
        commit = Commit(1, 1, number, "continue", step="s", ran_step="s", began=100.0 + number, line=number)
        commit.is_full_line = commit.is_first_line = number == 0
        commit.full_line_began = 100.0
        store.run(store.calls.flush([commit], "w", 100.0))
    first, second, third = [t.started_at.timestamp() for t in history(store)]
    assert (round(second - first, 3), round(third - first, 3)) == (1.0, 2.0)


def test_an_outcome_after_a_full_text_begins_anew(store: Store) -> None:
    """Also one of another claim, with an error: it is a row, and is not doubled by its line."""
    store.given(executing(1))
    continue_claim(store, 0, 16)
    continue_claim(store, 16, 32)
    (seq,) = store.sql("select seq from @schema.instances")
    store.flush(Commit(1, 1, seq["seq"], "retry", error="why", ran_step="s"))
    found = history(store)
    assert [t.seq for t in found] == list(range(1, 34))
    assert [t.error for t in found] == [None] * 32 + ["why"]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({}, "start"),
        ({"seq": 1}, "next"),
        ({"seq": 1, "awaits": "{go}"}, "signal"),
        ({"seq": 1, "awaits": "{go}", "timed_out_claim": 1}, "deadline"),
        ({"seq": 1, "awaits": "{go}", "timed_out_claim": 0}, "signal"),
        ({"seq": 1, "joined": True}, "children"),
        ({"seq": 1, "attempt": 1, "last_error": "why"}, "retry"),
        ({"seq": 1, "attempt": 1, "crashes": 1}, "crash"),
        ({"seq": 1, "last_error": "why"}, "operator"),
    ],
)
def test_the_cause_of_an_execution(store: Store, row: dict[str, object], cause: str) -> None:
    store.given(executing(1, **row))
    store.flush(Commit(1, 1, row.get("seq", 0), "done", value="1", ran_step="s"))  # type: ignore[arg-type]
    assert [t.cause for t in history(store)] == [cause]


def test_a_wait_counts_from_its_deadline(store: Store) -> None:
    """A row that its deadline has woken was not due before."""
    row = {"seq": 1, "awaits": "{go}", "seen": "{}", "eligible_at": seconds(-900), "await_deadline": seconds(-5)}
    store.given(instance(1, status="awaiting_signal", **row))
    (claim,) = store.pick().claims
    store.run(store.calls.flush([Commit(1, claim.epoch, 1, "done", value="1", ran_step="s", began=10.0)], "w", 10.0))
    (one,) = history(store)
    assert one.cause == "deadline"
    assert 5 <= one.waited < 60


def parked(store: Store, *, ran_step: str | None = "s") -> None:
    store.given(executing(1))
    commit = park(1, "go")
    commit.ran_step = ran_step
    store.flush(commit)


def test_a_cancel_while_it_waits_is_in_the_history(store: Store) -> None:
    parked(store)
    store.run(store.calls.cancel([(1, None)], "why", cascade=True))
    store.run(store.calls.cancel([(1, None)], "again", cascade=True))
    _, cancel = history(store)
    assert (cancel.seq, cancel.outcome, cancel.next_step, cancel.error) == (1, "Cancel", None, "why")
    assert (cancel.cause, cancel.worker, cancel.step) == ("operator", None, "t")


def test_a_retry_by_an_operator_is_in_the_history(store: Store) -> None:
    """Twice at the same seq, with the cancels between: in the order in which they happened."""
    parked(store)
    for _ in range(2):
        store.run(store.calls.cancel([(1, None)], "why", cascade=True))
        store.sql("select * from @schema.retry(1)")
    assert [(t.seq, t.outcome, t.next_step) for t in history(store)] == [
        (1, "Await", "t"), (1, "Cancel", None), (1, "Retried", "t"), (1, "Cancel", None), (1, "Retried", "t"),
    ]  # fmt: skip


def test_without_a_history_nothing_is_recorded(store: Store) -> None:
    """Its machine has history="off", or turned it off before the last outcome, or it has not run yet."""
    parked(store, ran_step=None)
    store.given(instance(2))
    for number in (1, 2):
        store.run(store.calls.cancel([(number, None)], "why", cascade=True))
        store.sql("select * from @schema.retry($1)", number)
    assert (history(store), history(store, 2)) == ([], [])


def test_a_cancelled_child_names_its_parent(store: Store) -> None:
    store.given(parent(1, pending=1) + executing(2, parent_id=1, parent_round=1))
    store.flush(Commit(2, 1, 0, "next", step="t", delay=99.0, ran_step="s"))
    store.run(store.calls.cancel([(1, None)], "why", cascade=True))
    store.run(store.calls.cancel_listed_descendants(10, 1))
    assert [(t.outcome, t.cause) for t in history(store, 2)] == [("Next", "start"), ("Cancel", "parent")]


def test_a_crash_and_the_outcome_after_it(store: Store) -> None:
    """The crash has the seq of the outcome before it, and the next outcome the next."""
    store.given(executing(1))
    store.flush(Commit(1, 1, 0, "continue", step="t", ran_step="s"))
    store.sql("update @schema.instances set lease_expires_at = now() - interval '1 second'")
    store.run(store.calls.reap(10, None))
    (claim,) = store.pick().claims
    store.flush(Commit(1, claim.epoch, 1, "done", value="1", ran_step="t"))
    found = [(t.seq, t.outcome, t.next_step, t.cause) for t in history(store)]
    assert found == [(1, "Next", "t", "start"), (1, "Crashed", "t", "next"), (2, "Done", None, "crash")]


def test_the_history_goes_with_its_instance(store: Store) -> None:
    """Also a crash of an instance that never had an outcome."""
    store.given(executing(1, lease_expires_at=seconds(-1)) + ended(2, ago=999))
    store.run(store.calls.reap(10, None))
    assert [t.outcome for t in history(store)] == ["Crashed"]
    store.sql("delete from @schema.instances where id = 1")
    assert store.sql("select * from @schema.transitions") == []
