"""Timing the rounds.

Tables take turns of a few rounds, so that what disturbs the machine disturbs all sizes alike. Each call is timed inside
a transaction, without its commit: the flush of the log costs the same at every size and would hide what does not. What
counts is the time that the server's process had on a processor, where the kernel reports it (Linux, a server on this
machine), for the clock also counts what the neighbours do; and the lower quartile, for a disturbance only ever adds.

After each round a reference is timed on the same connection: an update of 200 rows of a small table that never grows,
and a round trip. The cost of a call is its time over that of the reference, the round trip taken off both.

What a call touches is asked of EXPLAIN, in rounds of their own: buffers and log records of everything inside the
function, of this call alone.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from gen_durable.store.statements import Statement
from tools.bench.scale.dataset import Table
from tools.bench.scale.statement_round import BATCH, hold, round_of

WARM: Final = 7  # from the sixth call on, a prepared statement may have a generic plan
TURN: Final = 3
_REFERENCE: Final = "update @schema.reference set n = n + 1, at = now() where id = any ($1::int[])"
_SETUP: Final = """
create table @schema.reference (
  id int primary key, n int not null default 0, at timestamptz, filler text not null default repeat('x', 100)
) with (fillfactor = 50);
insert into @schema.reference (id) select generate_series(1, 1000);
"""


@dataclass(slots=True)
class Cost:
    """One call at one size, in one setting. Per row of its batch, except where it says otherwise."""

    clock_us: float  # the round trip taken off
    cpu_us: float | None
    units: float  # of the whole call, in references
    samples: int
    hit: float = 0.0
    read: float = 0.0
    dirtied: float = 0.0
    log_bytes: float = 0.0
    page_images: float = 0.0

    @property
    def us(self) -> float:
        return self.clock_us if self.cpu_us is None else self.cpu_us


@dataclass(frozen=True, slots=True)
class Spent:
    """What a statement took, in seconds."""

    clock: float
    cpu: float | None


@dataclass(slots=True)
class Setting:
    """All calls at one size in one setting."""

    size: int
    rows: int
    statistics: str  # 'fresh': right after loading, the planner knows nothing; 'analyzed'
    executing: int
    reference_us: float
    table: dict[str, Any]
    costs: dict[str, Cost] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class Stopwatch:
    """Times the calls of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        # The time on a processor in nanoseconds, and two more numbers.
        process = Path(f"/proc/{table.main.get_server_pid()}")
        self._schedule = process / "schedstat" if _kernel_tells(process) else None
        self.took: dict[str, list[Spent]] = defaultdict(list)
        self.touched: dict[str, list[dict[str, float]]] = defaultdict(list)

    async def time(self, name: str, call: Statement[Any]) -> None:
        self.took[name].append(await self._timed(call.text, *call.args))

    async def reference(self) -> None:
        self.took["reference"].append(await self._timed(self.table.schema.render(_REFERENCE), list(range(1, 1000, 5))))
        self.took["round trip"].append(await self._timed("select 1"))

    async def explain(self, name: str, call: Statement[Any]) -> None:
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

    async def skip(self, name: str, call: Statement[Any]) -> None:
        await self._timed(call.text, *call.args)

    async def _timed(self, text: str, *args: object) -> Spent:
        connection = self.table.main
        async with connection.transaction():
            cpu, clock = self._cpu(), time.perf_counter()
            await connection.fetch(text, *args)
            took = time.perf_counter() - clock
            later = self._cpu()
            return Spent(took, None if cpu is None or later is None else later - cpu)

    def _cpu(self) -> float | None:
        return None if self._schedule is None else int(self._schedule.read_text().split()[0]) / 1e9


async def prepare(table: Table) -> None:
    """What the measurements of a table need, once."""
    await table.side.execute(table.schema.render(_SETUP))
    await table.visit()


async def measure(tables: Sequence[Table], label: str, executing: int, rounds: int) -> list[Setting]:
    """The costs on each table, with this many rows executing."""
    watches = [Stopwatch(table) for table in tables]
    dice = [random.Random(42) for _ in tables]
    for table in tables:
        await hold(table, executing)
    for turn in range(-(-rounds // TURN) + 1):
        for watch, die in zip(watches, dice, strict=True):
            for n in range(WARM if turn == 0 else TURN + 1):
                # The first round of a turn brings back the pages that the other tables have pushed out.
                counts = turn > 0 and n > 0
                await round_of(watch.table, watch.time if counts else watch.skip, executing, die)
                if counts:
                    await watch.reference()
    for watch, die in zip(watches, dice, strict=True):
        await round_of(watch.table, watch.skip, executing, die)
        for _ in range(2):
            await round_of(watch.table, watch.explain, executing, die)
    # In turns, all tables had the same time of day, so they share one reference.
    reference = _quartile([spent for watch in watches for spent in watch.took["reference"]])
    trip = _quartile([spent for watch in watches for spent in watch.took["round trip"]])
    return [await _setting(watch, (label, executing), reference, trip) for watch in watches]


async def _setting(watch: Stopwatch, named: tuple[str, int], reference: Spent, trip: Spent) -> Setting:
    unit = _over(reference, trip)
    table = watch.table
    setting = Setting(table.size, table.rows, *named, reference.clock * 1e6, await table.statistics())
    for name, batch in BATCH.items():
        if name in watch.took:
            took = _quartile(watch.took[name])
            clock = (took.clock - trip.clock) * 1e6 / batch
            cpu = None if took.cpu is None else _over(took, trip) * 1e6 / batch
            touched = watch.touched[name]
            sums = {key: statistics.median(t[key] for t in touched) / batch for key in touched[0]}
            setting.costs[name] = Cost(clock, cpu, _over(took, trip) / unit, len(watch.took[name]), **sums)
    return setting


def _over(spent: Spent, trip: Spent) -> float:
    """The time without that of a round trip; never quite nothing."""
    if spent.cpu is not None and trip.cpu is not None:
        return max(spent.cpu - trip.cpu, 1e-6)
    return max(spent.clock - trip.clock, 1e-6)


def _quartile(spent: list[Spent]) -> Spent:
    clock = sorted(s.clock for s in spent)
    cpu = sorted(s.cpu for s in spent if s.cpu is not None)
    return Spent(clock[len(clock) // 4], cpu[len(cpu) // 4] if cpu else None)


def _kernel_tells(process: Path) -> bool:
    """Whether this is a server's process on this machine, and its time can be read."""
    try:
        return "postgres" in (process / "cmdline").read_text() and bool((process / "schedstat").read_text())
    except (OSError, UnicodeDecodeError):
        return False
