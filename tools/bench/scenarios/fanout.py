"""One parent, thousands of children (`--big`: a hundred thousand), and the join: from the insert to the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg

from gen_durable import Durable, Finished
from tools.bench.process_main import Parent
from tools.bench.processes import Run, run_until
from tools.bench.raw_floor import FAN, floor_insert_case
from tools.bench.result import Better, Result, compare
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import rates
from tools.bench.work import Fan, worker

NAME = "fanout"
ENGINE = f"{__name__}:engine"
MANY = 100_000


async def engine(parent: Parent, app: Durable, *, children: int) -> None:
    """A role: a worker, and the parent inserted and waited for in the same process."""
    await parent.wait_for_start()
    async with worker(app, queues={"default": 200}):
        handle = await app.insert(Fan.spread, children)
        match await handle.wait():
            case Finished(result=joined) if joined == children:
                parent.report(children + 1, time.monotonic())
            case other:
                raise AssertionError(f"the join ended as {other}")
        await parent.wait_for_stop()


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    def case(role: str, children: int) -> Callable[[], Awaitable[Run]]:
        async def once() -> Run:
            async with server.app() as app:
                return await run_until(server, app, [(role, {"children": children})], children + 1)

        return once

    usual = {
        "raw": floor_insert_case(server, FAN, size.children + 1, children=size.children),
        "bare": case("tools.bench.ceiling:fan", size.children),
        "fan-out": case(ENGINE, size.children),
    }
    runs = await run_in_rounds(size, progress, usual)
    name = f"fan-out of {size.children:,} and join"
    note = "one process, concurrency 200; raw: without the join"
    rows = [rates(NAME, name, "children/s", runs["fan-out"], runs["bare"], floors=runs["raw"], note=note)]
    if size.parked:
        progress.expect(2)
        bare = await case("tools.bench.ceiling:fan", MANY)()
        progress.done("bare, many")
        many, longest = await _watched(server, case(ENGINE, MANY))
        progress.done("many")
        name = f"fan-out of {MANY:,} and join"
        usually = max(run.peak for run in runs["fan-out"])
        more = f"compared with {size.children:,}"
        rows += [
            rates(NAME, name, "children/s", [many], [bare], note="one process, concurrency 200"),
            compare(NAME, f"{name}: longest statement", "ms", [1000 * longest], better=Better.LOWER),
            compare(NAME, f"{name}: memory", "MB", [many.peak], [usually], better=Better.LOWER, note=more),
        ]
    return rows


async def _watched(server: Server, case: Callable[[], Awaitable[Run]]) -> tuple[Run, float]:
    """A run, and the longest that any statement was seen to take meanwhile."""
    running = asyncio.ensure_future(case())
    longest = 0.0
    watcher = await asyncpg.connect(server.dsn)
    try:
        while not running.done():
            await asyncio.sleep(0.01)
            seen = await watcher.fetchval(
                "select extract(epoch from max(clock_timestamp() - query_start))::float8 from pg_stat_activity"
                " where state = 'active' and application_name like 'gen_durable%'"
            )
            longest = max(longest, seen or 0.0)
        return await running, longest
    finally:
        await watcher.close()


SCENARIO = Scenario(NAME, "Fan-out and join", "children/s", run)
