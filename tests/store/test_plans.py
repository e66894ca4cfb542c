"""The work of each call on a big table, with generic plans and statistics that are wrong.

100,000 rows: ended, runnable, parked, far in the future and urgent. The planner was told of a small table in which
every row is executing, and is not told better. A call must still read rows in proportion to its batch, by the index it
names.
The counters work on every server; the plans themselves are looked at where auto_explain is to be had.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from tests.support.machine import KNOWN, M, child, fan_out, send
from tests.support.store import Store

from gen_durable.operations.start_or_update import make_debounce, make_signal_or_start
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.signals import Signal
from gen_durable.starts import Start
from gen_durable.store.journal import ActivityRecord, Fence, JournalStatementBuilder, ProgressReport
from gen_durable.store.retention import RetentionStatementBuilder
from gen_durable.store.schema import Schema
from gen_durable.store.start_or_update import StartOrUpdateStatementBuilder
from gen_durable.store.statements import Statement
from gen_durable.store.types import Commit

BATCH = 100
SEED = """
alter table @schema.instances set (autovacuum_enabled = false);
alter table @schema.signals set (autovacuum_enabled = false);
alter table @schema.transitions set (autovacuum_enabled = false);
alter table @schema.checkpoints set (autovacuum_enabled = false);
alter table @schema.activities set (autovacuum_enabled = false);
alter table @schema.progress set (autovacuum_enabled = false);
insert into @schema.instances (fsm, step, status, claims, locked_by, lease_expires_at, unique_key, unique_scope)
select 'm', 's', 'executing', 1, 'w', now(), convert_to(n::text, 'UTF8'), '{executing}' from generate_series(1, 50) n;
analyze @schema.instances, @schema.signals;
delete from @schema.instances;

insert into @schema.instances (fsm, step, status, finished_at, claims, seq, has_journal)
select 'm', 's', 'done', now() - make_interval(secs => n % 100000), 1, 1, true from generate_series(1, 40000) as n;
insert into @schema.instances (fsm, step, queue, priority, eligible_at, has_journal)
select 'm', 's', (array['default', 'a', 'b'])[1 + n % 3], n % 5, now() - make_interval(secs => n % 1000), n % 3 = 2
from generate_series(1, 30000) as n;
insert into @schema.instances (fsm, step, status, awaits, seen, claims, seq, await_deadline, unique_key, unique_scope)
select 'm', 's', 'awaiting_signal', '{go}', '{}', 1, 1, case when n % 2 = 0 then now() + interval '1 day' end,
       convert_to('p' || n, 'UTF8'), '{runnable,executing,awaiting_signal,awaiting_children}'
from generate_series(1, 19000) as n;
insert into @schema.instances (fsm, step, status, finished_at, claims, seq, unique_key, keep_seconds)
select 'm', 's', 'done', now() - make_interval(secs => n), 1, 1, convert_to('e' || n % 100, 'UTF8'),
       case when n % 2 = 0 then 'Infinity'::float8 else 10000 end
from generate_series(1, 20000) as n;
insert into @schema.instances (fsm, step, priority, eligible_at)
select 'm', 's', -7, now() + interval '1 year' from generate_series(1, 10000);
insert into @schema.instances (id, fsm, step, status, children_pending, round, claims, seq)
overriding system value select 900000, 'm', 's', 'awaiting_children', 500, 1, 1, 1;
insert into @schema.instances
  (id, fsm, step, status, claims, locked_by, lease_expires_at, parent_id, parent_round, has_signals)
overriding system value
select 900000 + n, 'm', 's', 'executing', 1, 'w', now() + make_interval(secs => case when n > 250 then -5 else 600 end),
       900000, 1, n between 101 and 200
