"""The bounds of a signal, held by the database, and of the number of elements in one call."""

from __future__ import annotations

import pytest
from tests.support.machine import M
from tests.support.rows import instance
from tests.support.store import Store

from gen_durable.pg.error_classifier import SqlError
from gen_durable.starts import Start
from gen_durable.validation import MAX_DEPTH, MAX_KEY, MAX_PAYLOAD

DEEP = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
BAD = {
    "no-name": ("name => ''", "the name of a signal must be 1 to 200 characters"),
    "name-null": ("name => null", "the name of a signal must be 1 to 200 characters"),
    "name-with-an-escape": (r"name => E'\x1b[31m'", "the name of a signal must be 1 to 200 characters"),
    "long-name": ("name => repeat('n', 201)", "the name of a signal must be 1 to 200 characters"),
    "empty-dedup-key": ("name => 'go', dedup_key => ''", "dedup_key must have 1 to 512 bytes"),
    "long-dedup-key": (f"name => 'go', dedup_key => repeat('k', {MAX_KEY + 1})", "dedup_key must have 1 to 512 bytes"),
    "large-payload": (
        f"name => 'go', payload => to_jsonb(repeat('x', {MAX_PAYLOAD * 3 // 2}))",
        "the payload is 1500002 bytes",
    ),
    "payload-of-written-out-numbers": (
        "name => 'go', payload => (select jsonb_agg(1e131071) from generate_series(1, 12))",
        "bytes of JSON",
    ),
    "deep-payload": (f"name => 'go', payload => '{DEEP}'", "nested deeper than 64 levels"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_signal_refuses(store: Store, arguments: str, words: str) -> None:
    store.given(instance(1))
    with pytest.raises(SqlError) as refused:
        store.sql(f"select @schema.signal(1, {arguments})")
    assert refused.value.sqlstate == "22023"
    assert words in str(refused.value)
    assert store.sql("select * from @schema.signals") == []


def test_first_signals_have_the_same_bounds(store: Store) -> None:
    """Those that come with an insert."""
    with pytest.raises(SqlError, match="the name of a signal"):
        store.sql(
            "select * from @schema.insert('{m}', '{1}', '{s}', '{1}', '{default}', '{}', '{}', '{}', '{}', '{}', '{}',"
            """ signals => array['[{"name": "a b"}]'::jsonb])"""
        )
    assert store.rows() == []


def test_the_longest_payload_of_the_client(store: Store) -> None:
    """It is half as long again when Postgres has written its spaces."""
    (row,) = store.insert(Start(M.s, None))
    zeros = "[" + ",".join("0" * (MAX_PAYLOAD // 2 - 1)) + "]"
    assert (
        store.sql("select @schema.signal($1::bigint, 'go', $2::text::jsonb) as it", row.id, zeros)[0]["it"]
        == "delivered"
    )


@pytest.mark.parametrize(
    ("call", "most"),
    [
        ("@schema.cancel(array_fill(1::bigint, array[{n}]), '{{}}', 'why', true)", 10_000),
        (
            "@schema.signal(array_fill(1::bigint, array[{n}]), '{{}}', array_fill('go'::text, array[{n}]),"
            " '{{}}', '{{}}')",
            100_000,
        ),
        ("@schema.instances_of(array_fill(1::bigint, array[{n}]), false)", 100_000),
        ("@schema.ends_of(array_fill(1::bigint, array[{n}]))", 100_000),
        ("@schema.notify_workers('queue', array_fill('q'::text, array[{n}]))", 10_000),
    ],
    ids=["cancel", "signal", "instances_of", "ends_of", "notify_workers"],
)
def test_a_call_has_so_many_elements_at_most(store: Store, call: str, most: int) -> None:
    with pytest.raises(SqlError, match=f"at most {most} elements go in one call, got {most + 1}"):
        store.sql(f"select * from {call.format(n=most + 1)}")
