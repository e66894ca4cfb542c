"""No call compiles anything, whatever the server's `jit`: compiling takes 200 ms, the calls a few milliseconds.

`enable_seqscan = off` makes a plan that reads a small table cost ten thousand million, far above `jit_above_cost`, so a
function that states the one must state the other.
"""

from __future__ import annotations

import pytest
from tests.store.test_plans import WORKS, journal, plans_of
from tests.support.store import Store

from gen_durable.listing import encode_filters

READS = {
    "get": lambda s: s.calls.get(1, None),
    "list": lambda s: s.reads.list(encode_filters({"status": "failed"}), None, 20, payloads=True),
    "list by metadata": lambda s: s.reads.list(encode_filters({"metadata": {"a": 1}}), None, 20, payloads=True),
    "count": lambda s: s.reads.count(encode_filters({"machine": "m"})),
    "checkpoint of one": lambda s: journal(s).checkpoint_of(1, None),
    "limits": lambda s: s.calls.limit_states(),
    "id of key": lambda s: s.calls.id_of_key(b"k"),
    "delete": lambda s: s.reads.delete_instance(1, None),
    "retry": lambda s: s.reads.retry(1, None),
}
CALLS = READS | {name: work.call for name, work in WORKS.items()}
ROWS = """
insert into @schema.instances (id, fsm, step, status, finished_at, claims, seq, last_error)
overriding system value select n, 'm', 's', 'failed', now(), 1, 1, 'no' from generate_series(1, 30) as n;
insert into @schema.instances (fsm, step, status, awaits, seen, claims, seq, unique_key, unique_scope)
select 'm', 's', 'awaiting_signal', '{go}', '{}', 1, 1, convert_to('p' || n, 'UTF8'),
       '{runnable,executing,awaiting_signal,awaiting_children}'
from generate_series(1, 9) as n
"""


@pytest.mark.parametrize("setting", ["jit=off", "plan_cache_mode=force_generic_plan"])
def test_every_function_states_it(store: Store, setting: str) -> None:
    """Except immutable ones: they read no table, and functions that state it call them."""
    functions = store.sql(
        "select p.oid::regprocedure::text as name, p.proconfig from pg_proc p"
        " where p.pronamespace = $1::text::regnamespace and p.provolatile <> 'i'",
        store.schema.name,
    )
    assert len(functions) > 50
    assert not [f["name"] for f in functions if setting not in (f["proconfig"] or ())]


@pytest.mark.parametrize("name", CALLS)
def test_compiles_nothing(store: Store, dsn: str, name: str) -> None:
    """With Postgres' own default no statement is compiled; with a server that compiles all, none inside a function."""
    store.given(ROWS)
    (available,) = store.sql("select pg_jit_available() as it")
    call = CALLS[name](store)
    for plan in plans_of(store, dsn, call, jit="on"):
        assert not available["it"] or "JIT:" not in plan, plan
    for plan in plans_of(store, dsn, call, jit="on", jit_above_cost="0"):
        is_inside = f"Query Text: {call.text}" not in plan
        assert not (available["it"] and is_inside and "JIT:" in plan), plan
