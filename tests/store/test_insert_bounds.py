"""The bounds of what a caller inserts, held by the database: by arrays, with a signal, debounced."""

from __future__ import annotations

import json

import pytest
from tests.support.machine import M
from tests.support.store import Store

from gen_durable.pg.error_classifier import SqlError
from gen_durable.starts import Start
from gen_durable.validation import MAX_BATCH, MAX_DEPTH, MAX_KEY, MAX_METADATA, MAX_PAYLOAD

LARGE = MAX_PAYLOAD * 3 // 2  # as Postgres writes it, with spaces
DEEP = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
ARRAYS = {
    "fsms": "'{m}'",
    "versions": "'{1}'",
    "steps": "'{s}'",
    "states": "array['1']::jsonb[]",
    "queues": "'{q}'",
    "priorities": "'{}'",
    "partition_keys": "'{}'",
    "delays": "'{}'",
    "schedule_ats": "'{}'",
    "unique_keys": "'{}'",
    "unique_scopes": "'{}'",
}
BAD_ARRAYS = {
    "no-machine": ("fsms", "'{\"\"}'", "machine must be 1 to 200 characters"),
    "machine-null": ("fsms", "array[null]", "machine must be 1 to 200 characters"),
    "machine-with-an-escape": ("fsms", r"array[E'\x1b[31m']", "machine must be 1 to 200 characters"),
    "long-machine": ("fsms", "array[repeat('m', 201)]", "machine must be 1 to 200 characters"),
    "step-with-a-newline": ("steps", r"array[E's\n']", "step must be 1 to 200 characters"),
    "no-queue": ("queues", "'{\"\"}'", "queue must be 1 to 200 characters"),
    "version-zero": ("versions", "'{0}'", "version must be a number from 1 on"),
    "version-null": ("versions", "array[null::int]", "version must be a number from 1 on"),
    "large-state": ("states", f"array[to_jsonb(repeat('x', {LARGE}))]", "the state is 1500002 bytes"),
    "state-of-written-out-numbers": (
        "states",
        "array[(select jsonb_agg(1e131071) from generate_series(1, 12))]",
        "bytes of JSON",
    ),
    "deep-state": ("states", f"array['{DEEP}']::jsonb[]", "nested deeper than 64 levels"),
    "large-metadata": (
        "metadatas",
        f"array[jsonb_build_object('k', repeat('x', {MAX_METADATA * 3 // 2}))]",
        "at most 8000 are allowed",
    ),
    "metadata-array": ("metadatas", "array['[]']::jsonb[]", "metadata must be a JSON object"),
    "empty-partition-key": ("partition_keys", "'{\"\"}'", "partition_key must have 1 to 512 bytes"),
    "long-partition-key": ("partition_keys", f"array[repeat('k', {MAX_KEY + 1})]", "partition_key must have"),
    "empty-unique-key": ("unique_keys", "array['']::bytea[]", "unique_key must have 1 to 512 bytes"),
    "group-without-a-kind": ("groups", "'{acme}'", "group_key must be a kind and a group"),
    "long-group": ("groups", f"array['tenant/' || repeat('x', {MAX_KEY + 1})]", "group_key must have 1 to 512 bytes"),
    "due-never": ("schedule_ats", "'{infinity}'", "schedule_at must be in the years 2 to 9998"),
    "due-since-ever": ("schedule_ats", "'{-infinity}'", "schedule_at must be in the years 2 to 9998"),
    "year-20000": ("schedule_ats", "'{20000-01-01 00:00+00}'", "schedule_at must be in the years 2 to 9998"),
    "delay-of-a-thousand-years": ("delays", "'{3e10}'", "delay must be from 0 to 36500 days"),
    "delay-nan": ("delays", "'{NaN}'", "delay must be from 0 to 36500 days"),
    "delay-below-zero": ("delays", "'{-1}'", "delay must be from 0 to 36500 days"),
    "keep-of-a-thousand-years": ("keeps", "'{3e10}'", "keep must be from 0 to 36500 days"),
    "keep-below-zero": ("keeps", "'{-1}'", "keep must be from 0 to 36500 days"),
    "keep-nan": ("keeps", "'{NaN}'", "keep must be from 0 to 36500 days"),
}
BAD_STARTS = {
    "machine": ({"fsm": "a b"}, "machine must be 1 to 200 characters"),
    "step": ({"step": "\x1b[31m"}, "step must be 1 to 200 characters"),
    "version": ({"version": 0}, "version must be a number from 1 on"),
    "state": ({"state": "x" * LARGE}, "the state is 1500002 bytes"),
    "delay": ({"delay": 3e10}, "delay must be from 0 to 36500 days"),
}


