"""unblock_missed_rows keeps up with 100,000 blocked keys, and locks only gates that seem to be free.

Half of the keys are partition keys, half are partitions of a concurrency limit. A row of each key executes, except for
a few keys, whose blocked rows a lost wake-up has left.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.store.test_plans import counted
from tests.support.store import Store

from gen_durable.engine.crashed_row_slots import CrashedRowSlots
from gen_durable.engine.reaper import UNBLOCK_BATCH, Reaper
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.signal_decoder_fingerprints import SignalDecoderFingerprints
from gen_durable.step_registry import Registry
from gen_durable.store.schema import Schema
from gen_durable.telemetry import Events
from gen_durable.worker_options import WorkerOptions

KEYS = 50_000
MISSED = 25
SEED = f"""
alter table @schema.instances set (autovacuum_enabled = false);
insert into @schema.limits (name, kind, slots) values ('l', 'concurrency', 1);
insert into @schema.instances (fsm, step, status, claims, locked_by, lease_expires_at, partition_key)
select 'm', 's', 'executing', 1, 'w', now() + interval '1 day', 'k' || n
from generate_series(1, {KEYS}) as n where n % {KEYS // MISSED} <> 7;
insert into @schema.instances (fsm, step, partition_key, blocked_on)
select 'm', 's', 'k' || n, 'partition/k' || n from generate_series(1, {KEYS}) as n;
insert into @schema.instances (fsm, step, status, claims, locked_by, lease_expires_at, slot_key)
select 'm', 's', 'executing', 1, 'w', now() + interval '1 day', 'l/k' || n
from generate_series(1, {KEYS}) as n where n % {KEYS // MISSED} <> 7;
insert into @schema.instances (fsm, step, slot_key, blocked_on)
select 'm', 's', 'l/k' || n, 'slot/l/k' || n from generate_series(1, {KEYS}) as n;
"""


@pytest.fixture
def blocked(dsn: str) -> Iterator[Store]:
    name = f"t_{uuid.uuid4().hex[:12]}"

    async def prepare() -> None:
        link = PersistentConnection(ConnectionTarget(dsn))
        await migrate(link, Schema(name))
        await link.run_script(Schema(name).render(SEED))
        await link.close()

    asyncio.run(prepare())
    store = Store(dsn, name)
    yield store
    store.given("drop schema @schema cascade")
    store.close()


class Woken:
    """In the place of the notifier: the queues that were woken."""

    def __init__(self) -> None:
        self.queues: list[str] = []

    def act_on_follow_ups(self, follow_ups: object) -> None:
        pass

    def wake_queues(self, queues: list[str]) -> None:
        self.queues += queues


def unblocked(store: Store) -> int:
    sql = "select count(*) from @schema.instances where blocked_on is null and lease_expires_at is null"
    return int(store.sql(sql)[0][0])


def test_six_rounds_of_the_reaper_find_every_missed_row_among_100_000_keys(blocked: Store) -> None:
    """With the default interval of 5 s that is half a minute; before, it took twenty rounds."""
    woken = Woken()
    reaper = Reaper(
        blocked._link,
        blocked.calls,
        WorkerOptions(queues={}),
        registry=Registry((), ()),
        fingerprints=SignalDecoderFingerprints(Registry((), ()), ""),
        notifier=cast(Any, woken),
        events=Events(),
        dead_letters=None,
        crashed=CrashedRowSlots(None),
    )
    for _ in range(6):
        blocked._runner.run(reaper.run_once())
    assert unblocked(blocked) == 2 * MISSED
    assert set(woken.queues) == {"default"}


@pytest.mark.parametrize("kind", ["partition", "slot"])
def test_gates_that_are_taken_are_not_locked(blocked: Store, kind: str) -> None:
    """A call visits a thousand gates, reads some entries for each, and locks the one that is free."""
    blocked.given("begin")
    try:
        before = counted(blocked)
        blocked.run(blocked.calls.unblock_missed_rows(f"{kind}/", UNBLOCK_BATCH))
        after = counted(blocked)
        (locks,) = blocked.sql("select count(*) from @schema.gate_locks where xmax = pg_current_xact_id()::xid")
    finally:
        blocked.given("rollback")
    assert 1 <= locks[0] <= 6  # each free gate
    assert after["instances", "r"] == before["instances", "r"]
    assert sum(after[key][1] - before[key][1] for key in after if key[1] == "i") <= 5 * UNBLOCK_BATCH
