"""What the tables refuse, whoever writes: every CHECK, unique index and primary key."""

from __future__ import annotations

import asyncpg
import pytest
from tests.support.rows import ended, executing, instance, signal
from tests.support.store import Store

LIMIT = "insert into @schema.limits (name, kind, slots, period, burst) values "
CASCADE = "insert into @schema.cascades (id, parent_id, origin, reason) overriding system value values "
SLOT = "insert into @schema.step_slots (ticket, slot_key, instance_id, claim) values "
BUCKET = "insert into @schema.rate_buckets values "
TRANSITION = (
    "insert into @schema.transitions (instance_id, seq, step, outcome, attempt, started_at, duration) values "
    "(1, 1, 's', 'Next', 0, now(), 0);"
)
CHECKPOINT = "insert into @schema.checkpoints (instance_id, visit, version, format, value) values (1, 0, 1, 1, '1');"
ACTIVITY = (
    "insert into @schema.activities (instance_id, visit, n, step, name, parameters, started_at, duration, attempt) "
    "values (1, 0, 1, 's', '{name}', '[]', now(), 0, 0);"
)
PROGRESS = "insert into @schema.progress (instance_id, step) values (1, 's');"

ENDS = ("done", "failed", "cancelled")
UNFIT = {
    "nameless-signal": instance(1) + signal(1, 1, name=""),
    "empty-dedup-key": instance(1) + signal(1, 1, dedup_key=""),
    "rejected-signal-in-the-inbox": instance(1) + signal(1, 1, rejection="no"),
    "nameless-limit": LIMIT + "('', 'concurrency', 1, null, null)",
    "limit-with-a-slash": LIMIT + "('a/b', 'concurrency', 1, null, null)",
    "unknown-kind-of-limit": LIMIT + "('l', 'mood', null, null, null)",
    "no-slots": LIMIT + "('l', 'concurrency', 0, null, null)",
    "no-period": LIMIT + "('r', 'rate', null, 0, 1)",
    "no-burst": LIMIT + "('r', 'rate', null, 1, 0)",
    "rate-with-slots": LIMIT + "('r', 'rate', 1, 1, 1)",
    "rate-without-burst": LIMIT + "('r', 'rate', null, 1, null)",
    "bucket-of-a-thousand-years": LIMIT + "('r', 'rate', null, 3e10, 1)",
    **{f"retention-{end}": f"insert into @schema.retentions (fsm, {end}) values ('m', 3e10)" for end in ENDS},
    "nameless-activity": instance(1, has_journal=True) + ACTIVITY.format(name=""),
}
TWICE = {
    "migration": "insert into @schema.migrations (version) values (999);" * 2,
    "instance": instance(1) * 2,
    "partition-executing": executing(1, partition_key="k") + executing(2, partition_key="k"),
    "unique-key": "".join(instance(i, unique_key=b"k", unique_scope="{runnable}") for i in (1, 2)),
    "cascade": (CASCADE + "(1, 1, 1, 'why');") * 2,
    "signal": instance(1) + signal(1, 1) * 2,
    "dedup-key": instance(1) + signal(1, 1, dedup_key="d") + signal(2, 1, dedup_key="d"),
    "retention": "insert into @schema.retentions (fsm) values ('m');" * 2,
    "limit": (LIMIT + "('l', 'concurrency', 1, null, null);") * 2,
    "bucket": (BUCKET + "('r', now());") * 2,
    "gate lock": "insert into @schema.gate_locks values (0);",
    "ticket": (SLOT + "(1, 'l', 1, 1);") * 2,
    "transition": TRANSITION * 2,
    "checkpoint": CHECKPOINT * 2,
    "activity": ACTIVITY.format(name="a") * 2,
    "progress": PROGRESS * 2,
}
FINE = {
    "another-scope": ended(1, unique_key=b"k", unique_scope="{runnable}")
    + instance(2, unique_key=b"k", unique_scope="{runnable}"),
    "another-target": instance(1) + instance(2) + signal(1, 1, dedup_key="d") + signal(2, 2, dedup_key="d"),
    "one-executes": executing(1, partition_key="k") + instance(2, partition_key="k"),
    "limits": LIMIT + "('l', 'concurrency', 1, null, null), ('r', 'rate', null, 1e9, 3)",
}


@pytest.mark.parametrize("rows", UNFIT.values(), ids=UNFIT)
def test_a_row_that_means_nothing_is_refused(store: Store, rows: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        store.given(rows)


@pytest.mark.parametrize("rows", TWICE.values(), ids=TWICE)
def test_what_there_is_once_is_refused_a_second_time(store: Store, rows: str) -> None:
    with pytest.raises(asyncpg.UniqueViolationError):
        store.given(rows)


@pytest.mark.parametrize("rows", FINE.values(), ids=FINE)
def test_what_only_looks_alike_is_taken(store: Store, rows: str) -> None:
    store.given(rows)
