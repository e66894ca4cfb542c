"""gc does not walk over what it keeps: with 100,000 kept rows, a round reads the rows that have become due.

Kept are failed instances, whose retention is longer than that of others, and children of a parent that has not ended.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.store.test_plans import counted
from tests.support.rows import ended, parent
from tests.support.store import Store

from gen_durable.engine import gc as gc_module
from gen_durable.engine.gc import Gc
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.retention import Retention
from gen_durable.store.retention import RetentionStatementBuilder
from gen_durable.store.schema import Schema
from gen_durable.telemetry import Events
from gen_durable.worker_options import WorkerOptions

KEPT = 100_000
SEED = f"""
alter table @schema.instances set (autovacuum_enabled = false);
insert into @schema.instances (fsm, step, status, finished_at, claims, seq)
select 'm', 's', 'failed', now() - interval '2 days' + make_interval(secs => n), 1, 1
from generate_series(1, {KEPT // 2}) as n;
{parent(900_000, pending=1)}
insert into @schema.instances (fsm, step, status, finished_at, claims, seq, parent_id, parent_round)
select 'm', 's', 'done', now() - interval '2 days' + make_interval(secs => n), 1, 1, 900000, 1
from generate_series(1, {KEPT // 2}) as n;
"""
RETENTION = Retention(done=timedelta(hours=1), failed=timedelta(days=30), cancelled=timedelta(days=7))


# Rows with a keep of their own; an update of other rows would leave dead entries in the index that is measured.
SEED_OF_KEEPS = f"""
alter table @schema.instances set (autovacuum_enabled = false);
insert into @schema.instances (fsm, step, status, finished_at, claims, seq, keep_seconds)
select 'm', 's', 'done', now() - interval '2 days' + make_interval(secs => n), 1, 1,
       case when n % 2 = 0 then 'Infinity'::float8 else 1e6 end
from generate_series(1, {KEPT}) as n;
"""


@pytest.fixture
def kept(dsn: str) -> Iterator[Store]:
    yield from seeded(dsn, SEED)


@pytest.fixture
def with_keeps(dsn: str) -> Iterator[Store]:
    yield from seeded(dsn, SEED_OF_KEEPS)


def seeded(dsn: str, seed: str) -> Iterator[Store]:
    name = f"t_{uuid.uuid4().hex[:12]}"

    async def prepare() -> None:
        link = PersistentConnection(ConnectionTarget(dsn))
        await migrate(link, Schema(name))
        await link.run_script(Schema(name).render(seed))
        await link.close()

    asyncio.run(prepare())
    store = Store(dsn, name)
    store.given("select setval('@schema.instances_id_seq', 1000000)")
    yield store
    store.given("drop schema @schema cascade")
    store.close()


class Round:
    """What a round of gc, from one pause to the next, has read and deleted."""

    def __init__(self, store: Store, gc: Gc) -> None:
        rows = count(store)
        store.given("begin")
        before = counted(store)
        while store._runner.run(gc.run_once()) == 0.0:
            pass
        after = counted(store)
        store.given("commit")
        self.deleted = rows - count(store)
        self.read = sum(after[key][1] - before[key][1] for key in after if key[1] == "i")
        assert after["instances", "r"] == before["instances", "r"], "the table was read from end to end"


def count(store: Store) -> int:
    return int(store.sql("select count(*) from @schema.instances")[0][0])


def collector(store: Store) -> Gc:
    options = WorkerOptions(gc_retention=RETENTION, gc_interval=timedelta(seconds=60), gc_batch=1000)
    return Gc(store._link, store.calls, RetentionStatementBuilder(store.schema), options, events=Events())


def test_a_round_does_not_visit_rows_that_it_keeps(kept: Store) -> None:
    """The first round visits them; the next ones read what has become due since."""
    gc = collector(kept)
    first = Round(kept, gc)
    assert (first.deleted, first.read > KEPT) == (0, True)
    kept.given("".join(ended(n, ago=3601) for n in range(900_001, 900_041)))
    second = Round(kept, gc)
    assert second.deleted == 40
    assert second.read <= 1000
    assert Round(kept, gc).read <= 1000


def test_rows_with_a_keep_of_their_own_are_not_visited(with_keeps: Store) -> None:
    """Not by the first round either: rows that are kept for good, and rows whose time has not passed."""
    gc = collector(with_keeps)
    first = Round(with_keeps, gc)
    assert (first.deleted, first.read) == (0, 0)
    with_keeps.given("".join(ended(n, ago=3600, keep_seconds=3590) for n in range(900_001, 900_041)))
    second = Round(with_keeps, gc)
    assert second.deleted == 40
    assert second.read <= 1000


def test_machines_with_a_longer_retention_are_visited_once(kept: Store) -> None:
    """Their rows are kept, and the walks of shorter retentions have gone past them."""
    kept.given("insert into @schema.retentions values ('m', null, null, null)")
    gc = collector(kept)
    first = Round(kept, gc)
    assert (first.deleted, first.read > KEPT) == (0, True)
    kept.given("".join(ended(n, ago=3601, fsm="other") for n in range(900_001, 900_041)))
    second = Round(kept, gc)
    assert second.deleted == 40
    assert second.read <= 1000
    kept.given("update @schema.retentions set done = 0, failed = 1e7 where fsm = 'm'")
    kept.given("update @schema.instances set parent_id = null where status = 'done'")
    assert Round(kept, gc).deleted == KEPT // 2


def test_each_statement_visits_a_bounded_number_of_rows(kept: Store) -> None:
    """Also the first walk comes forward in parts: no statement reads more than a few thousand rows."""
    gc = collector(kept)
    most = 0
    while True:
        kept.given("begin")
        before = counted(kept)
        pause = kept._runner.run(gc.run_once())
        after = counted(kept)
        kept.given("commit")
        most = max(most, sum(after[key][1] - before[key][1] for key in after if key[1] == "i"))
        if pause:
            break
    assert most <= 3 * 3 * 2000  # three walks, each of 2,000 rows: to find the end, to visit, and the parents


def test_rows_that_are_left_behind_are_deleted_later(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children whose parent has ended since are deleted when the walk starts again from the oldest row."""
    monkeypatch.setattr(gc_module, "REVISIT_ROUNDS", 3)
    gc = collector(kept)
    assert Round(kept, gc).deleted == 0
    kept.given("update @schema.instances set status = 'done', finished_at = now() where id = 900000")
    assert [Round(kept, gc).deleted for _ in range(3)] == [0, 0, KEPT // 2]
