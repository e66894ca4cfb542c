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

    `value` and `ceiling` are medians over the rounds, `low` and `high` the extremes of the value. `ratio` is the median
    of value ÷ ceiling taken round by round, so that a slow minute of the machine weighs on both sides.
    """

    scenario: str
    name: str
    unit: str
    value: float
    low: float
    high: float
    ceiling: float | None = None
    ratio: float | None = None
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
    better: Better = Better.HIGHER,
    note: str = "",
    extras: dict[str, float] | None = None,
) -> Result:
    """A row out of the values of several rounds, and the ceiling's in the same rounds."""
    pairs = [value / ceiling for value, ceiling in zip(values, ceilings, strict=True) if ceiling] if ceilings else []
    return Result(
        scenario=scenario,
        name=name,
        unit=unit,
        value=statistics.median(values),
        low=min(values),
        high=max(values),
        ceiling=statistics.median(ceilings) if ceilings else None,
        ratio=statistics.median(pairs) if pairs else None,
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


def percentile(samples: Sequence[float], percent: int) -> float:
    """The smallest sample that at least `percent` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]
