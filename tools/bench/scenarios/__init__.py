"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tools.bench.scenario import Scenario
from tools.bench.scenarios import (
    callers,
    chain,
    drain,
    fanout,
    footprint,
    inserts,
    latency,
    latency_model,
    naps,
    threads,
)

ALL: tuple[Scenario, ...] = tuple(
    module.SCENARIO
    for module in (drain, chain, fanout, inserts, callers, latency, latency_model, threads, naps, footprint)
)
