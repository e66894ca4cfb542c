"""`python -m tools.bench.listing`: what `list` and `count` cost on a big table, by each documented filter.

The table is filled inside the server: a history of instances that have ended, among them live ones of every status, one
family of a thousand children, keys, metadata. Each filter is tried with a common value, a rare value and, where that is
the worst case, a missing value. The exit code is 1 if the median of one is above the documented bound.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg
from rich.console import Console
from rich.table import Table

from gen_durable.listing import Filters, encode_filters
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.instance_admin import InstanceAdminStatementBuilder
from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import metadata_index_script
from gen_durable.store.statements import Statement
from tools.bench.server import serve

BOUND_MS: Final = 50.0
SHARED_BUFFERS: Final = "1GB"
DAYS: Final = 30  # the rows are spread evenly over this many days
FILL: Final = """
insert into @schema.instances
  (fsm, fsm_version, step, state, status, queue, partition_key, inserted_at, updated_at, eligible_at, finished_at,
   result, awaits, seen, claims, seq, unique_key, unique_scope, locked_by, lease_expires_at, metadata)
select
  'Machine' || r.n % 20, 1 + (r.n % 50 = 0)::int, 'step' || r.n % 5, '{"n": 1, "items": [1, 2, 3]}', r.status,
  'queue' || r.n % 10, case when r.n % 4 = 0 then 'customer' || r.n % 5000 end, r.at, r.at, r.at,
  case when r.ended then r.at + interval '10 seconds' end, case when r.status = 'done' then '{"ok": true}'::jsonb end,
  case when r.status = 'awaiting_signal' then '{go}'::text[] end,
  case when r.status = 'awaiting_signal' then '{}'::bigint[] end,
  1, 1, convert_to('order:' || r.n, 'UTF8'),
  (case when r.ended then '{}' else '{runnable,executing,awaiting_signal,awaiting_children}' end)
    ::@schema.durable_status[],
  case when r.status = 'executing' then 'w' end, case when r.status = 'executing' then now() + interval '1 day' end,
  jsonb_build_object('tenant', 'tenant' || r.n % 2000, 'order', r.n)
from (
  select n, s.status::@schema.durable_status, s.status in ('done', 'failed', 'cancelled') as ended,
    now() - make_interval(days => $2) + n * (make_interval(days => $2) / $1) as at
  from generate_series(1, $1::bigint) as n
  cross join lateral (
    select case
      when n % 100 < 85 then 'done' when n % 100 < 88 then 'failed' when n % 100 < 89 then 'cancelled'
      when n % 100 < 96 then 'awaiting_signal' when n % 5000 = 4999 then 'executing' else 'runnable'
    end as status
  ) as s
) as r
"""
FAMILY: Final = """
with parent as (
  insert into @schema.instances (fsm, step, status, children_pending, round, claims, seq)
  values ('Family', 'join', 'awaiting_children', 1000, 1, 1, 1) returning id
)
insert into @schema.instances (fsm, step, parent_id, parent_round)
select 'Child', 'run', parent.id, 1 from parent, generate_series(1, 1000) returning parent_id
"""


def filter_cases(rows: int, parent: int, now: datetime) -> list[tuple[str, dict[str, Any]]]:
    """Every documented filter, with its values."""
    day = timedelta(days=1)
    past = now - 20 * day
    return [
        ("nothing", {}),
        *((f"status={status}", {"status": status}) for status in (
            "runnable", "executing", "awaiting_signal", "awaiting_children", "done", "failed", "cancelled",
        )),
        ("status=failed,cancelled, no such machine", {"status": ["failed", "cancelled"], "machine": "None"}),
        ("machine", {"machine": "Machine7"}),
        ("machine, none", {"machine": "None"}),
        ("version", {"version": 2}),
        ("version, none", {"version": 9}),
        ("step", {"step": "step3"}),
        ("step, none", {"step": "none"}),
        ("queue", {"queue": "queue3"}),
        ("queue, none", {"queue": "none"}),
        ("partition_key", {"partition_key": "customer4"}),
        ("partition_key, none", {"partition_key": "none"}),
        ("parent", {"parent": parent}),
        ("parent, none of them done", {"parent": parent, "status": "done"}),
        ("unique_key", {"unique_key": f"order:{rows // 2 // 100 * 100 + 90}"}),
        ("unique_key, nobody", {"unique_key": "order:0"}),
        ("metadata, 1 in 2,000", {"metadata": {"tenant": "tenant77"}}),
        ("metadata, one row", {"metadata": {"order": rows // 3}}),
        ("metadata, none", {"metadata": {"tenant": "none"}}),
        ("due", {"due": True}),
        ("blocked", {"blocked": True}),
        ("error, none", {"error": "no such text"}),
        ("inserted_after, an hour", {"inserted_after": now - day / 24}),
        ("inserted_before, in the middle", {"inserted_before": now - DAYS / 2 * day}),
        ("inserted, a day long ago", {"inserted_after": past, "inserted_before": past + day}),
        ("updated_after, an hour", {"updated_after": now - day / 24}),
        ("updated_before, in the middle", {"updated_before": now - DAYS / 2 * day}),
        ("finished_after, a minute", {"finished_after": now - day / 1440}),
        ("finished_after, a day", {"finished_after": now - day}),
        ("finished_before, in the middle", {"finished_before": now - DAYS / 2 * day}),
        ("finished, a minute long ago", {"finished_after": past, "finished_before": past + day / 1440}),
        ("five at once", {
            "status": "failed", "machine": "Machine7", "step": "step2", "queue": "queue7", "inserted_after": past,
        }),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of each call: by the clock, and on the processor, where others on the machine do not count."""

    clock: list[float]
    processor: list[float]


