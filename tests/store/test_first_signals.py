"""Instances that are inserted with their first signals: in one transaction, in order, and only the new ones."""

from __future__ import annotations

import json

import asyncpg
import pytest
from tests.support.machine import M, child, fan_out
from tests.support.rows import LIVE, executing, instance
from tests.support.store import Store

from gen_durable.signals import Signal
from gen_durable.starts import Start
from gen_durable.store.types import Commit

go = Signal("go", int)
stop = Signal("stop")


def inbox(store: Store) -> list[tuple[int, str, str, str | None]]:
    return [(s["target_id"], s["name"], s["payload"], s["dedup_key"]) for s in store.inbox()]


def test_signals_come_with_the_insert(store: Store) -> None:
    """Each instance has its own, in their order; one without signals has none. A claim carries them."""
    first, _, third = store.insert(
        Start(M.s, {}, signals=[go.of(2), go.of(1, dedup_key="d"), stop.of()]),
        Start(M.s, {}),
        Start(M.s, {}, signals=[go.of(3, dedup_key="d")]),
    )
    assert first.id is not None
    assert third.id is not None
    assert inbox(store) == [
        (first.id, "go", "2", None), (first.id, "go", "1", "d"), (first.id, "stop", "null", None),
        (third.id, "go", "3", "d"),
    ]  # fmt: skip
    assert [row["has_signals"] for row in store.rows()] == [True, False, True]
    claim = store.pick(1).claims[0]
    assert [(received.name, received.payload) for received in claim.inbox] == [
        ("go", b"2"), ("go", b"1"), ("stop", b"null"),
    ]  # fmt: skip


def test_a_dedup_key_counts_once(store: Store) -> None:
    """Two first signals with one dedup key are one."""
    store.insert(Start(M.s, {}, signals=[go.of(1, dedup_key="d"), go.of(2, dedup_key="d")]))
    assert [payload for _, _, payload, _ in inbox(store)] == ["1"]


@pytest.mark.parametrize("on_conflict", ["skip", "existing"])
def test_a_start_that_is_not_inserted_sends_nothing(store: Store, on_conflict: str) -> None:
    """Neither to the holder of its key, nor to anything else; its siblings get theirs."""
    store.given(instance(1, unique_key=b"k", unique_scope=LIVE))
    taken, free = store.insert(
        Start(M.s, {}, unique_key="k", signals=[go.of(1)]),
        Start(M.s, {}, unique_key="free", signals=[go.of(2)]),
        on_conflict=on_conflict,
    )
    assert taken.id == (1 if on_conflict == "existing" else None)
    assert inbox(store) == [(free.id, "go", "2", None)]
    assert store.row(1)["has_signals"] is False


def test_a_conflict_that_raises_sends_nothing(store: Store) -> None:
    """The call is one transaction."""
    store.given(instance(1, unique_key=b"k", unique_scope=LIVE))
    with pytest.raises(asyncpg.PostgresError):
        store.insert(Start(M.s, {}, signals=[go.of(1)]), Start(M.s, {}, unique_key="k", signals=[go.of(2)]))
    assert inbox(store) == []
    assert len(store.rows()) == 1


def test_signals_that_do_not_fit_are_refused(store: Store) -> None:
    """An inbox takes 64 MB, also from plain SQL: the instance is not inserted without some of its signals."""
    one = '{"name": "go", "payload": "' + "x" * 1_340_000 + '"}'
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        store.sql(
            "select * from @schema.insert('{m}', '{1}', '{s}', '{1}', '{default}', '{}', '{}', '{}', '{}', '{}', "
            "'{}', signals => array[$1::text::jsonb])",
            "[" + ",".join([one] * 50) + "]",
        )
    assert store.rows() == []


def test_children_and_spawns_have_first_signals(store: Store) -> None:
    """Those of a child that is not inserted, since its key is taken, are not sent."""
    signals = [{"name": "go", "payload": 1, "dedup_key": None}, {"name": "stop"}]
    store.given(executing(1) + executing(2) + instance(3, unique_key=b"k", unique_scope=LIVE))
    spawn = json.dumps({"spawn": [child(signals=signals[:1])]})
    store.flush(
        fan_out(1, child("k", signals=signals), child("a", signals=signals), child("b")),
        Commit(2, 1, 0, "done", extra=spawn),
    )
    by_id = {row["id"]: row for row in store.rows()}
    (of_a,) = [row["id"] for row in by_id.values() if row["unique_key"] == b"a"]
    (spawned,) = [id_ for id_, row in by_id.items() if id_ > 100 and row["parent_id"] is None]
    assert inbox(store) == [(of_a, "go", "1", None), (of_a, "stop", None, None), (spawned, "go", "1", None)]
    assert {id_ for id_, row in by_id.items() if row["has_signals"]} == {of_a, spawned}