from generate_series(1, 500) as n;
insert into @schema.signals (target_id, name)
select i.id, 'other' from @schema.instances i where i.status = 'awaiting_signal' and i.id % 2 = 0;
update @schema.instances i set has_signals = true where i.status = 'awaiting_signal' and i.id % 2 = 0;
insert into @schema.transitions (instance_id, started_at, duration, seq, attempt, step, outcome)
select i.id, now(), 0, 1, 0, 's', 'Done' from @schema.instances i where i.seq = 1;
insert into @schema.checkpoints (instance_id, visit, version, format, value)
select i.id, 0, 1, 1, '1' from @schema.instances i where i.has_journal;
insert into @schema.activities (instance_id, started_at, duration, visit, n, attempt, step, name, parameters)
select i.id, now(), 0, 0, 1, 0, 's', 'a', '[]' from @schema.instances i where i.has_journal;
insert into @schema.progress (instance_id, step)
select i.id, 's' from @schema.instances i where i.has_journal;
insert into @schema.instances (id, fsm, step, status, claims, locked_by, lease_expires_at, seq, visit, has_journal)
overriding system value
select 950000 + n, 'm', 's', 'executing', 1, 'w', now() + interval '1 hour', 30000, 30000, true
from generate_series(1, 2) as n;
insert into @schema.transitions (instance_id, started_at, duration, seq, attempt, step, outcome)
select i.id, now(), 0, n, 0, 's', 'Next' from @schema.instances i, generate_series(1, 30000) as n where i.seq = 30000;
insert into @schema.activities (instance_id, started_at, duration, visit, n, attempt, step, name, parameters)
select i.id, now(), 0, n, 1, 0, 's', 'a', '[]'
from @schema.instances i, generate_series(1, 30000) as n where i.seq = 30000;
"""
LONG = [950_001, 950_002]  # these have long histories
HELD = [900_000 + n for n in range(1, BATCH + 1)]
MAILED = [900_100 + n for n in range(1, BATCH + 1)]  # these have been sent something before
FENCE = Fence(HELD[0], 1, 0)


@pytest.fixture(scope="module")
def big(dsn: str) -> Iterator[Store]:
    """A store with a big table; each test rolls back what it did."""
    name = f"t_{uuid.uuid4().hex[:12]}"

    async def prepare() -> None:
        link = PersistentConnection(ConnectionTarget(dsn))
        await migrate(link, Schema(name))
        await link.run_script(Schema(name).render(SEED))
        await link.close()

    asyncio.run(prepare())
    store = Store(dsn, name)
    store.given(
        "set plan_cache_mode = force_generic_plan; select setval('@schema.instances_id_seq', 1000000),"
        " setval('@schema.signals_id_seq', 1000000)"
    )
    yield store
    store.given("drop schema @schema cascade")
    store.close()


@dataclass(frozen=True, slots=True)
class Work:
    """A call, the indexes it may use, and how many index entries it may read for each row of its batch."""

    call: Callable[[Store], Statement[Any]]
    indexes: frozenset[str]
    per_row: int
    thrown: int = 2  # how many rows a statement may throw away for each row of the batch
    hashes: bool = False  # short lists with each other: of the table only places that are known already


def commits(kind: str, ids: list[int] = HELD, **more: object) -> Callable[[Store], Statement[Any]]:
    return lambda s: s.calls.flush([Commit(i, 1, 0, kind, **more) for i in ids])  # type: ignore[arg-type]


def journal(store: Store) -> JournalStatementBuilder:
    return JournalStatementBuilder(store.schema)


def parked_ids(store: Store) -> list[int]:
    found = store.sql("select id from @schema.instances where status = 'awaiting_signal' order by id limit 100")
    return [row["id"] for row in found]


def listed(store: Store) -> Statement[Any]:
    store.sql(
        "insert into @schema.cascades (parent_id, first_round, last_round, origin, reason)"
        " values (900000, 0, 1, 900000, 'no')"
    )
    return store.calls.cancel_listed_descendants(BATCH, None)


def step_status(instance: int) -> Callable[[Store], Statement[Any]]:
    text = "select * from @schema.step_status where instance_id = $1"
    return lambda s: Statement(s.schema.render(text), (instance,), list)


def or_start(store: Store, key: str) -> Statement[Any]:
    call = make_signal_or_start(key, Signal("go"), None, "d", Start(M.s, {}))
    return StartOrUpdateStatementBuilder(store.schema).start_or_update(call)


def debounce(store: Store, key: str) -> Statement[Any]:
    start = Start(M.s, {}, unique_key=key, unique_scope=["runnable"], delay=5)
    return StartOrUpdateStatementBuilder(store.schema).start_or_update(make_debounce(start, None))


PKEY, PICK, UNIQUE, KEY = "instances_pkey", "instances_pick", "instances_unique", "instances_key"
CRASHED = "instances_blocked"  # rows that run apart
INBOX, DEDUP = "signals_inbox", "signals_dedup"
SLOTS = "step_slots_instance"
HISTORY, CHECKPOINTS, ACTIVITIES = "transitions_pkey", "checkpoints_pkey", "activities_pkey"
PROGRESS = "progress_pkey"
JOURNAL = (HISTORY, CHECKPOINTS, ACTIVITIES, PROGRESS)
CASCADES = ("cascades_origin", "cascades_visited", "cascades_pkey")
WORKS = {
    "pick": Work(lambda s: s.calls.pick("w", {"default": BATCH}, KNOWN, 60), frozenset({PICK, CRASHED}), 3),
    "pick with a journal": Work(
        lambda s: s.calls.pick("w", {"b": BATCH}, KNOWN, 60), frozenset({PICK, CRASHED, CHECKPOINTS, ACTIVITIES}), 5
    ),
    "pick of three queues": Work(
        lambda s: s.calls.pick("w", {"default": 30, "a": 30, "b": 40}, KNOWN, 60),
        frozenset({PICK, CRASHED, CHECKPOINTS, ACTIVITIES}),
        4,
    ),
    "pick of nothing": Work(lambda s: s.calls.pick("w", {"empty": BATCH}, KNOWN, 60), frozenset({PICK, CRASHED}), 1),
    "continue": Work(commits("continue", value="{}"), frozenset({PKEY}), 3),
    "continue with history": Work(
        commits("continue", value="{}", ran_step="s", extra='{"with_state": true}'), frozenset({PKEY}), 3
    ),
    "next": Work(commits("next"), frozenset({PKEY}), 3),
    "await": Work(commits("await", delay=None, extra='{"awaits": ["go"], "seen": []}'), frozenset({PKEY}), 3),
    "await with an inbox": Work(
        commits("await", MAILED, delay=None, extra='{"awaits": ["go"], "seen": []}'), frozenset({PKEY, INBOX}), 6
    ),
    "done with an inbox": Work(commits("done", MAILED), frozenset({PKEY, INBOX}), 6),
    "children": Work(
        lambda s: s.calls.flush([fan_out(i, child(f"c{i}"), child(f"p{i}")) for i in HELD]),
        frozenset({PKEY, UNIQUE, "instances_parent"}),
        12,
    ),
    "done with a parent": Work(commits("done", parent=900_000), frozenset({PKEY}), 6),
    "consuming": Work(commits("next", extra='{"consumed": [1, 2]}'), frozenset({PKEY, "signals_pkey"}), 8),
    "stale": Work(lambda s: s.calls.flush([Commit(i, 9, 0, "done") for i in HELD]), frozenset({PKEY}), 4),
    "signal by id": Work(
        lambda s: s.calls.signal([send(i, dedup="d") for i in parked_ids(s)]),
        frozenset({PKEY, DEDUP, INBOX, UNIQUE}),
        10,
        hashes=True,
    ),
    "signal by key": Work(
        lambda s: s.calls.signal([send(None, key=f"p{n}".encode()) for n in range(1, BATCH)]),
        frozenset({PKEY, DEDUP, INBOX, UNIQUE}),
        10,
        hashes=True,
    ),
    "signal or start: a holder": Work(
        lambda s: or_start(s, "p7"), frozenset({PKEY, UNIQUE, KEY, DEDUP, INBOX}), 0, hashes=True
    ),
    # The key has had 200 holders; each is looked up in the index of dedup keys.
    "signal or start: a free key": Work(
        lambda s: or_start(s, "e7"), frozenset({PKEY, UNIQUE, KEY, DEDUP, INBOX}), 3, hashes=True
    ),
    "debounce": Work(lambda s: debounce(s, "p7"), frozenset({PKEY, UNIQUE}), 0),
    "heartbeat": Work(lambda s: s.calls.heartbeat([(i, 1) for i in HELD], 60), frozenset({PKEY}), 5),
    "release": Work(lambda s: s.calls.release_claims([(i, 1, None, None) for i in HELD]), frozenset({PKEY}), 3),
    "reap": Work(lambda s: s.calls.reap(BATCH, None), frozenset({"instances_lease", SLOTS, PKEY, *CASCADES}), 5),
    "reap of crash loops": Work(
        lambda s: s.calls.reap(BATCH, 1), frozenset({"instances_lease", SLOTS, PKEY, INBOX, *CASCADES}), 16
    ),
    "cancel by id": Work(
        lambda s: s.calls.cancel([(i, None) for i in parked_ids(s)], "no", cascade=True),
        frozenset({PKEY, DEDUP, INBOX, UNIQUE}),
        16,
    ),
    "cancel by key": Work(
        lambda s: s.calls.cancel([(None, f"p{n}".encode()) for n in range(1, BATCH)], "no", cascade=True),
        frozenset({PKEY, DEDUP, INBOX, UNIQUE}),
        16,
    ),
    "cascade": Work(listed, frozenset({PKEY, "instances_parent", *CASCADES}), 12),
    "cancel_requests": Work(lambda s: s.calls.cancel_requests_of([(i, 1) for i in HELD]), frozenset({PKEY}), 2),
    "gc": Work(
        lambda s: s.calls.gc(50_000, 50_000, 50_000, BATCH),
        frozenset({"instances_finished", PKEY, INBOX, *JOURNAL, "retentions_pkey"}),
        16,
    ),
    "gc_rows_with_own_retention": Work(
        lambda s: RetentionStatementBuilder(s.schema).gc_rows_with_own_retention(BATCH),
        frozenset({"instances_keep_passed", PKEY, INBOX, *JOURNAL}),
        16,
    ),
    "insert": Work(
        lambda s: s.calls.insert([Start(M.s, {}, unique_key=f"p{n}") for n in range(BATCH)], "existing"),
        frozenset({UNIQUE, PKEY}),
        6,
    ),
    "ends_of": Work(lambda s: s.calls.ends_of(HELD), frozenset({PKEY}), 2),
    "get by key": Work(lambda s: s.calls.get(None, b"p7"), frozenset({PKEY, UNIQUE}), 1),
    "get by the key of ended ones": Work(lambda s: s.calls.get(None, b"e7"), frozenset({PKEY, UNIQUE, KEY}), 0),
    "retry by the key of ended ones": Work(lambda s: s.reads.retry(None, b"e7"), frozenset({PKEY, UNIQUE, KEY}), 0),
    "page of children": Work(
        lambda s: s.calls.children_page(900_000, HELD[-1], BATCH), frozenset({PKEY, "instances_parent"}), 2
    ),
    "checkpoint": Work(lambda s: journal(s).record_checkpoint(FENCE, "1"), frozenset({PKEY, CHECKPOINTS}), 0),
    "clear checkpoint": Work(lambda s: journal(s).clear_checkpoint(FENCE), frozenset({PKEY, CHECKPOINTS}), 0),
    "activity": Work(
        lambda s: journal(s).record_activity(FENCE, ActivityRecord(1, "a", "[]", "1", None, 0, 0, 0)),
        frozenset({PKEY, ACTIVITIES}),
        0,
    ),
    "progress": Work(
        lambda s: journal(s).record_progress([ProgressReport(i, 1, "s", "", 0.5, None, None) for i in HELD]),
        frozenset({PKEY, PROGRESS}),
        8,
    ),
    "trim_history": Work(
        lambda s: journal(s).trim_history(dict.fromkeys(LONG, 29_950), BATCH),
        frozenset({PKEY, HISTORY, ACTIVITIES}),
        6,
    ),
    "history": Work(lambda s: journal(s).history(7, None), frozenset({HISTORY, UNIQUE}), 0),
    "history by key": Work(lambda s: journal(s).history(None, b"p7"), frozenset({HISTORY, UNIQUE}), 0),
    "activities": Work(lambda s: journal(s).activities(7, None), frozenset({ACTIVITIES, UNIQUE}), 0),
    "step_status": Work(step_status(7), frozenset({PKEY, *JOURNAL}), 0),
    "step_status of a long history": Work(step_status(950_001), frozenset({PKEY, *JOURNAL}), 1300, thrown=0),
    "progress of one": Work(lambda s: journal(s).progress(7, None), frozenset({PROGRESS, UNIQUE}), 0),
    "progress by the key of ended ones": Work(
        lambda s: journal(s).progress(None, b"e7"), frozenset({PROGRESS, PKEY, UNIQUE, KEY}), 0
    ),
    "count_due_unknown_steps": Work(lambda s: s.calls.count_due_unknown_steps(["default"], []), frozenset({PICK}), 11),
}
COUNTS = """
select c.relname, c.relkind::text as kind, pg_stat_get_xact_numscans(c.oid) as scans,
       pg_stat_get_xact_tuples_returned(c.oid) as rows
