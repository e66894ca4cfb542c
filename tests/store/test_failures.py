"""The class and the traceback of an exception: stored with the error, cleared with it, kept from viewers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.rows import ended, executing, instance, seconds
from tests.support.store import Store

from gen_durable.store.journal import JournalStatementBuilder
from gen_durable.store.types import Commit

OLD = {"last_error": "old", "error_type": "Old", "last_traceback": "old frames"}
NEW = '{"error_type": "New", "traceback": "new frames"}'


def failure(store: Store, instance: int = 1) -> tuple[Any, Any, Any]:
    row = store.row(instance)
    return row["last_error"], row["error_type"], row["last_traceback"]


@pytest.mark.parametrize(
    ("commit", "expected"),
    [
        (Commit(1, 1, 0, "retry", error="new", extra=NEW), ("new", "New", "new frames")),
        (Commit(1, 1, 0, "fail", error="new", extra=NEW), ("new", "New", "new frames")),
        (Commit(1, 1, 0, "fail", error="no exception"), ("no exception", None, None)),
        (Commit(1, 1, 0, "retry", error="no frames", extra='{"error_type": "E"}'), ("no frames", "E", None)),
        (Commit(1, 1, 0, "cancel", error="enough"), ("enough", None, None)),
        (Commit(1, 1, 0, "retry"), ("old", "Old", "old frames")),
        (Commit(1, 1, 0, "next", step="t", error="handled", extra=NEW), (None, None, None)),
        (Commit(1, 1, 0, "continue", step="t"), (None, None, None)),
        (Commit(1, 1, 0, "await", extra='{"awaits": ["go"], "seen": []}'), (None, None, None)),
        (Commit(1, 1, 0, "children", step="t", extra='{"children": []}'), (None, None, None)),
        (Commit(1, 1, 0, "done", value="1"), (None, None, None)),
    ],
    ids=lambda value: value.kind if isinstance(value, Commit) else "",
)
def test_an_outcome_replaces_keeps_or_clears_them(store: Store, commit: Commit, expected: tuple[Any, ...]) -> None:
    """All three together."""
    store.given(executing(1, **OLD))
    assert store.run(store.calls.flush([commit])).stale_ids == frozenset()
    assert failure(store) == expected


def test_the_history_has_those_of_each_outcome(store: Store) -> None:
    """Also of an error that `on_error` has handled; null for the outcomes of the same flush without an error."""
    store.given(executing(1) + executing(2))
    commits = [
        Commit(1, 1, 0, "next", step="t", error="new", extra=NEW, ran_step="s"),
        Commit(2, 1, 0, "next", step="t", ran_step="s"),
    ]
    store.run(store.calls.flush(commits, "w", 0.0))
    journal = JournalStatementBuilder(store.schema)
    (one,) = store.run(journal.history(1, None))
    assert (one.error, one.error_type, one.traceback) == ("new", "New", "new frames")
    assert "frames" not in repr(one)
    (one,) = store.run(journal.history(2, None))
    assert (one.error, one.error_type, one.traceback) == (None, None, None)


def test_a_crash_loop_has_a_type_of_its_own(store: Store) -> None:
    late = {"lease_expires_at": seconds(-1)}
    store.given(
        executing(1, crashes=2, **OLD, **late) + executing(2, cancel_reason="enough", **OLD, **late)
        + executing(3, **OLD, **late)
    )  # fmt: skip
    store.run(store.calls.reap(10, 3))
    assert failure(store)[1:] == ("CrashLoop", None)
    assert failure(store, 2) == ("enough", None, None)
    assert failure(store, 3) == ("old", "Old", "old frames"), "it runs again, and has not failed anew"
    found = store.sql("select error_type, traceback from @schema.transitions where n = 0 order by instance_id")
    assert [(t["error_type"], t["traceback"]) for t in found] == [("CrashLoop", None), (None, None)]


def test_a_row_that_is_put_back_keeps_them_unless_there_is_another_reason(store: Store) -> None:
    store.given(executing(1, **OLD) + executing(2, **OLD))
    store.run(store.calls.release_claims([(1, 1, None, None), (2, 1, 5.0, "cannot be read")]))
    assert failure(store, 1) == ("old", "Old", "old frames")
    assert failure(store, 2) == ("cannot be read", None, None)


def test_a_cancel_clears_them(store: Store) -> None:
    store.given(instance(1, **OLD))
    store.run(store.calls.cancel([(1, None)], "enough", cascade=False))
    assert failure(store) == ("enough", None, None)


def test_lists_have_tracebacks_only_with_payloads(store: Store) -> None:
    """They may be as large as states."""
    store.given(ended(1, status="failed", **OLD))
    found = {
        payloads: store.sql(f"select * from @schema.instances_of('{{1}}', {payloads})")[0]
        for payloads in ("true", "false")
    }
    assert [(row["error_type"], row["last_traceback"]) for row in found.values()] == [
        ("Old", "old frames"),
        ("Old", None),
    ]
    one = store.run(store.calls.get(1, None))
    assert one is not None
    assert (one.error_type, one.traceback) == ("Old", "old frames")
