"""`python -m tools.bench.soak`: half of the peak for an hour; checks, JSON and a plot."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gen_durable import Durable, Status
from gen_durable.core.services import services_of
from gen_durable.invariant_checker import diagnose
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from tools.bench.report import environment
from tools.bench.server import Server, serve
from tools.bench.soak.load import ENDS_PER_HUNDRED
from tools.bench.soak.processes import start_processes
from tools.bench.soak.sample import Check, Sample, check_growth, counters, make_sample, slope

RESULTS = Path(__file__).parent.parent / "results"
READER = 120.0
SETTLE = 60.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.soak", description=__doc__)
    parser.add_argument(
        "--hours",
        type=float,
        default=1.0,
        help="how long (default: 1); below 0.2 vacuum comes too rarely to check_growth tables by",
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--share", type=float, default=0.5, help="how much of the peak (default: 0.5)")
    parser.add_argument("--peak-seconds", type=float, default=20.0, help="how long the peak is measured (default: 20)")
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "soak.json", help="where the numbers go; plots beside it"
    )
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    return parser.parse_args()


@dataclass(frozen=True, slots=True)
class Plan:
    """The duration, the rate and the number of workers."""

    seconds: float
    window: float
    rate: float  # hundreds of instances a second
    workers: int

    def is_read(self, at: float) -> bool:
        """Whether a reader keeps a snapshot open: in the middle, for two minutes or a fifth of the run."""
        return self.seconds / 2 <= at < self.seconds / 2 + min(READER, self.seconds / 5)


async def main(options: argparse.Namespace, console: Console) -> bool:
    seconds = options.hours * 3600
    async with serve() as server:
        around = environment(server)
        async with server.app() as app:
            peak = await _find_peak(app, options, console)
        rate = peak * options.share
        plan = Plan(seconds, min(30.0, max(1.0, seconds / 200)), rate / ENDS_PER_HUNDRED, options.workers)
        console.print(f"Peak {peak:,.0f} instances/s; now {rate:,.0f}/s for {seconds / 60:,.1f} minutes")
        async with server.app() as app:
            result = await _run_load(server, app, plan, console)
            lines = [*check_growth(result.samples), *await _final_checks(server, app, result)]
    samples = result.samples
    console.print(_checks_table(lines, slope(samples)))
    found = {
        "surroundings": around,
        "peak": peak,
        "share": options.share,
        "hours": options.hours,
        "instances": result.inserted,
        "slope_mb_per_hour": slope(samples),
        "verdict": [{"what": line.what, "first": line.first, "last": line.last, "good": line.good} for line in lines],
        "samples": [sample.plain() for sample in samples],
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1))
    if not options.no_plot:
        from tools.bench.soak.plot import draw

        await asyncio.to_thread(draw, options.json)
    console.print(f"Written: {options.json}")
    return all(line.good for line in lines)


async def _find_peak(app: Durable, options: argparse.Namespace, console: Console) -> float:
    """Instances a second with a feeder that always has some ready; the first third warms up."""
    console.print(f"Measuring the peak, {options.peak_seconds:.0f} s ...")
    async with start_processes(app, options.workers, None, options.peak_seconds / 30) as processes:
        await asyncio.sleep(options.peak_seconds / 3)
        first = processes.latest()
        await asyncio.sleep(options.peak_seconds * 2 / 3)
        last = processes.latest()
        await processes.stop_feeding()
    rates: list[float] = [
        (last[pid]["ended"] - reports["ended"]) / (last[pid]["at"] - reports["at"])
        for pid, reports in first.items()
        if last[pid]["at"] > reports["at"]
    ]
    return sum(rates)


@dataclass(frozen=True, slots=True)
class SoakResult:
    """The result of a run."""

    samples: list[Sample]
    inserted: int
    ended: int


async def _run_load(server: Server, app: Durable, plan: Plan, console: Console) -> SoakResult:
    samples: list[Sample] = []
    began = time.monotonic()
    async with (
        AsyncExitStack() as stack,
        start_processes(app, plan.workers, plan.rate, plan.window) as processes,
    ):
        live = stack.enter_context(Live(console=console, auto_refresh=False, transient=True))
        reader: asyncpg.Connection[Any] | None = None
        before = 0
        while (now := time.monotonic() - began) < plan.seconds:
            await asyncio.sleep(plan.window)
            if plan.is_read(now) and reader is None:
                reader = await _open_reader(server, services_of(app).statements.schema)
            elif not plan.is_read(now) and reader is not None:
                await reader.close()
                reader = None
            if processes.has_all_reports:
                rate, before = (processes.ended - before) / plan.window, processes.ended
                found = await counters(server.admin, services_of(app).statements.schema)
                samples.append(make_sample(now, rate, processes.reports, found, reader=reader is not None))
                live.update(_live_table(samples[-1], plan.seconds), refresh=True)
        inserted = await processes.stop_feeding()
        deadline = time.monotonic() + SETTLE
        while processes.ended < inserted and time.monotonic() < deadline:  # noqa: ASYNC110  # the processes send no event for it
            await asyncio.sleep(plan.window)
        return SoakResult(samples, inserted, processes.ended)


async def _open_reader(server: Server, schema: Schema) -> asyncpg.Connection[Any]:
    reader = await asyncpg.connect(server.dsn)
    await reader.execute("begin isolation level repeatable read")
    await reader.execute(schema.render("select id from @schema.instances limit 1"))
    return reader


async def _final_checks(server: Server, app: Durable, result: SoakResult) -> list[Check]:
    """Numbers that must be zero at the end: instances not ended, failed or cancelled, and findings of the doctor."""
    failed = await app.count(status=[Status.FAILED, Status.CANCELLED])
    connection = PersistentConnection(ConnectionTarget(server.dsn))
    try:
        findings = await diagnose(connection, services_of(app).statements.schema)
    finally:
        await connection.close()
    return [
        Check("inserted, not ended", 0, result.inserted - result.ended, 0),
        Check("ended badly", 0, failed.value, 0),
        Check("findings of the doctor", 0, sum(finding.count for finding in findings), 0),
    ]


def _live_table(sample: Sample, seconds: float) -> Table:
    table = Table(box=None, show_header=False)
    reader = "  [yellow]a reader holds its snapshot[/]" if sample.reader else ""
    table.add_row(f"{sample.at / 60:6.1f} of {seconds / 60:.1f} min", f"{sample.ended_per_s:,.0f} ended/s{reader}")
    table.add_row("claimed late", f"p50 {sample.late_p50:.1f} ms, p99 {sample.late_p99:.1f} ms")
    table.add_row("worker", f"{sample.memory:.1f} MB; {sample.connections} connections")
    table.add_row("tables", f"{sample.size:,.1f} MB; {sample.live_rows:,} rows, {sample.dead_rows:,} dead")
    return table


def _checks_table(lines: list[Check], growth: float) -> Table:
    table = Table(title=f"Checks (memory grows by {growth:+.2f} MB an hour)", title_justify="left")
    for heading in ("what", "beginning", "end", "allowed", ""):
        table.add_column(heading, justify="left" if heading in {"what", ""} else "right")
    for line in lines:
        mark = "[green]ok[/]" if line.good else "[red]BAD[/]"
        table.add_row(line.what, f"{line.first:,.1f}", f"{line.last:,.1f}", f"{line.allowed:,.1f}", mark)
    return table


if __name__ == "__main__":
    console = Console(width=None if sys.stdout.isatty() else 120)
    sys.exit(0 if asyncio.run(main(arguments(), console)) else 1)
