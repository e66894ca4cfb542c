"""Samples taken while the load runs, and the checks that compare them at the end."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import asyncpg

from gen_durable.store.schema import Schema

_COUNTERS = """
select (select count(*) from pg_stat_activity
        where datname = current_database() and backend_type = 'client backend')::int as connections,
       sum(n_dead_tup)::bigint as dead, sum(n_live_tup)::bigint as live,
       sum(pg_total_relation_size(relid))::bigint as bytes, sum(autovacuum_count)::bigint as autovacuums
from pg_stat_user_tables where schemaname = $1
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One window of the run. Times in milliseconds, sizes in MB."""

    at: float
    reader: bool
    ended_per_s: float
    memory: float  # of the largest worker
    late_p50: float
    late_p99: float
    connections: int
    live_rows: int
    dead_rows: int
    size: float
    autovacuums: int

    def plain(self) -> dict[str, Any]:
        return asdict(self)


async def counters(connection: asyncpg.Connection[Any], schema: Schema) -> dict[str, Any]:
    """Postgres' counters of a schema."""
    return dict(await connection.fetchrow(_COUNTERS, schema.name) or {})


def make_sample(
    at: float, rate: float, reports: dict[int, dict[str, Any]], found: dict[str, Any], *, reader: bool
) -> Sample:
    """Make one sample of the reports of the workers and the counters of Postgres."""
    late = [words["late"] for words in reports.values() if words["late"]] or [[0.0, 0.0]]
    return Sample(
        at=at,
        reader=reader,
        ended_per_s=rate,
        memory=max(words["memory"] for words in reports.values()),
        late_p50=max(p50 for p50, _ in late) * 1e3,
        late_p99=max(p99 for _, p99 in late) * 1e3,
        connections=found["connections"] - reader,
        live_rows=found["live"],
        dead_rows=found["dead"],
        size=found["bytes"] / 1e6,
        autovacuums=found["autovacuums"],
    )


@dataclass(frozen=True, slots=True)
class Check:
    """One measured value: at the beginning, at the end, and the most that is allowed at the end."""

    what: str
    first: float
    last: float
    allowed: float

    @property
    def good(self) -> bool:
        return self.last <= self.allowed


def check_growth(samples: list[Sample]) -> list[Check]:
    """Compare tenths of the run. The first tenth warms up: caches fill, retention has not begun to delete."""
    tenth = max(1, len(samples) // 10)
    held = [number for number, sample in enumerate(samples) if sample.reader]
    early, last = samples[tenth : 2 * tenth] or samples[:1], samples[-tenth:]  # a short run may have one sample only
    # A table does not shrink: the reader leaves it with room, which must be enough for all that comes after.
    settled = samples[held[-1] : held[-1] + tenth + 1] if held else early

    def middle(several: list[Sample], of: Callable[[Sample], float]) -> float:
        return statistics.median(of(sample) for sample in several)

    lines = []
    for what, of, before, factor, slack in (
        ("memory of a worker, MB", lambda s: s.memory, early, 1.1, 5.0),
        ("connections", lambda s: s.connections, early, 1.0, 0.0),
        ("claimed late, p99 ms", lambda s: s.late_p99, early, 1.5, 5.0),
        ("dead rows", lambda s: s.dead_rows, early, 2.0, 10_000.0),
        ("size of all tables, MB", lambda s: s.size, settled, 1.1, 5.0),
    ):
        first = middle(before, of)
        lines.append(Check(what, first, middle(last, of), first * factor + slack))
    return lines


def slope(samples: list[Sample]) -> float:
    """How a worker's memory grows after the first fifth, in MB an hour: least squares."""
    rest = samples[len(samples) // 5 :]
    if len(rest) < 3:
        return 0.0
    return statistics.linear_regression([s.at / 3600 for s in rest], [s.memory for s in rest]).slope
