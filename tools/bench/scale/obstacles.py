"""Work that cannot run, in front of work that can.

Each obstacle lies in the same queue as the free jobs and comes before them. A worker with default settings drains the
free jobs, with the obstacle and without it, in turns; a pick of 100 of them is timed by itself.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from gen_durable import Durable, Rate, Start
from gen_durable.core.services import services_of
from gen_durable.store.types import Commit
from tools.bench.ceiling import open_runner
from tools.bench.processes import Run, run_until
from tools.bench.progress import Bar
from tools.bench.server import Server
from tools.bench.throughput import WORK
from tools.bench.work import fill, known, noop

GOAL: Final = 0.8
BATCH: Final = 100
PICKERS: Final = 8
_HOLDER: Final = """
insert into @.instances (fsm, step, state, status, partition_key, claims, locked_by, lease_expires_at)
values ('noop', 'run', '1', 'executing', 'hot', 1, 'another', now() + interval '1 day')
"""
_ONE_BY_ONE: Final = """
select count(*) from generate_series(1, {rows}) as number
cross join lateral @.insert(
  array['noop'], array[1], array['run'], array[to_jsonb(number)], array['default'], '{{}}', array['hot'],
  '{{}}', '{{}}', '{{}}', '{{}}', notify => false, blocks_busy => true
) as inserted
"""

_ALL_THROTTLED: Final = """
insert into @.instances (fsm, step, state, rate_key, eligible_at)
select 'noop', 'run', '1', 'slow', now() - interval '1 hour' from generate_series(1, {rows})
"""

Lay = Callable[[Server, Durable], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The effect of an obstacle on the free jobs."""

    name: str
    jobs_per_s: float
    without: float
    pick_ms: float
    pick_ms_without: float
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.jobs_per_s / self.without

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio}


async def measure(server: Server, scale: float, rounds: int, bar: Bar) -> list[Obstacle]:
    """All obstacles, a `scale` of their full size."""
    hot, future, slow, free = (int(rows * scale) for rows in (100_000, 200_000, 50_000, 20_000))

    async def hot_key(server: Server, app: Durable) -> None:
        await server.admin.execute(_in(app, _HOLDER))
        for begin in range(0, hot, 10_000):
            await app.insert_many([Start(noop, 1, partition_key="hot")] * min(10_000, hot - begin))

    async def one_by_one(server: Server, app: Durable) -> None:
        await server.admin.execute(_in(app, _HOLDER))
        await server.admin.execute(_in(app, _ONE_BY_ONE.format(rows=hot)), timeout=300)

    async def next_month(_server: Server, app: Durable) -> None:
        await fill(app, Start(noop, 1, priority=-1, delay=timedelta(days=30)), future)

    async def throttled(_server: Server, app: Durable) -> None:
        await app.set_limit("slow", Rate(1, per=timedelta(seconds=1)))
        await fill(app, Start(noop, 1, limit="slow"), slow)

    async def throttled_one_by_one(server: Server, app: Durable) -> None:
        await app.set_limit("slow", Rate(1, per=timedelta(seconds=1)))
        await server.admin.execute(_in(app, _ALL_THROTTLED.format(rows=slow)), timeout=300)

    obstacles: dict[str, tuple[Lay, str]] = {
        f"{hot:,} rows of a busy key": (hot_key, "inserted 10,000 at a time"),
        f"{hot:,} rows of a busy key, one by one": (one_by_one, "one call each, as `Durable.insert` makes it"),
        f"{future:,} rows due next month, urgent": (next_month, "at a priority before that of the free jobs"),
        f"{slow:,} rows throttled at 1/s": (throttled, "inserted 5,000 at a time"),
        f"{slow:,} rows throttled at 1/s, one by one": (throttled_one_by_one, "blocked by the picks that meet them"),
    }
    bar.expect(rounds * 2 * len(obstacles))
    found: list[Obstacle] = []
    for name, (lay, note) in obstacles.items():
        runs: dict[bool, list[tuple[Run, float]]] = {True: [], False: []}
        for turn in range(rounds):
            for with_it in (True, False) if turn % 2 else (False, True):
                runs[with_it].append(await _drained(server, lay if with_it else None, free))
                bar.done(f"{name}: {'with' if with_it else 'without'}")
        found.append(Obstacle(name, *_rates(runs[True], runs[False]), note=note))
    return found


async def racing(server: Server, scale: float) -> dict[str, float]:
    """Eight pickers and fifty free keys: how many picks and commits the server aborted."""
    keys, rows = 50, int(4000 * scale)
    async with server.app() as app:
        for key in range(keys):
            await app.insert_many([Start(noop, 1, partition_key=f"key {key}")] * (rows // keys))
        left = rows // keys * keys
        aborted = 0

        async def picker(name: str) -> None:
            nonlocal left, aborted
            ask = await open_runner(app)
            while left > 0:
                try:
                    picked = await ask(services_of(app).statements.pick(name, {"default": 10}, known(), 15))
                    commits = [Commit(c.id, c.epoch, c.seq, "done", value="1") for c in picked.claims]
                    if commits:
                        await ask(services_of(app).statements.flush(sorted(commits, key=lambda c: c.id)))
                        left -= len(commits)
                except Exception:
                    aborted += 1
                    raise

        began = time.monotonic()
        await asyncio.gather(*(picker(f"picker {n}") for n in range(PICKERS)))
        return {"jobs/s": rows / (time.monotonic() - began), "aborted": float(aborted)}


async def _drained(server: Server, lay: Lay | None, free: int) -> tuple[Run, float]:
    async with server.app() as app:
        if lay is not None:
            await lay(server, app)
        await fill(app, Start(noop, 1), free)
        await server.analyze(app)
        drained = await run_until(server, app, [(WORK, {})], free)
        return drained, await _pick_time(app)


async def _pick_time(app: Durable) -> float:
    """The time of a pick of a hundred free jobs, after the drain: the obstacle is still there."""
    ask = await open_runner(app)
    took: list[float] = []
    for _ in range(7):
        await fill(app, Start(noop, 1), BATCH)
        began = time.perf_counter()
        picked = await ask(services_of(app).statements.pick("bare", {"default": BATCH}, known(), 15))
        took.append(time.perf_counter() - began)
        assert len(picked.claims) == BATCH
        commits = [Commit(c.id, c.epoch, c.seq, "done", value="1") for c in picked.claims]
        await ask(services_of(app).statements.flush(sorted(commits, key=lambda c: c.id)))
    return statistics.median(took)


def _rates(
    with_it: Sequence[tuple[Run, float]], without: Sequence[tuple[Run, float]]
) -> tuple[float, float, float, float]:
    def rate(runs: Sequence[tuple[Run, float]]) -> float:
        return statistics.median(run.rate for run, _ in runs)

    def pick(runs: Sequence[tuple[Run, float]]) -> float:
        return 1000 * statistics.median(took for _, took in runs)

    return rate(with_it), rate(without), pick(with_it), pick(without)


def _in(app: Durable, sql: str) -> str:
    return sql.replace("@", f'"{services_of(app).statements.schema.name}"')
