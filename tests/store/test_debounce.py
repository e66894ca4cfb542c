"""Debounce: one waiting instance per key, whose delay each call restarts, up to a bound."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from tests.support.machine import KNOWN, M
from tests.support.rows import LIVE, executing, instance, seconds
from tests.support.store import Store

from gen_durable.operations.start_or_update import make_debounce
from gen_durable.starts import Start
from gen_durable.store.start_or_update import StartOrUpdateResult, StartOrUpdateStatementBuilder

WAITING = {"unique_key": b"k", "unique_scope": "{runnable}"}


def call(store: Store, number: int, max_delay: float | None = None, **options: Any) -> StartOrUpdateResult:
    start = Start(M.s, number, unique_key="k", unique_scope=["runnable"], delay=60, **options)
    return store.run(StartOrUpdateStatementBuilder(store.schema).start_or_update(make_debounce(start, max_delay)))


def test_the_first_call_starts(store: Store) -> None:
    """The instance waits for the delay, and holds the key until it is claimed."""
    result = call(store, 1, queue="q")
    assert result.target is not None
    assert result == StartOrUpdateResult(result.target, "started", "q", None)
    row = store.row(result.target)
    assert (row["unique_guard"], row["state"], row["queue"]) == (b"k", "1", "q")
    assert row["eligible_in"] == pytest.approx(60, abs=20)


def test_a_later_call_restarts_the_delay(store: Store) -> None:
    """With the newest state, in the queue of the first."""
    store.given(instance(1, eligible_at=seconds(1), queue="q", state="0", **WAITING))
    assert call(store, 1, queue="elsewhere") == StartOrUpdateResult(1, "restarted", "q", None)
    (row,) = store.rows()
    assert (row["state"], row["queue"], row["step"]) == ("1", "q", "s")
    assert store.row(1)["eligible_in"] == pytest.approx(60, abs=20)


def test_a_due_instance_that_has_not_begun_is_postponed(store: Store) -> None:
    store.given(instance(1, eligible_at=seconds(-5), **WAITING))
    assert call(store, 1).verdict == "restarted"
    assert store.pick().claims == []


def test_the_wait_has_a_bound(store: Store) -> None:
    """It counts from the first call; an instance whose bound has passed is due now, not earlier."""
    store.given(instance(1, eligible_at=seconds(30), inserted_at=seconds(-50), **WAITING))
    call(store, 1, max_delay=100)
    assert store.row(1)["eligible_in"] == pytest.approx(50, abs=15)
    call(store, 2, max_delay=60)
    assert store.row(1)["eligible_in"] == pytest.approx(10, abs=9)
    store.sql("update @schema.instances set inserted_at = now() - interval '1 hour'")
    call(store, 3, max_delay=60)
    assert store.row(1)["eligible_in"] == pytest.approx(0, abs=5)
    assert [claim.state for claim in store.pick().claims] == ["3"]


def test_a_claim_frees_the_key(store: Store) -> None:
    """A call while the instance executes starts another, which waits for its own delay."""
    store.given(instance(1, eligible_at=seconds(-1), **WAITING))
    store.pick()
    result = call(store, 2)
    assert (result.verdict, len(store.rows())) == ("started", 2)
    assert call(store, 3) == StartOrUpdateResult(result.target, "restarted", "default", None)
    assert [row["state"] for row in store.rows()] == ["{}", "3"]


def test_a_new_version_of_the_code_takes_over(store: Store) -> None:
    """The waiting instance runs the step and version of the newest call."""
    store.given(instance(1, eligible_at=seconds(1), fsm_version=7, **{**WAITING, "step": "old"}))
    call(store, 1)
    assert (store.row(1)["fsm_version"], store.row(1)["step"]) == (1, "s")


@pytest.mark.parametrize(
    "given",
    [
        executing(1, unique_key=b"k", unique_scope=LIVE),
        instance(1, claims=1, unique_key=b"k", unique_scope=LIVE),
        instance(1, **{**WAITING, "fsm": "other"}),
    ],
    ids=["executes", "has begun", "of another machine"],
)
def test_other_holders_are_left_alone(store: Store, given: str) -> None:
    """A key that a plain insert has taken: an instance that has begun keeps it, and one of another machine."""
    store.given(given)
    before = store.rows()
    assert call(store, 1) == StartOrUpdateResult(1, "taken", None, None)
    assert store.rows() == before


def test_a_row_at_a_gate_keeps_its_place(store: Store) -> None:
    """Its delay has passed: only its state is replaced."""
    store.given(
        executing(2, partition_key="p")
        + instance(1, eligible_at=seconds(-1), partition_key="p", blocked_on="partition/p", **WAITING)
    )
    assert call(store, 1) == StartOrUpdateResult(1, "restarted", "default", None)
    row = store.row(1)
    assert (row["state"], row["blocked_on"]) == ("1", "partition/p")
    assert row["eligible_in"] < 0
    assert store.sql("select * from @schema.cascades") == []


def test_rows_behind_a_postponed_head_go_on(store: Store) -> None:
    """A row that waits behind the postponed one is unblocked by the cascade that the call leaves."""
    store.given(
        instance(1, eligible_at=seconds(-9), partition_key="p", **WAITING)
        + instance(2, eligible_at=seconds(-5), partition_key="p", blocked_on="partition/p")
    )
    assert call(store, 1).cascade_origin == 1
    store.run(store.calls.cancel_listed_descendants(10, 1))
    assert [claim.id for claim in store.pick().claims] == [2]


def test_from_plain_sql(store: Store) -> None:
    """Returns the id; a key that cannot be postponed is an error."""
    text = "select @schema.debounce('k', $1::text::jsonb, max_delay => '1 hour') as id"
    start = '{"fsm": "m", "step": "s", "state": 1, "delay": 60, "unique_scope": "{runnable,executing}"}'
    (first, second) = (store.sql(text, start)[0]["id"] for _ in range(2))
    assert first == second
    assert store.row(first)["unique_scope"] == ["runnable"]
    store.sql("update @schema.instances set eligible_at = now(), unique_scope = '{runnable,executing}'")
    store.run(store.calls.pick("w", {"default": 1}, KNOWN, 60))
    with pytest.raises(asyncpg.PostgresError) as raised:
        store.sql(text, start)
    assert raised.value.sqlstate == "GD001"
