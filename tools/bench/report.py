"""The report: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.bench.result import Result
from tools.bench.server import Server


def environment(server: Server) -> dict[str, Any]:
    """The versions and settings that the numbers depend on."""
    return {
        "gen_durable": version("gen-durable"),
        "python": platform.python_version(),
        "loop": f"uvloop {version('uvloop')}" if find_spec("uvloop") else "asyncio",
        "asyncpg": version("asyncpg"),
        "cores": os.cpu_count(),
        "postgres": server.settings,
    }


def show(console: Console, results: list[Result]) -> None:
    """Print the results as tables."""
    timed = [result for result in results if "p50" in result.extras]
    rest = [result for result in results if "p50" not in result.extras]
    rates = [result for result in rest if result.unit.endswith("/s")]
    costs = [result for result in rest if not result.unit.endswith("/s")]
    if rates:
        _plain(
            console,
            "Throughput: higher is better; ratio = engine ÷ bare SQL, of raw = engine ÷ raw floor",
            rates,
            with_floor=True,
        )
    if timed:
        _timed(console, timed)
    if costs:
        _plain(console, "Costs: lower is better, apart from the share of HOT updates", costs)


def write(path: Path, around: dict[str, Any], results: list[Result], peers: list[dict[str, Any]]) -> None:
    """Write everything as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"surroundings": around, "results": [asdict(result) for result in results], "peers": peers}
    path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")


def number(value: float) -> str:
    """A number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _plain(console: Console, title: str, results: list[Result], *, with_floor: bool = False) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("scenario", no_wrap=True)
    for heading in ("engine", "lowest", "highest", "bare", "ratio", *(("raw", "of raw") if with_floor else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("note", style="dim")
    for result in results:
        table.add_row(
            result.name,
            f"[bold]{number(result.value)}[/]",
            number(result.low),
            number(result.high),
            _value(result.ceiling),
            _ratio(result.ratio),
            *((_value(result.floor), _ratio(result.floor_ratio)) if with_floor else ()),
            result.unit,
            result.note,
        )
    console.print(table)


def _timed(console: Console, results: list[Result]) -> None:
    table = Table(title="Latency in ms: lower is better; ratio = engine ÷ bare ceiling, at p50", title_justify="left")
    table.add_column("scenario", no_wrap=True)
    for heading in ("p50", "p95", "p99", "bare p50", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note", style="dim")
    for result in results:
        p50, p95, p99 = (f"{result.extras[p]:.2f}" for p in ("p50", "p95", "p99"))
        bare = f"{result.ceiling:.2f}" if result.ceiling is not None else ""
        table.add_row(result.name, f"[bold]{p50}[/]", p95, p99, bare, _ratio(result.ratio), result.note)
    console.print(table)


def _value(value: float | None) -> str:
    return "" if value is None else number(value)


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
