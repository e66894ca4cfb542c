"""The work of listing and counting on a big table: each filter by the index it names, no more rows than it may look at.

200,000 rows, most of them ended long ago; statistics as wrong as in `test_plans`.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.store.test_plans import counted, plans_of
from tests.support.store import Store

from gen_durable.listing import Filters, encode_filters
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

SCAN = 20_000
SEED = """
alter table @schema.instances set (autovacuum_enabled = false);
insert into @schema.instances (fsm, step, status, claims, locked_by, lease_expires_at)
select 'm', 's', 'executing', 1, 'w', now() from generate_series(1, 50) n;
analyze @schema.instances;
delete from @schema.instances;

insert into @schema.instances
  (fsm, step, status, inserted_at, updated_at, finished_at, claims, seq, queue, partition_key, metadata)
select 'm' || n % 7, 's' || n % 3,
       (case when n % 10000 = 17 then 'failed'
         when n % 1000 = 5 then 'cancelled' else 'done' end)::@schema.durable_status,
       now() - make_interval(secs => 300000 - n), now() - make_interval(secs => 200000 - n),
       now() - make_interval(secs => 200000 - n), 1, 1, 'q' || n % 5, 'p' || n % 1000,
       jsonb_build_object('tenant', 't' || n % 100, 'order', n)
from generate_series(1, 160000) as n;
insert into @schema.instances (id, fsm, step, status, children_pending, round, claims, seq)
overriding system value select 500000, 'parent', 's', 'awaiting_children', 3000, 1, 1, 1;
insert into @schema.instances (id, fsm, step, parent_id, parent_round)
overriding system value select 500000 + n, 'm1', 's', 500000, 1 from generate_series(1, 3000) as n;
select setval('@schema.instances_id_seq', 600000);
insert into @schema.instances (fsm, step, status, claims, locked_by, lease_expires_at)
select 'm1', 's1', 'executing', 1, 'w', now() + interval '1 hour' from generate_series(1, 300) as n;
insert into @schema.instances (fsm, step, status, awaits, seen, claims, seq, unique_key, unique_scope)
select 'm1', 's1', 'awaiting_signal', '{go}', '{}', 1, 1, convert_to('k' || n, 'UTF8'),
       '{runnable,executing,awaiting_signal,awaiting_children}'
