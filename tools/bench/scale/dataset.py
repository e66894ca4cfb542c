"""A table of a given size: rows that have ended, that wait for a worker, and that cannot run.

For a size of N: 70 % of N have ended, 22 % are runnable in `default`, 8 % are runnable in `keyed`, each with a
partition key of its own. On top of N: 10 % wait behind ten busy partition keys in `busy`, 10 % are due in a year (half
of them in `default` at an urgent priority, half in `idle`), and 5 % are parked in `inbox`, each with a signal that does
not wake it. The kinds are mixed on every page, as in a table that has been in use. Each size, zero too, has beside
these the few thousand rows that the calls work on; a size of zero has nothing else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.statements import StatementBuilder

HELD: Final = 2000  # rows in `held`: claimed to have that many executing beside what is measured
BUSY_KEYS: Final = 10
ACTIVE: Final = 300

# The slot of a row says what it is; 37 has no divisor in common with 125, so neighbours are of different kinds.
_MIX: Final = """
insert into @schema.instances
  (fsm, step, state, status, queue, priority, partition_key, eligible_at, finished_at, result, await_deadline, awaits,
   seen, has_signals, claims, seq)
select
  'm', 's', '{"n": 1, "name": "a state of a common size", "items": [1, 2, 3]}',
  case when r.kind = 'ended' then 'done' when r.kind = 'parked' then 'awaiting_signal' else 'runnable'
  end::@schema.durable_status,
  case r.kind when 'keyed' then 'keyed' when 'blocked' then 'busy' when 'parked' then 'inbox' when 'idle' then 'idle'
    else 'default' end,
  case when r.kind = 'future' then -7 else 0 end,
  case r.kind when 'keyed' then 'k' || r.n when 'blocked' then 'busy' || r.n % {busy} end,
  case when r.kind in ('future', 'idle') then now() + interval '1 year' else r.at end,
  case when r.kind = 'ended' then r.at end,
  case when r.kind = 'ended' then '{"ok": true}'::jsonb end,
  case when r.kind = 'parked' and r.n % 2 = 0 then now() + interval '1 year' end,
  case when r.kind = 'parked' then '{{go}}'::text[] end,
  case when r.kind = 'parked' then '{{}}'::bigint[] end,
  r.kind = 'parked',
  case when r.kind in ('ended', 'parked') then 1 else 0 end,
  case when r.kind in ('ended', 'parked') then 1 else 0 end
from (
  select
    n,
    now() - interval '2 days' + n * interval '20 milliseconds' as at,
    case
      when n * 37 % 125 < 70 then 'ended' when n * 37 % 125 < 92 then 'plain' when n * 37 % 125 < 100 then 'keyed'
      when n * 37 % 125 < 110 then 'blocked' when n * 37 % 125 < 115 then 'future' when n * 37 % 125 < 120 then 'idle'
      else 'parked'
    end as kind
  from generate_series(1::bigint, {rows}) as n
) as r
"""
_SIGNALS: Final = """
insert into @schema.signals (target_id, name, payload)
select id, 'other', '{"n": 1}' from @schema.instances where queue = 'inbox'
"""
_WORKING: Final = """
insert into @schema.instances (fsm, step, state, queue, partition_key)
select 'm', 's', '{"n": 1}', q.queue, case when q.queue = 'keyed' then 'w' || n end
from (values ('default', 300), ('keyed', 300), ('expiring', 200), ('held', {held})) as q (queue, rows),
  generate_series(1, q.rows) as n;
