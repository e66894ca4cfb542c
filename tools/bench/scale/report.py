"""The results: ratios and verdicts, as tables and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tools.bench.scale.horizon import Window
from tools.bench.scale.measure import Setting
from tools.bench.scale.obstacles import GOAL as OBSTACLE_GOAL
from tools.bench.scale.obstacles import Obstacle
from tools.bench.scale.statement_round import BATCH

GOAL: Final = 1.3  # the cost at the biggest size over that at the smallest may be so much


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the cost of a call went with the size, in one setting."""

    call: str
    statistics: str
    executing: int
    smallest: int
    biggest: int
    ratio: float  # biggest over smallest, in references
    over_empty: float | None  # biggest over a table with nothing else in it
    buffers: float  # biggest over smallest, in pages touched
    word: str


def verdicts(settings: list[Setting]) -> list[Verdict]:
    """One for each call and setting in which at least two sizes were measured."""
    found: list[Verdict] = []
    for label, executing in dict.fromkeys((s.statistics, s.executing) for s in settings):
        here = sorted((s for s in settings if (s.statistics, s.executing) == (label, executing)), key=lambda s: s.size)
        sized = [s for s in here if s.size]
        if len(sized) < 2:
            continue
        small, big = sized[0], sized[-1]
        empty = here[0] if here[0].size == 0 else None
        for call in BATCH:
            if call not in small.costs:
                continue
            a, b = small.costs[call], big.costs[call]
            ratio = b.units / a.units
            over = b.units / empty.costs[call].units if empty else None
            pages = (b.hit + b.read) / max(a.hit + a.read, 0.01)
            word = "flat" if ratio <= GOAL else "cold pages" if call == "signal cold" else "grows"
            found.append(Verdict(call, label, executing, small.size, big.size, ratio, over, pages, word))
    return found


def show(console: Console, settings: list[Setting], found: list[Verdict]) -> None:
    """The costs of each setting, then the ratios."""
    for label, executing in dict.fromkeys((s.statistics, s.executing) for s in settings):
        here = [s for s in settings if (s.statistics, s.executing) == (label, executing)]
        _costs(console, label, executing, here)
    if found:
        _ratios(console, found)


def show_horizon(console: Console, windows: list[Window]) -> None:
    """The run with the long reader."""
    table = Table(title="A long reader under load: pick of 100, per window", title_justify="left")
    for heading in ("reader", "s", "jobs/s", "pick p50 ms", "p99 ms", "dead rows", "index pages/job", "MB", "vacuums"):
        table.add_column(heading, justify="left" if heading == "reader" else "right", no_wrap=True)
    for w in windows:
        table.add_row(
            w.phase,
            f"{w.at:.0f}",
            f"{w.jobs_per_s:,.0f}",
            f"{w.pick_p50_ms:.1f}",
            f"{w.pick_p99_ms:.1f}",
            f"{w.dead_rows:,}",
            f"{w.pick_blocks_per_job:.1f}",
            f"{w.total_mb:,.0f}",
            str(w.autovacuums),
        )
    console.print(table)


def show_obstacles(console: Console, found: list[Obstacle], race: dict[str, float]) -> None:
    """What lay in front of the free jobs, and what it did to them."""
    table = Table(
        title=f"Work that cannot run, in front of work that can: the goal is ≥ {OBSTACLE_GOAL}", title_justify="left"
    )
    for heading in ("obstacle", "jobs/s", "without", "ratio", "pick of 100, ms", "without", "note"):
        table.add_column(heading, justify="left" if heading in ("obstacle", "note") else "right", no_wrap=True)
    for o in found:
        color = "green" if o.ratio >= OBSTACLE_GOAL else "red"
        table.add_row(
            o.name,
            f"{o.jobs_per_s:,.0f}",
            f"{o.without:,.0f}",
            f"[{color}]{o.ratio:.2f}[/]",
            f"{o.pick_ms:.1f}",
            f"{o.pick_ms_without:.1f}",
            o.note,
        )
    console.print(table)
    console.print(f"Eight pickers over fifty keys: {race['jobs/s']:,.0f} jobs/s, {race['aborted']:.0f} aborted")