from generate_series(1, 36000) as n;
insert into @schema.instances (fsm, step, queue, partition_key, blocked_on)
select 'm1', 's1', 'blocked', 'p', 'partition/p' from generate_series(1, 30) as n;
vacuum @schema.instances;
"""
PKEY = "instances_pkey"
TROUBLED, LEASE, FINISHED = "instances_ended_badly", "instances_lease", "instances_finished"
PARENT, KEY, KEPT = "instances_parent", "instances_key", "instances_kept"
PICK, BLOCKED, PARKED = "instances_pick", "instances_blocked", "instances_parked"


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Look:
    """Filters, the index that finds what fits, and how many of its entries may be read to fill a page."""

    filters: dict[str, Any]
    index: str = PKEY
    rows: int = 2 * SCAN


LOOKS = {
    "nothing": Look({}, rows=60),
    "dense": Look({"status": "awaiting_signal", "machine": "m1"}, rows=60),
    "runnable": Look({"status": "runnable"}),
    "executing": Look({"status": "executing"}, LEASE, 1000),
    "executing, rare": Look({"status": "executing", "machine": "nobody"}, LEASE, 1300),
    "done": Look({"status": "done"}),
    "failed": Look({"status": "failed"}, TROUBLED, 2000),
    "failed of a machine": Look({"status": ["failed", "cancelled"], "machine": "m3"}, TROUBLED, 2000),
    "machine": Look({"machine": "m6"}),
    "version": Look({"version": 9}),
    "step": Look({"step": "s2"}),
    "queue": Look({"queue": "q3"}),
    "partition key": Look({"partition_key": "p77"}),
    "parent": Look({"parent": 500_000}, PARENT, 60),
    "parent, rare": Look({"parent": 500_000, "status": "done"}, PARENT, 6100),
    "unique key": Look({"unique_key": "k5"}, KEY, 4),
    "inserted after": Look({"inserted_after": ago(200_000)}, rows=60),
    "inserted before": Look({"inserted_before": ago(289_000)}, rows=4000),
    "inserted": Look({"inserted_after": ago(290_000), "inserted_before": ago(289_000)}),
    "updated after": Look({"updated_after": ago(3600)}, rows=60),
    "updated": Look({"updated_before": ago(190_000)}),
    "finished lately": Look({"finished_after": ago(42_000)}, FINISHED, 8000),
    "finished long ago": Look({"finished_before": ago(199_000), "finished_after": ago(199_500)}, FINISHED, 2000),
    "finished, many": Look({"finished_before": ago(50_000)}),
    "metadata": Look({"metadata": {"tenant": "t3"}}),
    "metadata and status": Look({"metadata": {"order": 10_017}, "status": "failed"}, TROUBLED, 2000),
    "due": Look({"due": True}, PICK, 9200),
    "due, rare": Look({"due": True, "machine": "m2"}, PICK, 9200),
    "blocked": Look({"blocked": True}, BLOCKED, 200),
    "not blocked": Look({"blocked": False}, rows=60),
    "error": Look({"error": "boom"}),
    "waiting in a step": Look({"machine": "m1", "step": "s1", "status": "awaiting_signal"}, PARKED, 60),
    "resting in a rare step": Look(
        {"machine": "m3", "step": "s", "status": ["failed", "awaiting_children"]}, PARKED, 60
    ),
    "failed in a step, few in all": Look({"machine": "m3", "step": "s2", "status": "failed"}, TROUBLED, 2000),
    "failed by an error": Look({"error": "boom", "status": "failed"}, TROUBLED, 2000),
    "everything": Look({"machine": "m6", "step": "s2", "queue": "q1", "metadata": {"tenant": "t1"}, "status": "done"}),
}


def test_every_filter_is_looked_at() -> None:
    """A filter that is new is to be measured too."""
    assert {name for look in LOOKS.values() for name in look.filters} == set(Filters.__annotations__)


@pytest.fixture(scope="module")
def big(dsn: str) -> Iterator[Store]:
    name = f"t_{uuid.uuid4().hex[:12]}"

    async def prepare() -> None:
        link = PersistentConnection(ConnectionTarget(dsn))
        await migrate(link, Schema(name))
        for statement in Schema(name).render(SEED).split(";\n"):
            if statement.strip():
                await link.run_script(statement)
        await link.close()

    asyncio.run(prepare())
    store = Store(dsn, name)
    store.given("set plan_cache_mode = force_generic_plan")
    yield store
    store.given("drop schema @schema cascade")
    store.close()


def check_work(big: Store, call: Statement[Any], indexes: set[str], rows: int) -> None:
    big.run(call)  # the first one also marks dead entries at the ends of the index, which the planner looks at
    big.given("begin")
    try:
        before = counted(big)
        big.run(call)
        after = counted(big)
    finally:
        big.given("rollback")
    used = {key: (after[key][0] - before[key][0], after[key][1] - before[key][1]) for key in after}
    assert not {table for (table, kind), (scans, _) in used.items() if kind == "r" and scans}
    read = {index: n for (index, kind), (scans, n) in used.items() if kind == "i" and scans}
    assert set(read) <= indexes, read
    assert sum(read.values()) <= rows, read


def check_plans(big: Store, dsn: str, call: Statement[Any], index: str) -> None:
    # What count.sql only has explained, for the planner's guess, is not run.
    plans = [plan for plan in plans_of(big, dsn, call) if "Query Text: explain" not in plan]
    assert any(re.search(rf"using {index}\b|on {index}\b", plan) for plan in plans), plans
    for plan in plans:
        assert not re.search(r"Seq Scan on instances\b", plan), plan
        assert not re.search(r"Sort Method: external", plan), plan


def calls(big: Store, look: Look) -> dict[str, Statement[Any]]:
    what = encode_filters(look.filters)
    return {"list": big.reads.list(what, None, 50, payloads=False), "count": big.reads.count(what)}


@pytest.mark.parametrize("verb", ["list", "count"])
@pytest.mark.parametrize("name", LOOKS)
def test_work(big: Store, name: str, verb: str) -> None:
    """Rows are found by the index of their filter, and no more are looked at than may be."""
    look = LOOKS[name]
    few = {FINISHED} if name == "finished, many" else set[str]()  # filter_sql.sql has counted whether they are few
    ended = {KEPT, *few} if name.startswith("finished") else few
    rows = look.rows if verb == "list" else 2 * SCAN
    check_work(big, calls(big, look)[verb], {look.index, PKEY, *ended}, rows + 200 + (5001 if few else 0))


@pytest.mark.parametrize("verb", ["list", "count"])
@pytest.mark.parametrize("name", LOOKS)
def test_plans(big: Store, dsn: str, name: str, verb: str) -> None:
    """The index is the one that is named, nothing is read from end to end or sorted on disk."""
    check_plans(big, dsn, calls(big, LOOKS[name])[verb], LOOKS[name].index)


@pytest.mark.parametrize("name", LOOKS)
def test_what_is_found(big: Store, name: str) -> None:
    """Page by page the same is found as by one plain query; counts are right where they are exact, near where not."""
    filters = LOOKS[name].filters
    found: list[int] = []
    below: int | None = None
    while True:
        text = big.schema.render("select ids, rest from @schema.list($1, $2, 1000)")
        ids, below = big.run(Statement(text, (encode_filters(filters), below), lambda rows: (rows[0][0], rows[0][1])))
        found += ids or []
        if below is None:
            break
    filter_text = big.sql("select filters from @schema.filter_sql($1)", encode_filters(filters))[0][0]
    fits = filter_text.replace("$1", "$1::jsonb").replace("true", "$1::jsonb is not null", 1)
    plain = big.sql(f"select i.id from @schema.instances i where {fits} order by i.id desc", encode_filters(filters))
    assert found == [row[0] for row in plain]
    count = big.run(big.reads.count(encode_filters(filters)))
    if count.exact:
        assert count.value == len(found)
    elif len(found) > 5000:
        assert len(found) / 2 < count.value < 2 * len(found)  # the server estimates from a random sample
