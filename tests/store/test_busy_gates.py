"""Rows that come in one by one while their gate is busy: inserted as blocked, so that no pick meets them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.machine import M
from tests.support.rows import executing, instance, seconds
from tests.support.store import Store

from gen_durable.starts import Start
from gen_durable.store.blocking_insert import insert_blocking_busy, unblock_new_rows
from gen_durable.store.start_encoder import encode_starts
from gen_durable.store.types import InsertResult

LIMIT = "insert into @schema.limits (name, kind, slots) values ('l', 'concurrency', 1);\n"


def insert(store: Store, *starts: Start[object]) -> list[InsertResult]:
    return store.run(insert_blocking_busy(store.calls, encode_starts(starts)))


def gates(rows: list[InsertResult]) -> list[str | None]:
    return [row.blocked_on for row in rows]


def test_a_row_of_an_executing_key_is_inserted_as_blocked(store: Store) -> None:
    store.given(executing(1, partition_key="k"))
    rows = insert(
        store,
        Start(M.s, {}, partition_key="k"),
        Start(M.s, {}, partition_key="free"),
        Start(M.s, {}, partition_key="k", delay=timedelta(hours=1)),
        Start(M.s, {}),
    )
    assert gates(rows) == ["partition/k", None, None, None]


@pytest.mark.dirty
def test_a_row_of_a_key_that_rows_wait_for_is_inserted_as_blocked(store: Store) -> None:
    store.given(instance(1, partition_key="k", eligible_at=seconds(-1), blocked_on="partition/k"))
    assert gates(insert(store, Start(M.s, {}, partition_key="k"))) == ["partition/k"]


def test_a_row_of_a_limit_that_rows_of_its_queue_wait_for_is_inserted_as_blocked(store: Store) -> None:
    """In another queue no row may wait, so none would be unblocked for it."""
    store.given(LIMIT + executing(1, slot_key="l") + instance(2, slot_key="l", blocked_on="slot/l"))
    rows = insert(store, Start(M.s, {}, limit="l"), Start(M.s, {}, limit="l", queue="other"))
    assert gates(rows) == ["slot/l", None]


def test_the_second_look_unblocks_the_first_row_of_a_free_gate(store: Store) -> None:
    """Of a key that was freed in between; of a limit likewise."""
    store.given(
        LIMIT
        + instance(1, partition_key="k", blocked_on="partition/k")
        + instance(2, slot_key="l", blocked_on="slot/l")
    )
    rows = [InsertResult(1, True, "partition/k"), InsertResult(2, True, "slot/l")]
    assert store.run(unblock_new_rows(store.calls, rows)) == ["default", "default"]
    assert sorted(claim.id for claim in store.pick().claims) == [1, 2]


@pytest.mark.dirty
def test_the_second_look_leaves_a_row_behind_another(store: Store) -> None:
    """It does not lock the gate: the end of the row before it does."""
    store.given(instance(1, partition_key="k", eligible_at=seconds(-9), blocked_on="partition/k"))
    store.given(instance(2, partition_key="k", blocked_on="partition/k"))
    assert store.run(unblock_new_rows(store.calls, [InsertResult(2, True, "partition/k")])) == []
    assert store.pick().claims == []
