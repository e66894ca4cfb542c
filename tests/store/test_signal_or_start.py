"""Deliver to the live holder of a key, or start one with the signal: the verdicts, and what is written."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from tests.support.machine import M
from tests.support.rows import LIVE, ended, executing, instance, parked, seconds, signal
from tests.support.store import Store

from gen_durable.operations.start_or_update import make_signal_or_start
from gen_durable.signals import Signal
from gen_durable.starts import FOREVER, Start
from gen_durable.store.start_or_update import StartOrUpdateResult, StartOrUpdateStatementBuilder

go = Signal("go", int)
EVER = "{" + ",".join(FOREVER) + "}"


def call(store: Store, payload: int, dedup_key: str | None = None, **options: Any) -> StartOrUpdateResult:
    made = make_signal_or_start("k", go, payload, dedup_key, Start(M.s, {"n": payload}, **options))
    return store.run(StartOrUpdateStatementBuilder(store.schema).start_or_update(made))


def test_a_free_key_starts(store: Store) -> None:
    """The instance has all options of its start, the key, the start's own signals, and then the signal."""
    result = call(store, 1, "d", queue="q", priority=3, delay=60, metadata={"a": 1}, signals=[go.of(0)])
    (row,) = store.rows()
    assert result == StartOrUpdateResult(row["id"], "started", "q", None)
    assert (row["unique_guard"], row["queue"], row["priority"], row["state"]) == (b"k", "q", 3, '{"n": 1}')
    assert (row["metadata"], row["has_signals"], row["status"]) == ('{"a": 1}', True, "runnable")
    assert store.row(row["id"])["eligible_in"] == pytest.approx(60, abs=20)
    assert [(s["payload"], s["dedup_key"]) for s in store.inbox()] == [("0", None), ("1", "d")]


@pytest.mark.parametrize("given", [instance(1, eligible_at=seconds(60)), executing(1), parked(1)])
def test_a_live_holder_receives(store: Store, given: str) -> None:
    """It is signalled as by `signal`, and nothing is started."""
    store.given(given)
    store.sql("update @schema.instances set unique_key = 'k', unique_scope = $1::text::@schema.durable_status[]", LIVE)
    is_parked = store.row(1)["status"] == "awaiting_signal"
    result = call(store, 1, signals=[go.of(0)])
    assert result == StartOrUpdateResult(1, "delivered", "default" if is_parked else None, None)
    assert [s["payload"] for s in store.inbox()] == ["1"]
    assert len(store.rows()) == 1


def test_the_end_of_a_holder_frees_its_key(store: Store) -> None:
    """The next call starts a second instance."""
    store.given(ended(1, unique_key=b"k", unique_scope="{}"))
    assert call(store, 1).verdict == "started"


def test_a_key_that_is_kept_has_no_target(store: Store) -> None:
    """Under a key that an ended instance still holds, nothing is started and nothing is delivered."""
    store.given(ended(1, unique_key=b"k", unique_scope=EVER))
    assert call(store, 1) == StartOrUpdateResult(1, "no_target", None, None)
    assert (len(store.rows()), store.inbox()) == (1, [])


def test_a_dedup_key_counts_for_all_instances_of_the_key(store: Store) -> None:
    """A repeated call is a duplicate after a start, after its end, and while a later instance lives."""
    first = call(store, 1, "d").target
    assert first is not None
    assert call(store, 1, "d") == StartOrUpdateResult(first, "duplicate", None, None)
    store.pick()
    store.sql(
        "update @schema.instances set status = 'done', finished_at = now(), unique_scope = '{}', locked_by = null, "
        "lease_expires_at = null"
    )
    assert call(store, 1, "d") == StartOrUpdateResult(first, "duplicate", None, None)
    assert len(store.rows()) == 1
    second = call(store, 2, "e")
    assert second.verdict == "started"
    assert call(store, 1, "d") == StartOrUpdateResult(first, "duplicate", None, None)
    assert call(store, 2, "e") == StartOrUpdateResult(second.target, "duplicate", None, None)
    assert [s["payload"] for s in store.inbox()] == ["1", "2"]


def test_a_repeated_call_under_a_kept_key_is_a_duplicate(store: Store) -> None:
    """It was delivered: that the instance has ended since does not make it an error."""
    store.given(ended(1, unique_key=b"k", unique_scope=EVER) + signal(1, 1, dedup_key="d", consumed=True))
    assert call(store, 1, "d").verdict == "duplicate"


def test_a_rejected_signal_does_not_count(store: Store) -> None:
    """A signal that no worker could read has freed its dedup key: it may be sent again, corrected."""
    store.given(
        ended(1, unique_key=b"k", unique_scope="{}") + signal(1, 1, dedup_key="d", consumed=True, rejection="no")
    )
    assert call(store, 1, "d").verdict == "started"


def test_other_keys_do_not_count(store: Store) -> None:
    """A dedup key is per unique key."""
    store.given(instance(1, unique_key=b"other", unique_scope=LIVE) + signal(1, 1, dedup_key="d"))
    assert call(store, 1, "d").verdict == "started"


def test_the_newest_instances_of_a_key_count(store: Store) -> None:
    """The look for a dedup key is bounded, and begins with the newest."""
    store.given(
        "insert into @schema.instances (fsm, step, status, finished_at, unique_key) "
        "select 'm', 's', 'done', now(), 'k' from generate_series(1, 1000);"
    )
    first = call(store, 1, "d")
    store.sql("update @schema.instances set status = 'done', finished_at = now(), unique_scope = '{}' where id = $1",
              first.target)  # fmt: skip
    assert call(store, 1, "d") == StartOrUpdateResult(first.target, "duplicate", None, None)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_dedup_key_needs_read_committed(store: Store, level: str) -> None:
    """It is looked for after a lock, and an old snapshot would not show it."""
    store.given(f"begin isolation level {level}")
    assert call(store, 1).verdict == "started"
    with pytest.raises(asyncpg.PostgresError) as raised:
        call(store, 1, "d")
    assert raised.value.sqlstate == "GD006"
    store.given("rollback")


def test_from_plain_sql(store: Store) -> None:
    """Only machine and step are required; the key is held while the instance lives."""
    text = "select @schema.signal_or_start('k', 'go', '1', start => $1::text::jsonb, dedup_key => $2) as verdict"
    start = '{"fsm": "m", "step": "s", "state": {"n": 1}, "id": 7, "signals": [{"name": "stop"}]}'
    assert [store.sql(text, start, key)[0]["verdict"] for key in ("a", "b", "a")] == [
        "started", "delivered", "duplicate",
    ]  # fmt: skip
    (row,) = store.rows()
    assert row["id"] > 100
    assert (row["fsm"], row["fsm_version"], row["queue"], row["unique_guard"]) == ("m", 1, "default", b"k")
    assert [(s["name"], s["dedup_key"]) for s in store.inbox()] == [("stop", None), ("go", "a"), ("go", "b")]
