"""The plot: cost over size, pages over size, and the run with the long reader. Reads the JSON, so it can be redrawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def draw(path: Path) -> list[Path]:
    """Draw the results in `path` into a PNG and an SVG beside it. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    found = json.loads(path.read_text("utf-8"))
    settings = _chosen(found["settings"])
    figure, axes = plt.subplots(2, 2, figsize=(13, 9))
    _over_size(axes[0][0], settings, "units", f"cost against the smallest size, goal {found['goal']}", found["goal"])
    _over_size(axes[0][1], settings, "pages", "pages touched per row", None)
    _horizon(axes[1][0], axes[1][1], found["horizon"])
    around = found["surroundings"]
    server = around["postgres"]
    figure.suptitle(
        f"gen_durable {around['gen_durable']}, Postgres {server['server_version']}, {around['cores']} cores,"
        f" shared_buffers {server['shared_buffers']}",
        fontsize=10,
    )
    figure.tight_layout()
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in written:
        figure.savefig(file, dpi=150)
    plt.close(figure)
    return written


def _chosen(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The setting with statistics and 500 executing, or what is nearest to it."""
    kinds = {(s["statistics"], s["executing"]) for s in settings}
    best = min(kinds, key=lambda kind: (kind[0] != "analyzed", abs(kind[1] - 500)), default=None)
    return sorted((s for s in settings if (s["statistics"], s["executing"]) == best), key=lambda s: s["size"])


def _over_size(axis: Any, settings: list[dict[str, Any]], what: str, label: str, goal: float | None) -> None:
    sized = [s for s in settings if s["size"]]
    if not sized:
        axis.set_visible(False)
        return
    if goal is not None:
        axis.axhspan(0, goal, color="#eef5ea")
    for number, call in enumerate(sized[0]["costs"]):
        costs = [s["costs"][call] for s in sized]
        values = [c["units"] / costs[0]["units"] if what == "units" else c["hit"] + c["read"] for c in costs]
        style = "--" if call == "signal cold" else "-"
        axis.plot(
            [s["size"] for s in sized], values, style, marker="o", markersize=3, label=call, color=f"C{number % 10}"
        )
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    first = settings[-1]
    axis.set_title(f"{label} ({first['statistics']}, {first['executing']:,} executing)", fontsize=9)
    axis.set_xlabel("size", fontsize=8)
    axis.legend(fontsize=6, frameon=False, ncols=2)
    _finish(axis)


def _horizon(rates: Any, dead: Any, windows: list[dict[str, Any]]) -> None:
    if not windows:
        rates.set_visible(False)
        dead.set_visible(False)
        return
    at = [w["at"] for w in windows]
    held = [w["at"] for w in windows if w["phase"] == "during"]
    before = [w["at"] for w in windows if w["phase"] == "before"]
    for axis in (rates, dead):
        if held:
            axis.axvspan(before[-1] if before else 0, held[-1], color="#f3e9e4")
        axis.set_xlabel("seconds (shaded: a long reader is there)", fontsize=8)
    rates.plot(at, [w["pick_p50_ms"] for w in windows], color="C0", label="pick of 100, p50 ms")
    rates.plot(at, [w["pick_p99_ms"] for w in windows], color="C0", linestyle=":", label="p99 ms")
    rates.set_ylim(bottom=0)
    rates.legend(fontsize=7, frameon=False, loc="upper left")
    rates.set_title("pick latency", fontsize=9)
    dead.plot(at, [w["jobs_per_s"] for w in windows], color="C2", label="jobs/s")
    dead.set_ylim(bottom=0)
    dead.legend(fontsize=7, frameon=False, loc="upper left")
    dead.set_title("throughput and dead rows", fontsize=9)
    other = dead.twinx()
    other.plot(at, [w["dead_rows"] for w in windows], color="C3", linestyle="--", label="dead rows")
    other.set_ylim(bottom=0)
    other.tick_params(labelsize=7)
    other.legend(fontsize=7, frameon=False, loc="upper right")
    _finish(rates)
    _finish(dead)


def _finish(axis: Any) -> None:
    axis.tick_params(labelsize=7)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
