"""parked_step names the step of rows that rest, its index leaves HOT updates alone, and traces pass to children."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest
from tests.support.rows import ended, executing, instance, parent, parked
from tests.support.store import Store

from gen_durable.store.types import Commit

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_which_rows_have_a_parked_step(store: Store) -> None:
    rest = parked(3, step="t") + parent(4, 1, step="t") + instance(5, parent_id=4, parent_round=1)
    ends = "".join(ended(n, status=s, step="t") for n, s in enumerate(("done", "failed", "cancelled"), 6))
    store.given(instance(1, step="t") + executing(2, step="t") + rest + ends)
    assert {row["id"] for row in store.rows() if row["parked_step"] is not None} == {3, 4, 7, 8}
    assert {row["parked_step"] for row in store.rows()} == {None, "t"}


def test_failing_and_retrying(store: Store) -> None:
    store.given(executing(1))
    store.flush(Commit(1, 1, 0, "fail", error="no"))
    assert store.row(1)["parked_step"] == store.row(1)["step"]
    store.sql("select @schema.retry(1)")
    assert store.row(1)["parked_step"] is None


def test_a_change_of_step_stays_hot(store: Store) -> None:
    """Postgres compares the columns of all indexes, also of partial ones that the row is not in."""
    store.given("".join(executing(n) for n in range(1, 4)))
    store.given("begin")
    for seq in range(2):
        store.flush(*[Commit(n, 1, seq, "continue", step=f"s{seq}", value="1") for n in range(1, 4)])
    (hot,) = store.sql("select pg_stat_get_xact_tuples_hot_updated('@schema.instances'::regclass)")
    store.given("commit")
    assert hot[0] == 6


def insert_traced(store: Store, contexts: list[str | None]) -> list[int]:
    rows = store.sql(
        "select id from @schema.insert('{m,m}', '{1,1}', '{s,s}', array['1','2']::jsonb[], '{default,default}',"
        " '{}', '{}', '{}', '{}', '{}', '{}', trace_contexts => $1)",
        contexts,
    )
    return [row[0] for row in rows]


def test_a_trace_context_is_stored_and_passed_to_children_and_spawned_instances(store: Store) -> None:
    traced, plain = insert_traced(store, [TRACE, None])
    store.sql("select from @schema.pick('w', '{default}', '{9}', '{m/1/s}', 60)")
    assert {row["id"]: row["trace_context"] for row in store.rows()} == {traced: TRACE, plain: None}
    start = {"fsm": "m", "version": 1, "step": "s", "queue": "q", "priority": 0, "delay": 0}
    store.flush(
        Commit(traced, 1, 0, "children", extra=json.dumps({"children": [start]})),
        Commit(plain, 1, 0, "done", extra=json.dumps({"spawn": [start]})),
    )
    (child,) = store.sql("select trace_context from @schema.instances where parent_id = $1", traced)
    assert child[0] == TRACE
    (spawned,) = store.sql("select trace_context from @schema.instances where queue = 'q' and parent_id is null")
    assert spawned[0] is None


def test_a_trace_context_is_bounded(store: Store) -> None:
    with pytest.raises(Exception, match="at most 1024 bytes"):
        insert_traced(store, ["x" * 1025, None])
    with pytest.raises(Exception, match="at most one per instance"):
        insert_traced(store, [None, None, TRACE])


def test_signal_or_start_keeps_the_trace_context(store: Store) -> None:
    start = {"fsm": "m", "step": "s", "trace_context": TRACE}
    store.sql("select @schema.signal_or_start('k', 'go', '1', start => $1::text::jsonb)", json.dumps(start))
    assert [row["trace_context"] for row in store.rows()] == [TRACE]


def test_every_statement_that_sets_the_error_sets_its_type_and_traceback() -> None:
    found = 0
    for file in files("gen_durable.sql").joinpath("functions").iterdir():
        for update in re.findall(r"update @schema\.instances i set(.*?)\n\s*(?:where|from) ", file.read_text(), re.S):
            assigned = re.findall(r"^\s+(last_error|error_type|last_traceback) = ", update, re.M)
            assert assigned in ([], ["last_error", "error_type", "last_traceback"]), file.name
            found += bool(assigned)
    assert found >= 4