def write(
    path: Path,
    around: dict[str, Any],
    settings: list[Setting],
    found: list[Verdict],
    *,
    windows: list[Window],
    obstacles: list[Obstacle],
    race: dict[str, float],
) -> None:
    """Everything, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    all_of_it = {
        "surroundings": around,
        "goal": GOAL,
        "settings": [s.plain() for s in settings],
        "verdicts": [{name: getattr(v, name) for name in Verdict.__slots__} for v in found],
        "horizon": [w.plain() for w in windows],
        "obstacles": [o.plain() for o in obstacles],
        "racing": race,
    }
    path.write_text(json.dumps(all_of_it, indent=2) + "\n", "utf-8")


def size_name(size: int) -> str:
    if size == 0:
        return "empty"
    return f"{size / 1e6:g} M" if size >= 1_000_000 else f"{size / 1000:g} k"


def _costs(console: Console, label: str, executing: int, here: list[Setting]) -> None:
    clock = all(c.cpu_us is None for setting in here for c in setting.costs.values())
    what = "µs" if clock else "processor µs"
    state = "right after loading, no statistics" if label == "fresh" else "vacuumed and analyzed"
    table = Table(title=f"{state}; {executing:,} executing: {what} and pages touched, per row", title_justify="left")
    table.add_column("call", no_wrap=True)
    for setting in here:
        table.add_column(size_name(setting.size), justify="right", no_wrap=True)
    for call in BATCH:
        costs = [setting.costs.get(call) for setting in here]
        if any(costs):
            table.add_row(call, *(f"{c.us:6.1f} [dim]{c.hit + c.read:5.1f}[/]" if c else "" for c in costs))
    table.add_row("[dim]reference, ms", *(f"[dim]{s.reference_us / 1000:.2f}" for s in here))
    console.print(table)


def _ratios(console: Console, found: list[Verdict]) -> None:
    settings = list(dict.fromkeys((v.statistics, v.executing) for v in found))
    first = found[0]
    table = Table(
        title=f"Cost at {size_name(first.biggest)} over cost at {size_name(first.smallest)}"
        f" (over the empty table): flat is ≤ {GOAL}",
        title_justify="left",
    )
    table.add_column("call", no_wrap=True)
    for label, executing in settings:
        table.add_column(f"{label}, {executing:,}", justify="right", no_wrap=True)
    table.add_column("pages", justify="right")
    table.add_column("verdict", no_wrap=True)
    for call in dict.fromkeys(v.call for v in found):
        row = {(v.statistics, v.executing): v for v in found if v.call == call}
        table.add_row(
            call,
            *(_ratio(row.get(setting)) for setting in settings),
            f"{max(v.buffers for v in row.values()):.2f}",
            overall(list(row.values())),
        )
    console.print(table)
    console.print(
        "[dim]pages: the biggest ratio of pages touched; a deeper tree costs a page per look. signal cold: its targets"
        " lie all over the table, on pages that must be fetched, and logged whole when they are changed first.[/]"
    )


def overall(of_a_call: list[Verdict]) -> str:
    """One word for a call: that of the settings with statistics, and of those without if they disagree."""
    known = [v for v in of_a_call if v.statistics != "fresh"] or of_a_call
    words = [v.word for v in known]
    if all(word == "flat" for word in words):
        odd = [v for v in of_a_call if v.word != "flat"]
        return "flat" if not odd else f"flat; fresh: {odd[0].word}"
    worst = next(word for word in words if word != "flat")
    times = sum(word != "flat" for word in words)
    return worst if times == len(words) else f"{worst} ({times} of {len(words)})"


def _ratio(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    color = "green" if verdict.ratio <= GOAL else "red"
    over = f" [dim]({verdict.over_empty:.2f})[/]" if verdict.over_empty is not None else ""
    return f"[{color}]{verdict.ratio:.2f}[/]{over}"
