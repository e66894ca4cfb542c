"""`insert` of one instance from SQL: options by their names, the checks of the Python client, the id as answer."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.support.machine import M
from tests.support.rows import LIVE
from tests.support.store import Store

from gen_durable.pg.error_classifier import SqlError
from gen_durable.starts import Start
from gen_durable.store.types import Commit
from gen_durable.validation import MAX_DEPTH, MAX_KEY, MAX_METADATA, MAX_PAYLOAD


def insert(store: Store, arguments: str = "", machine: str = "'m', 's'") -> Any:
    """The answer of a call with these arguments after machine and step."""
    return store.sql(f"select @schema.insert({machine}{', ' if arguments else ''}{arguments}) as id")[0]["id"]


def nested(depth: int, inner: str = "") -> str:
    return "[" * depth + inner + "]" * depth


def test_the_shortest_call(store: Store) -> None:
    """Machine and step are enough; the row is like one of the Python client."""
    (theirs,) = store.insert(Start(M.s, None))
    ours = store.row(insert(store))
    different = {
        key
        for key in ours.keys()  # noqa: SIM118  # a record has no other way
        if ours[key] != store.row(theirs.id)[key] and not key.endswith(("_at", "_in"))
    }
    assert different == {"id"}
    assert [claim.id for claim in store.pick().claims] == [theirs.id, ours["id"]]


def test_every_option(store: Store) -> None:
    """Each argument reaches its column."""
    store.given(
        "insert into @schema.limits (name, kind, slots) values ('slots', 'concurrency', 3);"
        "insert into @schema.limits (name, kind, period, burst) values ('rate', 'rate', 1, 5)"
    )
    row = store.row(
        insert(
            store,
            """state => '{"id": 42}', unique_key => 'order:42', queue => 'mail', priority => -7, partition_key => 'p',
            delay => '1 hour', version => 3, metadata => '{"n": 1}', limits => '["slots", ["rate", "acme", 2]]',
            group_key => 'tenant/acme/2'""",
        )
    )
    assert (json.loads(row["state"]), row["unique_key"], row["unique_scope"]) == (
        {"id": 42},
        b"order:42",
        LIVE[1:-1].split(","),
    )
    assert (row["queue"], row["priority"], row["partition_key"], row["fsm_version"]) == ("mail", -7, "p", 3)
    assert 3590 < row["eligible_in"] < 3610
    assert (json.loads(row["metadata"]), row["group_key"]) == ({"n": 1}, "tenant/acme/2")
    assert (row["slot_key"], row["rate_key"], row["weight"]) == ("slots", "rate/acme", 2)
    later = store.row(insert(store, "schedule_at => '2040-01-01 00:00+00'"))
    assert later["eligible_at"].year == 2040


def test_the_call_of_the_docs_is_not_ambiguous(store: Store) -> None:
    """Literals without a type mean one instance; arrays mean the other overload, with and without their types."""
    assert insert(store, """'{"id": 42}', unique_key => 'order:42'""", "'Checkout', 'start'") > 0
    rows = store.sql(
        "select * from @schema.insert('{a,b}', '{1,1}', '{s,s}', array['1', '2']::jsonb[], '{q,q}', '{}', '{}', '{}',"
        " '{}', '{}', '{}')"
    )
    assert [row["inserted"] for row in rows] == [True, True]


@pytest.mark.parametrize(
    ("on_conflict", "again"), [("'skip'", None), ("'existing'", "holder"), ("'raise'", "GD001"), ("null", "22023")]
)
def test_a_key_that_is_taken(store: Store, on_conflict: str, again: str | None) -> None:
    """Null, the holder, or an error, as on_conflict says."""
    holder = insert(store, "unique_key => 'k'")
    call = f"unique_key => 'k', on_conflict => {on_conflict}"
    if again in ("GD001", "22023"):
        with pytest.raises(SqlError) as refused:
            insert(store, call)
        assert refused.value.sqlstate == again
    else:
        assert insert(store, call) == (holder if again == "holder" else None)
    assert len(store.rows()) == 1


@pytest.mark.parametrize(("scope", "is_free"), [("live", True), ("forever", False)])
def test_scopes_of_a_key(store: Store, scope: str, is_free: bool) -> None:
    """A key that is live is free again when its holder has ended; one that is forever is not."""
    first = insert(store, f"unique_key => 'k', unique_scope => '{scope}'")
    (claim,) = store.pick().claims
    store.flush(Commit(claim.id, claim.epoch, claim.seq, "done", value="1"))
    second = insert(store, f"unique_key => 'k', unique_scope => '{scope}', on_conflict => 'existing'")
    assert (second != first) is is_free
    assert store.row(first)["keep_seconds"] == (None if is_free else math.inf)
    kept = store.row(insert(store, f"unique_key => 'other', unique_scope => '{scope}', keep => '2 days'"))
    assert kept["keep_seconds"] == 2 * 86_400


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("queue => ''", "queue must be 1 to 200 characters out of A-Z a-z 0-9 _ . : - , got ''"),
        ("queue => null", "queue must be 1 to 200 characters"),
        ("queue => 'a b'", "got 'a b'"),
        ("queue => E'a\\n'", "queue must be 1 to 200 characters"),
        ("queue => repeat('q', 201)", "queue must be 1 to 200 characters"),
        ("unique_key => ''", "unique_key must have 1 to 512 bytes, got 0"),
        ("unique_key => repeat('ä', 257)", "unique_key must have 1 to 512 bytes, got 514"),
        ("partition_key => ''", "partition_key must have 1 to 512 bytes"),
        ("unique_scope => 'ever'", "unique_scope must be live or forever, got 'ever'"),
        ("unique_scope => 'forever'", "unique_scope forever needs a unique_key"),
        ("keep => '-1 s'", "keep must be from 0 to 36500 days"),
        ("keep => '200 years'", "keep must be from 0 to 36500 days"),
        ("unique_scope => null", "unique_scope must be live or forever, got null"),
        ("priority => 40000", "priority must be a number from -32768 to 32767"),
        ("priority => null", "priority must be a number"),
        ("version => 0", "version must be a number from 1 on"),
        ("version => null", "version must be a number from 1 on"),
        ("delay => '1 s', schedule_at => now()", "give either delay or schedule_at"),
        ("delay => '-1 s'", "delay must be from 0 to 36500 days"),
        ("delay => '200 years'", "delay must be from 0 to 36500 days"),
        ("schedule_at => 'infinity'", "schedule_at must be in the years 2 to 9998"),
        ("schedule_at => '-infinity'", "schedule_at must be in the years 2 to 9998"),
        (f"state => to_jsonb(repeat('x', {MAX_PAYLOAD}))", f"at most {MAX_PAYLOAD} are allowed"),
        (f"state => '{nested(MAX_DEPTH + 1)}'", "nested deeper than 64 levels"),
        ("metadata => '[]'", "metadata must be a JSON object"),
        (f"metadata => jsonb_build_object('k', repeat('x', {MAX_METADATA}))", "at most 8000 are allowed"),
        ("group_key => 'acme'", "group_key must be a kind and a group, such as tenant/acme"),
        ("group_key => 'tenant/'", "group_key must"),
        (f"group_key => 'tenant/' || repeat('x', {MAX_KEY + 1})", "group_key must have 1 to 512 bytes"),
        ("limits => '\"slots\"'", "limits must be an array of names"),
        ("limits => '[7]'", "limits must be an array of names"),
        ("limits => '[[\"slots\", null, 0]]'", "limits must be an array of names"),
        ("limits => '[[\"slots\", 7]]'", "limits must be an array of names"),
        ("limits => '[{\"slots\": 1}]'", "limits must be an array of names"),
        ("on_conflict => 'ignore'", "on_conflict must be raise, skip or existing"),
    ],
)
def test_refusals(store: Store, arguments: str, words: str) -> None:
    """A sentence and 22023, as an invalid argument of any function, and no row."""
    with pytest.raises(SqlError) as refused:
        insert(store, arguments)
    assert refused.value.sqlstate == "22023"
    assert words in str(refused.value)
    assert store.rows() == []


@pytest.mark.parametrize("names", ["null, 's'", "'m', null", "'a b', 's'", "'m', ''"])
def test_names_of_machine_and_step(store: Store, names: str) -> None:
    with pytest.raises(SqlError, match="must be 1 to 200 characters"):
        insert(store, "", names)


def test_an_undeclared_limit(store: Store) -> None:
    """The same error as for the Python client."""
    with pytest.raises(SqlError, match="stripe") as refused:
        insert(store, "limits => '[\"stripe\"]'")
    assert refused.value.sqlstate == "GD002"


@pytest.mark.parametrize(
    "state", [nested(MAX_DEPTH), nested(MAX_DEPTH, "1"), '{"a": ' * MAX_DEPTH + "1" + "}" * MAX_DEPTH]
)
def test_the_deepest_state(store: Store, state: str) -> None:
    """As deep as the Python client accepts."""
    assert json.loads(store.row(insert(store, f"state => '{state}'"))["state"]) == json.loads(state)
