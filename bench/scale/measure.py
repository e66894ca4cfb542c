"""Timing the rounds.

Tables take turns round by round, so that what disturbs the machine disturbs all sizes alike. Each call is timed inside
a transaction, without its commit: the flush of the log costs the same at every size and would hide what does not. After
each round a reference is timed on the same connection: an update of 200 rows of a small table that never grows, and a
round trip. The cost of a call is its time over that of the reference, the round trip taken off both.

What a call touches is asked of EXPLAIN, in rounds of their own: buffers and log records of everything inside the
function, of this call alone.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bench.scale.dataset import Table
from bench.scale.works import BATCH, hold, round_of
from gen_durable.store.calls import Call

WARM: Final = 7  # from the sixth call on, a prepared statement may have a generic plan
_REFERENCE: Final = "update bench_scale_reference set n = n + 1, at = now() where id = any ($1::int[])"
_SETUP: Final = """
create table if not exists bench_scale_reference (
  id int primary key, n int not null default 0, at timestamptz, filler text not null default repeat('x', 100)
) with (fillfactor = 50);
insert into bench_scale_reference (id) select generate_series(1, 1000) on conflict do nothing;
"""


@dataclass(slots=True)
class Cost:
    """One call at one size, in one setting. Per row of its batch, except where it says otherwise."""

    call_us: float  # the call as a whole, median
    row_us: float
    units: float  # in references
    low: float  # lower and upper quartile of the units
    high: float
    samples: int
    hit: float = 0.0
    read: float = 0.0
    dirtied: float = 0.0
    log_bytes: float = 0.0
    page_images: float = 0.0


@dataclass(slots=True)
class Setting:
    """All calls at one size in one setting."""

    size: int
    rows: int
    statistics: str  # 'fresh': right after loading, the planner knows nothing; 'analyzed'
    executing: int
    reference_us: float
    round_trip_us: float
    table: dict[str, Any]
    costs: dict[str, Cost] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class Stopwatch:
    """Times the calls of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.took: dict[str, list[float]] = defaultdict(list)
        self.touched: dict[str, list[dict[str, float]]] = defaultdict(list)

    async def time(self, name: str, call: Call[Any]) -> None:
        self.took[name].append(await self._timed(call.text, *call.args))

    async def reference(self) -> None:
        self.took["reference"].append(await self._timed(_REFERENCE, list(range(1, 1000, 5))))
        self.took["round trip"].append(await self._timed("select 1"))

    async def explain(self, name: str, call: Call[Any]) -> None:
        text = "explain (analyze, buffers, wal, timing off, format json) " + call.text
        plan = json.loads(await self.table.main.fetchval(text, *call.args))[0]["Plan"]
        self.touched[name].append(
            {
                "hit": plan["Shared Hit Blocks"],
                "read": plan["Shared Read Blocks"],
                "dirtied": plan["Shared Dirtied Blocks"],
                "log_bytes": plan.get("WAL Bytes", 0),
                "page_images": plan.get("WAL FPI", 0),
            }
        )

    async def skip(self, name: str, call: Call[Any]) -> None:
        await self._timed(call.text, *call.args)

    async def _timed(self, text: str, *args: object) -> float:
        connection = self.table.main
        async with connection.transaction():
            began = time.perf_counter()
            await connection.fetch(text, *args)
            return time.perf_counter() - began


async def prepare(table: Table) -> None:
    """What every measurement needs, once."""
    await table.side.execute(_SETUP)


async def measure(
    tables: Sequence[Table],
    label: str,
    executing: int,
    rounds: int,
    tick: Callable[[], None],
) -> list[Setting]:
    """The costs on each table, with this many rows executing."""
    watches = [Stopwatch(table) for table in tables]
    dice = [random.Random(42) for _ in tables]
    for table in tables:
        await hold(table, executing)
    for n in range(WARM + rounds):
        for watch, die in zip(watches, dice, strict=True):
            await round_of(watch.table, watch.time if n >= WARM else watch.skip, executing, die)
            if n >= WARM:
                await watch.reference()
        tick()
    for _ in range(3):
        for watch, die in zip(watches, dice, strict=True):
            await round_of(watch.table, watch.explain, executing, die)
        tick()
    return [await _setting(watch, label, executing) for watch in watches]


def turns(rounds: int) -> int:
    """How often `measure` ticks."""
    return WARM + rounds + 3


async def _setting(watch: Stopwatch, label: str, executing: int) -> Setting:
    reference = statistics.median(watch.took["reference"])
    trip = statistics.median(watch.took["round trip"])
    setting = Setting(
        watch.table.size,
        watch.table.rows,
        label,
        executing,
        reference * 1e6,
        trip * 1e6,
        await watch.table.statistics(),
    )
    for name, batch in BATCH.items():
        took = watch.took.get(name)
        if not took:
            continue
        low, middle, high = ((t - trip) / (reference - trip) for t in statistics.quantiles(took, n=4))
        call = statistics.median(took)
        touched = watch.touched[name]
        sums = {key: statistics.median(t[key] for t in touched) / batch for key in touched[0]}
        setting.costs[name] = Cost(call * 1e6, (call - trip) * 1e6 / batch, middle, low, high, len(took), **sums)
    return setting