from pg_class c where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'i')
"""


def counted(store: Store) -> dict[tuple[str, str], tuple[int, int]]:
    rows = store.sql(COUNTS, store.schema.name)
    return {(r["relname"], r["kind"]): (r["scans"], r["rows"]) for r in rows}


@pytest.mark.parametrize("name", WORKS)
def test_work_is_in_proportion_to_the_batch(big: Store, name: str) -> None:
    """No table is read from end to end, no other index is used, and few entries are read per row asked for."""
    check_work(big, WORKS[name])


def check_work(big: Store, work: Work) -> None:
    call = work.call(big)
    big.sql("vacuum (index_cleanup on) @schema.instances")  # what other tests rolled back would be counted too
    big.given("begin")
    try:
        before = counted(big)
        big.run(call)
        after = counted(big)
    finally:
        big.given("rollback")
    used = {key: (after[key][0] - before[key][0], after[key][1] - before[key][1]) for key in after}
    scanned = {table for (table, kind), (scans, _) in used.items() if kind == "r" and scans}
    assert not scanned, f"read from end to end: {scanned}"
    indexes = {index: rows for (index, kind), (scans, rows) in used.items() if kind == "i" and scans}
    assert set(indexes) <= work.indexes
    assert sum(indexes.values()) <= work.per_row * BATCH + 20, indexes


def plans_of(store: Store, dsn: str, call: Statement[Any], **settings: str) -> list[str]:
    """The plans of all statements that a call runs, as text; `settings` are those of its session."""

    async def explain() -> list[str]:
        connection = await asyncpg.connect(dsn)
        heard: list[str] = []
        try:
            try:
                await connection.execute("load 'auto_explain'")
            except asyncpg.PostgresError:
                assert "GEN_DURABLE_TEST_PLANS" not in os.environ, "without auto_explain no plan is seen"
                pytest.skip("this server has no auto_explain: `make test-plans`")
            connection.add_log_listener(lambda _, message: heard.append(str(message.message)))
            for setting, value in {
                "plan_cache_mode": "force_generic_plan",
                "auto_explain.log_min_duration": "0",
                "auto_explain.log_nested_statements": "on",
                "auto_explain.log_analyze": "on",
                "auto_explain.log_timing": "off",
                "auto_explain.log_level": "notice",
                **settings,
            }.items():
                await connection.execute(f"set {setting} = {value}")
            transaction = connection.transaction()
            await transaction.start()
            await connection.fetch(call.text, *call.args)
            await transaction.rollback()
        finally:
            await connection.close()
        # The driver's own questions about types are heard too.
        return [text for text in heard if store.schema.render("@schema.") in text]

    return asyncio.run(explain())


@pytest.mark.parametrize("name", WORKS)
def test_plans(big: Store, dsn: str, name: str) -> None:
    """No statement inside a call reads a table from end to end, hashes one, or throws away more rows than it keeps."""
    check_plans(big, dsn, WORKS[name])


def check_plans(big: Store, dsn: str, work: Work) -> None:
    plans = plans_of(big, dsn, work.call(big))
    assert plans
    for plan in plans:
        assert not re.search(r"Seq Scan on (instances|signals|transitions|checkpoints|activities|progress)\b", plan), (
            plan
        )
        if not work.hashes:
            assert not re.search(r"Hash Join|Merge Join", plan), plan
        elif "Hash" in plan:
            assert set(re.findall(r"(\w+ Scan)(?: using \w+)? on instances\b", plan)) == {"Tid Scan"}, plan
        removed = [int(n) for n in re.findall(r"Rows Removed by (?:Join )?Filter: (\d+)", plan)]
        assert sum(removed) <= work.thrown * BATCH, plan
