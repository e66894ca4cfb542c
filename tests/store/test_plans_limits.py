"""The work of calls under limits, on a big table with statistics that are wrong (see test_plans).

A hundred thousand rows wait for one limit of a thousand slots, all taken; a thousand gates have a few rows each; a
crowd of rows that no pick has looked at yet wants ten slots.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.store.test_plans import BATCH, PICK, PKEY, Work, check_plans, check_work
from tests.support.machine import KNOWN
from tests.support.store import Store

from gen_durable.limits import Concurrency, Limit, Rate
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.types import Commit

SEED = """
alter table @schema.instances set (autovacuum_enabled = false);
insert into @schema.instances (fsm, step, status, claims, locked_by, lease_expires_at, slot_key, rate_key)
select 'm', 's', 'executing', 1, 'w', now(), n::text, n::text from generate_series(1, 50) n;
analyze @schema.instances;
delete from @schema.instances;

insert into @schema.limits (name, kind, slots, period, burst) values
  ('l', 'concurrency', 1000, null, null), ('g', 'concurrency', 1, null, null), ('h', 'concurrency', 1, null, null),
  ('m', 'concurrency', 10, null, null), ('r', 'rate', null, 0.01, 10);
insert into @schema.rate_buckets select 'r', now() + interval '1 second';
insert into @schema.instances (id, fsm, step, status, claims, locked_by, lease_expires_at, slot_key)
overriding system value
select 900000 + n, 'm', 's', 'executing', 1, 'w', now() + interval '10 minutes', 'l' from generate_series(1, 1000) as n;
insert into @schema.instances (id, fsm, step, status, claims, locked_by, lease_expires_at, slot_key)
overriding system value
select 910000 + n, 'm', 's', 'executing', 1, 'w', now() + interval '10 minutes', 'h/' || n
from generate_series(1, 1000) as n;
insert into @schema.instances (fsm, step, queue, slot_key, blocked_on, eligible_at)
select 'm', 's', (array['default', 'a'])[1 + n % 2], 'l', 'slot/l', now() - make_interval(secs => n)
from generate_series(1, 100000) as n;
insert into @schema.instances (fsm, step, slot_key, blocked_on, eligible_at)
select 'm', 's', 'h/' || n % 1000, 'slot/h/' || n % 1000, now() - make_interval(secs => n)
from generate_series(1, 5000) as n;
insert into @schema.instances (fsm, step, queue, slot_key, eligible_at)
select 'm', 's', 'g', 'g/' || n % 1000, now() - make_interval(secs => 9000 - n) from generate_series(1, 5000) as n;
insert into @schema.instances (fsm, step, queue, slot_key, eligible_at)
select 'm', 's', 'm', 'm', now() - make_interval(secs => n) from generate_series(1, 20000) as n;
insert into @schema.instances (fsm, step, queue, rate_key, blocked_on, eligible_at)
select 'm', 's', 'r', 'r', 'rate/r', now() - make_interval(secs => n) from generate_series(1, 20000) as n;
insert into @schema.instances (fsm, step, queue, rate_key, eligible_at)
select 'm', 's', 'r', 'r', now() - make_interval(secs => n) from generate_series(1, 20000) as n;
"""


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
    store.given("set plan_cache_mode = force_generic_plan; select setval('@schema.instances_id_seq', 1000000)")
    yield store
    store.given("drop schema @schema cascade")
    store.close()


def done(base: int, count: int) -> list[Commit]:
    return [Commit(base + n, 1, 0, "done") for n in range(1, count + 1)]


SLOT, SLOT_DUE, LIMITED = "instances_slot", "instances_slot_due", "instances_limited"
BLOCKED, TOLD, RATE_DUE = "instances_blocked", "instances_token_due", "instances_rate_due"
POLICIES, BUCKETS, TICKETS = "limits_pkey", "rate_buckets_pkey", "step_slots_key"
GATE_LOCKS = "gate_locks_pkey"
HAND_OVER = frozenset({GATE_LOCKS, LIMITED, SLOT, SLOT_DUE, TOLD, POLICIES, BUCKETS, TICKETS})
# A change of a limit locks the 2,048 gates of limits.
# The lists of rows and gates are gone through several times; what is thrown away there is no row of the table.
WORKS = {
    "pick of a hundred gates": Work(
        lambda s: s.calls.pick("w", {"g": BATCH}, KNOWN, 60), HAND_OVER | {PICK, BLOCKED}, 20, thrown=8
    ),
    "pick of a thousand gates": Work(
        lambda s: s.calls.pick("w", {"g": 10 * BATCH}, KNOWN, 60), HAND_OVER | {PICK, BLOCKED}, 200, thrown=80
    ),
    "pick of a crowd": Work(
        lambda s: s.calls.pick("w", {"m": BATCH}, KNOWN, 60), HAND_OVER | {PICK, BLOCKED}, 60, thrown=8
    ),
    "pick of a crowd without tokens": Work(
        lambda s: s.calls.pick("w", {"r": BATCH}, KNOWN, 60), HAND_OVER | {PICK, BLOCKED, RATE_DUE}, 60, thrown=8
    ),
    "flush that frees a hundred slots": Work(lambda s: s.calls.flush(done(900_000, BATCH)), HAND_OVER | {PKEY}, 25),
    "flush that frees one slot of a thousand": Work(lambda s: s.calls.flush(done(900_000, 1)), HAND_OVER | {PKEY}, 25),
    "flush at a hundred gates": Work(lambda s: s.calls.flush(done(910_000, BATCH)), HAND_OVER | {PKEY}, 20),
    "unblock_missed_rows": Work(lambda s: s.calls.unblock_missed_rows(None, BATCH), HAND_OVER | {BLOCKED}, 20),
    "delete_tickets_of_dead_claims": Work(
        lambda s: s.calls.delete_tickets_of_dead_claims(), {PKEY, "step_slots_instance"}, 20
    ),
    "set_limit of slots": Work(
        lambda s: s.calls.set_limit("l", Concurrency(1000 + BATCH), declared=False), HAND_OVER | {PKEY, BLOCKED}, 50
    ),
    "set_limit of a thousand partitions": Work(
        lambda s: s.calls.set_limit("h", Concurrency(2), declared=False), HAND_OVER | {PKEY, BLOCKED}, 120, thrown=30
    ),
    "set_limit of a rate": Work(
        lambda s: s.calls.set_limit("r", Rate(200, timedelta(seconds=1), burst=20), declared=False),
        HAND_OVER | {PKEY, BLOCKED},
        40,
    ),
    "acquire_step_limit": Work(
        lambda s: s.calls.acquire_step_limit(900_001, 1, Limit("l"), 1),
        frozenset({GATE_LOCKS, SLOT, POLICIES, TICKETS, PKEY, "step_slots_pkey"}),
        25,
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_work_is_in_proportion(big: Store, name: str) -> None:
    check_work(big, WORKS[name])


@pytest.mark.parametrize("name", WORKS)
def test_plans(big: Store, dsn: str, name: str) -> None:
    check_plans(big, dsn, WORKS[name])
