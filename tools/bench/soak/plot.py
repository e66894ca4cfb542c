"""The plot: five things over time, with the reader's two minutes shaded. Reads the JSON, so it can be redrawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PANELS = (
    ("ended_per_s", "instances ended a second", 1),
    ("late_p99", "claimed late, p99 ms", 1),
    ("memory", "memory of a worker, MB", 1),
    ("connections", "connections", 1),
    ("dead_rows", "dead rows, thousands", 1e-3),
    ("size", "size of all tables, MB", 1),
)


def draw(path: Path) -> list[Path]:
    """Draw the results in `path` into a PNG and an SVG beside it. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    found = json.loads(path.read_text("utf-8"))
    samples: list[dict[str, Any]] = found["samples"]
    minutes = [sample["at"] / 60 for sample in samples]
    held = [sample["at"] / 60 for sample in samples if sample["reader"]]
    figure, axes = plt.subplots(3, 2, figsize=(12, 8), sharex=True)
    for axis, (name, title, unit) in zip(axes.flat, PANELS, strict=True):
        axis.plot(minutes, [sample[name] * unit for sample in samples], linewidth=1)
        if held:
            axis.axvspan(held[0], held[-1], color="#f3e9e4")
        axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("minutes (shaded: a reader holds its snapshot)", fontsize=8)
    figure.suptitle(
        f"{found['share']:.0%} of a peak of {found['peak']:,.0f} instances/s for {found['hours']:g} h", fontsize=10
    )
    figure.tight_layout()
    written = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in written:
        figure.savefig(file, dpi=150)
    plt.close(figure)
    return written
