"""The rows that a scenario reports, computed from samples."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Better(StrEnum):
    """The direction in which a value improves."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the report.

    `value`, `ceiling` and `floor` are medians over the rounds, `low` and `high` the extremes of the value. `ratio` and
    `floor_ratio` are medians of value ÷ ceiling and value ÷ floor taken round by round, so that a slow minute of the
    machine weighs on both sides. The ceiling is the engine's own SQL, the floor that of `raw_floor.py`.
    """

    scenario: str
    name: str
    unit: str
    value: float
    low: float
    high: float
    ceiling: float | None = None
    ratio: float | None = None
    floor: float | None = None
    floor_ratio: float | None = None
    better: Better = Better.HIGHER
    note: str = ""
    extras: dict[str, float] = field(default_factory=dict)


def compare(
    scenario: str,
    name: str,
    unit: str,
    values: Sequence[float],
    ceilings: Sequence[float] = (),
    *,
    floors: Sequence[float] = (),
    better: Better = Better.HIGHER,
    note: str = "",
    extras: dict[str, float] | None = None,
) -> Result:
    """A row out of the values of several rounds, and those of the ceiling and the raw floor in the same rounds."""
    return Result(
        scenario=scenario,
        name=name,
        unit=unit,
        value=statistics.median(values),
        low=min(values),
        high=max(values),
        ceiling=statistics.median(ceilings) if ceilings else None,
        ratio=_median_ratio(values, ceilings),
        floor=statistics.median(floors) if floors else None,
        floor_ratio=_median_ratio(values, floors),
        better=better,
        note=note,
        extras=extras or {},
    )


def compare_latencies(
    scenario: str,
    name: str,
    rounds: Sequence[Sequence[float]],
    ceilings: Sequence[Sequence[float]] = (),
    *,
    note: str = "",
) -> Result:
    """A row of latencies in seconds: the value is the p50 in ms, the extras have the rest over all rounds."""
    pooled = [1000 * sample for samples in rounds for sample in samples]
    return compare(
        scenario,
        name,
        "ms",
        [1000 * percentile(samples, 50) for samples in rounds],
        [1000 * percentile(samples, 50) for samples in ceilings],
        better=Better.LOWER,
        note=note,
        extras={f"p{p}": percentile(pooled, p) for p in (50, 95, 99)} | {"samples": float(len(pooled))},
    )


def _median_ratio(values: Sequence[float], references: Sequence[float]) -> float | None:
    if not references:
        return None
    ratios = [value / reference for value, reference in zip(values, references, strict=True) if reference]
    return statistics.median(ratios) if ratios else None


def percentile(samples: Sequence[float], percent: int) -> float:
    """The smallest sample that at least `percent` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]