insert into @schema.instances (fsm, step, state, queue, eligible_at)
select 'm', 's', '{"n": 1}', 'idle', now() + interval '1 year' from generate_series(1, 10);
insert into @schema.instances (fsm, step, state, status, queue, awaits, seen, claims, seq)
select 'm', 's', '{"n": 1}', 'awaiting_signal', 'inbox', '{{go}}', '{{}}', 1, 1 from generate_series(1, 300);
insert into @schema.instances (fsm, step, state, status, finished_at, claims, seq)
select 'm', 's', '{"n": 1}', 'done', now(), 1, 1 from generate_series(1, 1500);
insert into @schema.instances (fsm, step, status, queue, partition_key, claims, locked_by, lease_expires_at)
select 'm', 's', 'executing', 'busy', 'busy' || n, 1, 'busy', now() + interval '1 day'
from generate_series(0, {busy} - 1) as n;
"""
ENDED: Final = """
insert into @schema.instances (fsm, step, state, status, finished_at, claims, seq)
select 'm', 's', '{"n": 1}', 'done', now(), 1, 1 from generate_series(1, $1::int)
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A filled table, and two connections: one that is measured, and one that reads and restores rows."""

    size: int
    rows: int
    load_seconds: float
    schema: Schema
    calls: StatementBuilder
    main: asyncpg.Connection[Any]
    side: asyncpg.Connection[Any]
    parked: list[int]
    active: list[int]  # some of the parked rows, as many at every size, from all over the table

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        """Run any statement without measuring it."""
        return list(await self.side.fetch(self.schema.render(sql), *args))

    async def settle(self) -> None:
        """Do what autovacuum would do at some later time."""
        await self.side.execute(self.schema.render("vacuum (analyze) @schema.instances, @schema.signals"))

    async def visit(self) -> None:
        """Have the measured process see every page once: the first time costs it a page fault, then never again."""
        async with self.main.transaction():
            await self.main.execute("set local max_parallel_workers_per_gather = 0")
            for look in ("instances where fsm = ''", "instances where id > 0", "signals where name = ''"):
                await self.main.execute(self.schema.render(f"select count(*) from @schema.{look}"))

    async def statistics(self) -> dict[str, Any]:
        """The planner's statistics of the table, and its size."""
        (row,) = await self.fetch(
            """
            select c.reltuples::bigint as reltuples, pg_table_size(c.oid) as table_bytes,
                   pg_indexes_size(c.oid) as index_bytes, s.n_dead_tup as dead, s.last_analyze::text as analyzed,
                   s.last_autoanalyze::text as autoanalyzed, s.autovacuum_count as autovacuums
            from pg_class c join pg_stat_user_tables s on s.relid = c.oid
            where c.oid = '@schema.instances'::regclass
            """
        )
        return dict(row)

    async def close(self) -> None:
        """Drop it all."""
        await self.main.close()
        await self.side.execute(f'drop schema "{self.schema.name}" cascade')
        await self.side.close()


async def fill(dsn: str, size: int, name: str) -> Table:
    """A new table of this size. It comes without statistics, unless autovacuum was quick."""
    schema = Schema(name)
    link = PersistentConnection(ConnectionTarget(dsn))
    await migrate(link, schema)
    await link.close()
    side = await asyncpg.connect(dsn, command_timeout=1800)
    began = time.perf_counter()
    async with side.transaction():  # one commit: autovacuum sees the rows when all are there
        if size:
            await side.execute(schema.render(_fit(_MIX, rows=size * 125 // 100)))
            await side.execute(schema.render(_SIGNALS))
        await side.execute(schema.render(_fit(_WORKING)))
    took = time.perf_counter() - began
    # A look must not read the table from end to end where the planner knows nothing of it yet.
    await side.execute("set enable_seqscan = off")
    found = await side.fetch(
        schema.render("select id from @schema.instances where status = 'awaiting_signal' order by id")
    )
    parked = [row[0] for row in found]
    rows = await side.fetchval(schema.render("select count(*) from @schema.instances"))
    await side.execute("checkpoint")  # what is still to be written of the load would fall on the first calls
    main = await asyncpg.connect(dsn, statement_cache_size=200)
    active = [parked[i * len(parked) // ACTIVE] for i in range(ACTIVE)]
    return Table(size, rows, took, schema, StatementBuilder(schema), main, side, parked, active)


def _fit(sql: str, **values: int) -> str:
    for key, value in {"busy": BUSY_KEYS, "held": HELD, **values}.items():
        sql = sql.replace("{" + key + "}", str(value))
    return sql.replace("{{", "{").replace("}}", "}")