@dataclass(frozen=True, slots=True)
class Timed:
    """The costs of one filter, and what it found."""

    name: str
    found: str
    listed: Times
    counted: Times


async def main(options: argparse.Namespace, console: Console) -> bool:
    rows, schema = options.rows, Schema("bench_listing")
    missing = set(Filters.__annotations__) - {
        f for _, filters in filter_cases(1, 1, datetime.now(UTC)) for f in filters
    }
    if missing:
        raise SystemExit(f"not measured: {', '.join(sorted(missing))}")
    async with serve(SHARED_BUFFERS) as server:
        migration_connection = PersistentConnection(ConnectionTarget(server.dsn))
        await migrate(migration_connection, schema)
        connection = await asyncpg.connect(server.dsn, command_timeout=3600)
        began = time.perf_counter()
        await connection.execute(schema.render(FILL.replace("$1", str(rows)).replace("$2", str(DAYS))))
        parent = await connection.fetchval(schema.render(FAMILY))
        version, took = server.settings["server_version"], time.perf_counter() - began
        console.print(f"{rows:,} rows in {took:.0f} s, Postgres {version}, shared_buffers {SHARED_BUFFERS}")
        await connection.execute(schema.render("vacuum (analyze) @schema.instances"))
        cases = filter_cases(rows, parent, datetime.now(UTC))
        timed = [await measure(connection, schema, name, what, options.rounds) for name, what in cases]
        if options.metadata_index:
            await migration_connection.run_script(metadata_index_script(schema))
            timed += [
                await measure(connection, schema, f"{name}, with its index", what, options.rounds)
                for name, what in cases
                if "metadata" in what
            ]
        await connection.close()
        await migration_connection.close()
        await server.admin.execute(f'drop schema "{schema.name}" cascade')
    console.print(table_of(timed))
    slow = [
        t.name for t in timed if max(statistics.median(t.listed.clock), statistics.median(t.counted.clock)) > BOUND_MS
    ]
    console.print(f"above {BOUND_MS:.0f} ms: {'; '.join(slow)}" if slow else f"all within {BOUND_MS:.0f} ms")
    return not slow


async def measure(
    connection: asyncpg.Connection[Any], schema: Schema, name: str, filters: Mapping[str, Any], rounds: int
) -> Timed:
    """Time a first page and a count, `rounds` times each."""
    reads, what = InstanceAdminStatementBuilder(schema), encode_filters(filters)
    page, listed = await _time(connection, reads.list(what, None, 50, payloads=False), rounds)
    count, counted = await _time(connection, reads.count(what), rounds)
    more = "" if page.cursor is None else ", more"
    return Timed(name, f"{len(page)}{more}; {'' if count.exact else 'about '}{count.value:,}", listed, counted)


async def _time(connection: asyncpg.Connection[Any], call: Statement[Any], rounds: int) -> tuple[Any, Times]:
    answer, times, backend = None, Times([], []), connection.get_server_pid()
    for _ in range(rounds):
        began, spent = time.perf_counter(), _processor_ms(backend)
        answer = call.read(await connection.fetch(call.text, *call.args))
        times.clock.append((time.perf_counter() - began) * 1000)
        times.processor.append(_processor_ms(backend) - spent)
    return answer, times


def _processor_ms(process: int) -> float:
    """The CPU time of a process of this machine; NaN for a server elsewhere."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e6
    except OSError:
        return math.nan


def table_of(timed: list[Timed]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("filter; ms", no_wrap=True)
    for verb in ("list", "count"):
        for name in (f"{verb} p50", "max", "cpu p50"):
            made.add_column(name, justify="right")
    made.add_column("page; count", no_wrap=True)
    for t in timed:
        numbers = [
            n
            for times in (t.listed, t.counted)
            for n in (statistics.median(times.clock), max(times.clock), statistics.median(times.processor))
        ]
        made.add_row(t.name, *(f"{n:.1f}" for n in numbers), t.found)
    return made


def _rows(text: str) -> int:
    units = {"k": 1000, "m": 1_000_000}
    return int(float(text[:-1]) * units[text[-1].lower()]) if text[-1].lower() in units else int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.listing", description="Measure list and count on a big table, filter by filter."
    )
    parser.add_argument("--rows", type=_rows, default=3_000_000, help="10k, 3M; default 3M")
    parser.add_argument("--rounds", type=int, default=20, help="how often each call is timed")
    parser.add_argument(
        "--metadata-index", action="store_true", help="also with the index of metadata, which takes a while"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main(arguments(), Console(width=None if sys.stdout.isatty() else 130))) else 1)
