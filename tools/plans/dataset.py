"""A table in use: ended rows, runnable ones in three queues, waiting ones, and claims of a worker.

Autovacuum is off, so that a run sees the statistics of its own `analyze`.
"""

from __future__ import annotations

from typing import Final

from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema

CLAIMED: Final = 500
EXPIRED: Final = 200
FIRST_CLAIM: Final = 1_000_000_000  # their ids are known to the calls
_ROWS: Final = """
alter table @schema.instances set (autovacuum_enabled = false);
alter table @schema.signals set (autovacuum_enabled = false);
alter table @schema.transitions set (autovacuum_enabled = false);
insert into @schema.instances (fsm, step, state, status, started_at, finished_at, result, claims, seq)
select 'checkout', 'ship', '{{"order": 1}}', 'done', now() - n * interval '1 second', now() - n * interval '1 second',
  '1', 1, 1
from generate_series(1, {terminal}) as n;
insert into @schema.transitions (instance_id, started_at, duration, seq, attempt, step, outcome)
select i.id, i.started_at, 0.1, 1, 0, i.step, 'Done' from @schema.instances i;
insert into @schema.instances (fsm, step, state, queue, priority, eligible_at)
select 'checkout', 'start', '{{"order": 1}}', (array['default', 'mail', 'reports'])[1 + n % 3], n % 3,
  now() - n * interval '1 millisecond'
from generate_series(1, {runnable}) as n;
insert into @schema.instances
  (fsm, step, state, status, awaits, seen, has_signals, claims, seq, unique_key, unique_scope)
select 'checkout', 'collect', '{{"order": 1}}', 'awaiting_signal', '{{payment}}', '{{}}', true, 1, 1,
  convert_to('order:' || n, 'UTF8'), '{{runnable,executing,awaiting_signal,awaiting_children}}'
from generate_series(1, {runnable} / 10) as n;
insert into @schema.signals (target_id, name, payload)
select i.id, 'note', '1' from @schema.instances i where i.status = 'awaiting_signal';
insert into @schema.instances (id, fsm, step, state, status, claims, locked_by, started_at, lease_expires_at, queue)
overriding system value
select {first} + n, 'checkout', 'start', '{{"order": 1}}', 'executing', 1, 'worker', now(),
  now() + case when n > {claimed} then interval '-5 seconds' else interval '10 minutes' end, 'claimed'
from generate_series(1, {claimed} + {expired}) as n;
"""
_ANALYZE: Final = "vacuum (analyze) @schema.instances, @schema.signals, @schema.transitions"


async def fill_schema(dsn: str, schema: Schema, *, terminal: int, runnable: int) -> None:
    """Create the schema and its rows."""
    connection = PersistentConnection(ConnectionTarget(dsn))
    try:
        await migrate(connection, schema)
        rows = _ROWS.format(terminal=terminal, runnable=runnable, first=FIRST_CLAIM, claimed=CLAIMED, expired=EXPIRED)
        await connection.run_script(schema.render(rows))
        for statement in _ANALYZE.split(";"):
            await connection.run_script(schema.render(statement))
    finally:
        await connection.close()


async def drop_schema(dsn: str, schema: Schema) -> None:
    """Drop the schema."""
    connection = PersistentConnection(ConnectionTarget(dsn))
    try:
        await connection.run_script(schema.render("drop schema if exists @schema cascade"))
    finally:
        await connection.close()