def insert_arrays(store: Store, **changed: str) -> int:
    arguments = ", ".join(f"{name} => {value}" for name, value in (ARRAYS | changed).items())
    return len(store.sql(f"select * from @schema.insert({arguments})"))


@pytest.mark.parametrize(("column", "value", "words"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
@pytest.mark.parametrize("place", ["alone", "last"])
def test_insert_refuses(store: Store, column: str, value: str, words: str, place: str) -> None:
    """Also behind a row without a fault; no row of the call is inserted."""
    arrays = ARRAYS | {column: value}
    if place == "last":
        fine = {"metadatas": "'{null}'", "groups": "'{null}'", "keeps": "'{null}'"} | {
            name: "'{null}'" if array == "'{}'" else array for name, array in ARRAYS.items()
        }
        casts = {"states": "::jsonb[]", "metadatas": "::jsonb[]", "versions": "::int[]", "delays": "::float8[]"}
        casts |= {"keeps": "::float8[]", "schedule_ats": "::timestamptz[]", "unique_keys": "::bytea[]"}
        arrays = {
            name: f"{fine[name]}{casts.get(name, '::text[]')} || {arrays[name]}{casts.get(name, '::text[]')}"
            for name in arrays
            if name != "priorities"
        } | {"priorities": "'{}'"}
    with pytest.raises(SqlError) as refused:
        insert_arrays(store, **arrays)
    assert refused.value.sqlstate == "22023"
    assert words in str(refused.value)
    assert store.rows() == []


def test_the_largest_values_of_the_client(store: Store) -> None:
    """Postgres writes them with spaces, so they are longer here than what the client has measured."""
    metadata = {"k": [0] * (MAX_METADATA // 2 - 4)}
    (large,) = store.insert(Start(M.s, [0] * (MAX_PAYLOAD // 2 - 1), metadata=metadata))
    row = store.row(large.id)
    assert len(row["state"]) > 1.4 * MAX_PAYLOAD
    assert len(row["metadata"]) > 1.4 * MAX_METADATA


def test_a_batch_has_a_bound(store: Store) -> None:
    call = (
        "select count(*) as n from @schema.insert(array_fill('m'::text, array[{n}]), array_fill(1, array[{n}]),"
        " array_fill('s'::text, array[{n}]), array_fill('1'::jsonb, array[{n}]), array_fill('q'::text, array[{n}]),"
        " '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}')"
    )
    with pytest.raises(SqlError, match="at most 10000 elements go in one call, got 10001"):
        store.sql(call.format(n=MAX_BATCH + 1))
    assert store.sql(call.format(n=MAX_BATCH))[0]["n"] == MAX_BATCH


@pytest.mark.parametrize(("changed", "words"), BAD_STARTS.values(), ids=BAD_STARTS)
@pytest.mark.parametrize("is_restart", [False, True])
def test_debounce_refuses(store: Store, changed: dict[str, object], words: str, is_restart: bool) -> None:
    """The first call, which inserts, and the second, which replaces state and delay."""
    call = "select * from @schema.debounce('k', $1::jsonb, null, null, null)"
    fine = {"fsm": "m", "step": "s", "state": 1, "delay": 60}
    if is_restart:
        store.sql(call, json.dumps(fine))
        changed = {key: value for key, value in changed.items() if key != "fsm"} or {"step": "a b"}
        words = words.replace("machine", "step")
    with pytest.raises(SqlError) as refused:
        store.sql(call, json.dumps(fine | changed))
    assert refused.value.sqlstate == "22023"
    assert words in str(refused.value)
    assert [json.loads(row["state"]) for row in store.rows()] == ([1] if is_restart else [])


def test_a_signal_that_starts_refuses(store: Store) -> None:
    """The start of signal_or_start goes the same way."""
    with pytest.raises(SqlError, match="step must be 1 to 200 characters"):
        store.sql("select @schema.insert_if_key_free('k', $1::jsonb)", json.dumps({"fsm": "m", "step": "a b"}))
    assert store.rows() == []
