"""The plot: throughput beside the bare ceiling, latencies, and, where they were run, the peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tools.bench.report import number
from tools.bench.result import Result

ENGINE, BARE, LATE, LATER = "#2f6f9f", "#c9d6df", "#8fb4cc", "#c9d6df"


def draw(path: Path, around: dict[str, Any], results: list[Result], peers: list[dict[str, Any]]) -> list[Path]:
    """Draw into PNG and SVG; `path` is where, without the suffix."""
    rates = [r for r in results if r.unit.endswith("/s") and r.ceiling is not None and "slots" not in r.name]
    timed = [r for r in results if "p50" in r.extras]
    parts = [(part, len(rows)) for part, rows in (("rates", rates), ("timed", timed), ("peers", peers)) if rows]
    if not parts:
        return []
    heights = [max(0.55 * rows * (3 if part == "peers" else 1), 1.5) for part, rows in parts]
    figure, axes = plt.subplots(
        len(parts), 1, figsize=(10, sum(heights) + 1.4 * len(parts)), height_ratios=heights, squeeze=False
    )
    for (part, _), axis in zip(parts, axes[:, 0], strict=True):
        match part:
            case "rates":
                _rates(axis, rates)
            case "timed":
                _timed(axis, timed)
            case "peers":
                _peers(axis, peers)
    server = around["postgres"]
    figure.suptitle(
        f"gen_durable {around['gen_durable']}, Python {around['python']}, Postgres {server['server_version']},"
        f" {around['cores']} cores, fsync {server['fsync']}",
        fontsize=10,
    )
    figure.tight_layout()
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in written:
        figure.savefig(file, dpi=150)
    plt.close(figure)
    return written


def _rates(axis: Axes, results: list[Result]) -> None:
    rows = range(len(results))
    axis.barh([y - 0.2 for y in rows], [r.value for r in results], 0.4, color=ENGINE, label="engine")
    axis.barh([y + 0.2 for y in rows], [r.ceiling or 0 for r in results], 0.4, color=BARE, label="bare ceiling")
    for y, result in zip(rows, results, strict=True):
        axis.plot([result.low, result.high], [y - 0.2, y - 0.2], color="black", linewidth=0.8)
        text = f" {number(result.value)} {result.unit}"
        axis.text(
            result.high, y - 0.2, text + (f" ({result.ratio:.2f})" if result.ratio else ""), va="center", fontsize=7
        )
    _finish(axis, [r.name for r in results], "per second (ratio to the bare ceiling)")


def _timed(axis: Axes, results: list[Result]) -> None:
    rows = range(len(results))
    for percent, color in (("p99", LATER), ("p95", LATE), ("p50", ENGINE)):
        axis.barh(list(rows), [r.extras[percent] for r in results], 0.5, color=color, label=percent)
    for y, result in zip(rows, results, strict=True):
        axis.text(result.extras["p99"], y, f" p50 {result.extras['p50']:.1f} ms", va="center", fontsize=7)
        if result.ceiling is not None:
            axis.plot([result.ceiling] * 2, [y - 0.3, y + 0.3], color="black", linewidth=1)
    _finish(axis, [r.name for r in results], "ms (black: p50 of the bare ceiling)")


def _peers(axis: Axes, peers: list[dict[str, Any]]) -> None:
    found = [
        (f"{work}: {peer['name']}", peer[work]["value"])
        for work in ("drain", "chain")
        for peer in peers
        if peer.get(work)
    ]
    colors = [ENGINE if name.endswith("gen_durable") else BARE for name, _ in found]
    axis.barh(range(len(found)), [value for _, value in found], 0.6, color=colors)
    for y, (_, value) in enumerate(found):
        axis.text(value, y, f" {number(value)}/s", va="center", fontsize=7)
    _finish(axis, [name for name, _ in found], "jobs or steps per second", legend=False)


def _finish(axis: Axes, names: list[str], label: str, *, legend: bool = True) -> None:
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.2)
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if legend:
        axis.legend(fontsize=7, frameon=False, loc="lower right")
