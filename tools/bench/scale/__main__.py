"""`python -m tools.bench.scale`: the calls at several sizes, then the long reader; tables, JSON, a plot."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tools.bench.progress import ProgressBars
from tools.bench.report import environment
from tools.bench.scale import horizon, obstacles, report
from tools.bench.scale.dataset import Table, fill
from tools.bench.scale.measure import Setting, measure, prepare
from tools.bench.scale.plot import draw
from tools.bench.server import Server, serve

SHARED_BUFFERS = "4GB"  # all sizes fit in at once: the question is what a call does, not what a cache holds
RESULTS = Path(__file__).parent.parent / "results"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    sizes: list[int]
    executing: list[int]
    rounds: int
    horizon_size: int
    seconds: tuple[float, float, float]
    window: float
    obstacles: float  # how large they are, 1 is full size; 0 leaves them out


FULL = Plan([10_000, 100_000, 1_000_000, 3_000_000], [0, 500, 2000], 30, 100_000, (30, 120, 70), 10, 1)
QUICK = Plan([10_000, 100_000], [0, 500, 2000], 9, 10_000, (5, 15, 10), 5, 0.1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.scale",
        description="What the calls cost as the table grows, and under a long reader.",
    )
    parser.add_argument("--sizes", type=_sizes, help="rows, by commas: 10k,100k,1M,3M")
    parser.add_argument("--executing", type=_sizes, help="how many rows execute meanwhile, by commas: 0,500,2000")
    parser.add_argument("--rounds", type=int, help="how often each call is timed in each setting")
    parser.add_argument("--quick", action="store_true", help="a look in a minute: up to 100k rows, a short reader")
    parser.add_argument("--reader", type=float, help="how many seconds the long reader stays; 0 leaves that run out")
    parser.add_argument("--reader-size", type=int, help="the size of the table that the long reader reads")
    parser.add_argument(
        "--obstacles", type=float, help="how large the obstacles are; 1 is full size, 0 leaves them out"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "scale.json", help="where the numbers go; plots beside")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    return parser.parse_args()


def plan_of(options: argparse.Namespace) -> Plan:
    base = QUICK if options.quick else FULL
    before, during, after = base.seconds
    return Plan(
        sorted(options.sizes or base.sizes),
        options.executing if options.executing is not None else base.executing,
        options.rounds or base.rounds,
        options.reader_size or base.horizon_size,
        (before, during if options.reader is None else options.reader, after),
        base.window,
        base.obstacles if options.obstacles is None else options.obstacles,
    )


async def main(options: argparse.Namespace, console: Console) -> None:
    plan, began = plan_of(options), time.monotonic()
    async with serve(SHARED_BUFFERS) as server:
        around = environment(server)
        found = around["postgres"]
        console.print(
            f"gen_durable {around['gen_durable']}, Postgres {found['server_version']}, {around['cores']} cores,"
            f" shared_buffers {found['shared_buffers']}; sizes {', '.join(map(report.size_name, plan.sizes))}"
        )
        with ProgressBars(console) as bars:
            settings = await _sized(server, plan, bars)
            windows = await _long_reader(server, plan, bars) if plan.seconds[1] > 0 else []
            blocked, race = await _obstacles(server, plan, bars) if plan.obstacles > 0 else ([], {})
    verdicts = report.verdicts(settings)
    report.show(console, settings, verdicts)
    if windows:
        report.show_horizon(console, windows)
    if blocked:
        report.show_obstacles(console, blocked, race)
    more: dict[str, Any] = {"windows": windows, "obstacles": blocked, "race": race}
    await asyncio.to_thread(report.write, options.json, around, settings, verdicts, **more)
    written = [options.json]
    if importlib.util.find_spec("matplotlib") is None:
        console.print("No plot: matplotlib is missing (pip install matplotlib).")
    elif not options.no_plot:
        written += await asyncio.to_thread(draw, options.json)
    console.print(f"Took {time.monotonic() - began:.0f} s. Written: {', '.join(map(str, written))}")


async def _sized(server: Server, plan: Plan, bars: ProgressBars) -> list[Setting]:
    """Each size right after its load; then all sizes in turns, vacuumed and analyzed."""
    settings: list[Setting] = []
    tables: list[Table] = []
    fresh = min(plan.executing, key=lambda n: abs(n - 500))
    try:
        bar = bars.add("Load, and measure without statistics")
        bar.expect(2 * (len(plan.sizes) + 1))
        for size in [0, *plan.sizes]:
            table = await fill(server.dsn, size, f"bench_scale_{size}")
            tables.append(table)
            bar.done(f"{report.size_name(size)}: {table.rows:,} rows loaded in {table.load_seconds:.1f} s")
            await prepare(table)
            settings += await measure([table], "fresh", fresh, plan.rounds)
            bar.done(f"{report.size_name(size)}: measured")
        bar = bars.add("Measure with statistics")
        bar.expect(len(plan.executing))
        for executing in plan.executing:
            # Each time: what the rounds before have left dead is no matter of size.
            for table in tables:
                await table.settle()
            await server.admin.execute("checkpoint")
            for table in tables:
                await table.visit()
            settings += await measure(tables, "analyzed", executing, plan.rounds)
            bar.done(f"{executing:,} executing")
    finally:
        for table in tables:
            await table.close()
    return settings


async def _long_reader(server: Server, plan: Plan, bars: ProgressBars) -> list[horizon.Window]:
    bar = bars.add(f"A long reader for {plan.seconds[1]:.0f} s, on {report.size_name(plan.horizon_size)}")
    table = await fill(server.dsn, plan.horizon_size, "bench_scale_reader")
    try:
        await table.settle()
        bar.expect(int(sum(plan.seconds) / plan.window))
        return await horizon.watch(
            server.dsn,
            table,
            plan.seconds,
            plan.window,
            lambda w: bar.done(f"{w.phase}: {w.jobs_per_s:,.0f} jobs/s, pick p50 {w.pick_p50_ms:.1f} ms"),
        )
    finally:
        await table.close()


async def _obstacles(
    server: Server, plan: Plan, bars: ProgressBars
) -> tuple[list[obstacles.Obstacle], dict[str, float]]:
    bar = bars.add("Work that cannot run in front of work that can")
    found = await obstacles.measure(server, plan.obstacles, 3 if plan.obstacles >= 1 else 1, bar)
    bar.expect(1)
    race = await obstacles.racing(server, plan.obstacles)
    bar.done("eight pickers, fifty keys")
    return found, race


def _sizes(text: str) -> list[int]:
    units = {"k": 1000, "m": 1_000_000}
    return [
        int(float(part[:-1]) * units[part[-1].lower()]) if part[-1].lower() in units else int(part)
        for part in text.replace(" ", "").split(",")
        if part
    ]


if __name__ == "__main__":
    # Wide enough for the tables where there is no terminal to ask.
    asyncio.run(main(arguments(), Console(width=None if sys.stdout.isatty() else 150)))
