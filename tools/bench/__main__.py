"""`python -m tools.bench`: runs scenarios on a private server, prints tables, writes JSON and a plot."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tools.bench.processes import BenchError
from tools.bench.progress import ProgressBars
from tools.bench.report import environment, show, write
from tools.bench.result import Result
from tools.bench.scenario import FULL, SMALL, Scenario, Size
from tools.bench.scenarios import ALL
from tools.bench.server import Server, serve

RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    names = [scenario.name for scenario in ALL]
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description="Measure the engine beside its bare ceiling."
    )
    parser.add_argument("--scenario", action="append", choices=names, help="only this one (may be given several times)")
    parser.add_argument("--size", choices=("small", "full"), default="full", help="small: a smoke test of a minute")
    parser.add_argument("--rounds", type=int, help="how often each run is repeated; the median counts")
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "bench.json", help="where the numbers go; plots beside it"
    )
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--big", action="store_true", help="also a million parked instances, and a fan-out of 100,000")
    parser.add_argument("--peers", action="store_true", help="also the same work on other libraries")
    parser.add_argument("--only-peers", action="store_true", help="the comparison with other libraries alone")
    return parser.parse_args()


async def main(options: argparse.Namespace, console: Console) -> bool:
    size: Size = SMALL if options.size == "small" else FULL
    if options.rounds:
        size = replace(size, rounds=options.rounds)
    if options.big:
        size = replace(size, parked=1_000_000 if options.size == "full" else 50_000)
    chosen = (
        [s for s in ALL if options.scenario is None or s.name in options.scenario] if not options.only_peers else []
    )
    began = time.monotonic()
    results: list[Result] = []
    peers: list[dict[str, Any]] = []
    failed: list[str] = []
    async with serve() as server:
        around = environment(server)
        console.print(_headline(around, size))
        with ProgressBars(console) as bars:
            for scenario in chosen:
                results += await _measure(scenario, server, size, bars, failed)
            if options.peers or options.only_peers:
                from tools.bench.peers import compare_all

                try:
                    peers = await compare_all(server, size, bars.add("Peers"))
                except BenchError as error:
                    failed.append(f"peers: {error}")
    show(console, results)
    if peers:
        from tools.bench.peers import show_peers

        show_peers(console, peers)
    await asyncio.to_thread(write, options.json, around, results, peers)
    written = [options.json]
    if not options.no_plot:
        from tools.bench.plot import draw

        written += await asyncio.to_thread(draw, options.json.with_suffix(""), around, results, peers)
    console.print(f"Took {time.monotonic() - began:.0f} s. Written: {', '.join(_short(path) for path in written)}")
    for line in failed:
        console.print(f"[red]FAILED[/] {line}")
    return not failed


async def _measure(
    scenario: Scenario, server: Server, size: Size, bars: ProgressBars, failed: list[str]
) -> list[Result]:
    try:
        return await scenario.run(server, size, bars.add(scenario.title))
    except Exception as error:  # the others are still worth having
        failed.append(f"{scenario.name}: {type(error).__name__}: {error}")
        return []


def _headline(around: dict[str, Any], size: Size) -> str:
    server = around["postgres"]
    return (
        f"gen_durable {around['gen_durable']}, Python {around['python']} with {around['loop']}, {around['cores']}"
        f" cores, Postgres {server['server_version']} (fsync {server['fsync']}, synchronous_commit"
        f" {server['synchronous_commit']}, shared_buffers {server['shared_buffers']}); size {size.name}, median of"
        f" {size.rounds}"
    )


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    # Wide enough for the tables where there is no terminal to ask.
    console = Console(width=None if sys.stdout.isatty() else 150)
    sys.exit(0 if asyncio.run(main(arguments(), console)) else 1)
