"""Throughput over a network: jobs/s = C / (R·L + U), measured at round trips of 0, 1 and 5 ms.

C is the number of slots, L the round trip between worker and server, U the time that a job keeps its slot without any
latency, and R the number of round trips that a slot waits for in each job. A proxy adds the latency on this machine;
the runs without one go through the proxy as well. R and U are fitted: C / rate is a straight line over L.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gen_durable import Durable, Start
from gen_durable.core.services import services_of
from tools.bench.delaying_proxy import DelayingProxy
from tools.bench.processes import Run, run_until
from tools.bench.result import Better, Result, compare
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import WORK
from tools.bench.work import Chain, fill, nap, noop

NAME: Final = "latency-model"
ROUND_TRIPS: Final = (0.0, 0.001, 0.005)
SLOTS: Final = 10
NAP: Final = 5  # milliseconds
PROBES: Final = 50


@dataclass(frozen=True, slots=True)
class Case:
    """Some work, and the options of the worker that does it; an instance is `steps` steps."""

    name: str
    start: Start[Any]
    share: float  # of the jobs of a size
    options: dict[str, object]
    steps: int = 1


CASES: Final = (
    Case("5 ms jobs, nothing claimed ahead", Start(nap, NAP), 0.2, {"prefetch": 0}),
    Case("5 ms jobs, default settings", Start(nap, NAP), 0.2, {}),
    Case("no-op jobs, default settings", Start(noop, 1), 1.0, {}),
    Case("5-step chains, default settings", Start(Chain.first, 1), 0.4, {}, steps=5),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, and the round trip that was measured beside it."""

    run: Run
    round_trip: float


@dataclass(frozen=True, slots=True)
class Model:
    """`rate = slots / (round_trips * latency + time)`, in seconds."""

    slots: int
    round_trips: float
    time: float

    def rate(self, latency: float) -> float:
        """The rate that the model predicts at a latency."""
        return self.slots / (self.round_trips * latency + self.time)


def fit(slots: int, latencies: Sequence[float], rates: Sequence[float]) -> Model:
    """The model that fits the rates best: a straight line through slots / rate over the latencies."""
    slope, intercept = statistics.linear_regression(latencies, [slots / rate for rate in rates])
    return Model(slots, slope, intercept)


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    cases = {
        f"{case.name}, {1000 * latency:g} ms": _measure(server, case, latency, max(int(case.share * size.jobs), 200))
        for case in CASES
        for latency in ROUND_TRIPS
    }
    found = await run_in_rounds(size, progress, cases)
    results: list[Result] = []
    for case in CASES:
        measured = [found[f"{case.name}, {1000 * latency:g} ms"] for latency in ROUND_TRIPS]
        results += _report(case, measured)
    return results


def _measure(server: Server, case: Case, latency: float, count: int) -> Callable[[], Awaitable[Measured]]:
    async def run_once() -> Measured:
        async with server.app() as app:
            await fill(app, case.start, count)
            await server.analyze(app)
            async with DelayingProxy(server.dsn, latency) as proxy:
                round_trip = await _probe(proxy.dsn)
                schema = services_of(app).statements.schema.name
                async with Durable(proxy.dsn, schema=schema) as far:
                    options = {"queues": {"default": SLOTS}} | case.options
                    return Measured(await run_until(server, far, [(WORK, options)], count), round_trip)

    return run_once


async def _probe(dsn: str) -> float:
    """The median round trip of a statement that does nothing, in seconds."""
    connection = await asyncpg.connect(dsn)
    try:
        samples: list[float] = []
        for _ in range(PROBES):
            began = time.perf_counter()
            await connection.fetchval("select 1")
            samples.append(time.perf_counter() - began)
        return statistics.median(samples)
    finally:
        await connection.close()


def _report(case: Case, measured: Sequence[Sequence[Measured]]) -> list[Result]:
    """The rates at each latency with those of the model, and the round trips that the model finds."""
    rates = [[case.steps * one.run.rate for one in rounds] for rounds in measured]
    latencies = [statistics.median(one.round_trip for one in rounds) for rounds in measured]
    model = fit(SLOTS, latencies, [statistics.median(values) for values in rates])
    rows = [
        compare(
            NAME,
            f"{case.name}, +{1000 * added:g} ms",
            "steps/s" if case.steps > 1 else "jobs/s",
            values,
            [model.rate(latency)] * len(values),
            note=f"round trip {1000 * latency:.2f} ms; the ceiling is the model",
        )
        for added, latency, values in zip(ROUND_TRIPS, latencies, rates, strict=True)
    ]
    note = f"C = {SLOTS}, U = {1000 * model.time:.3f} ms"
    return [
        *rows,
        compare(NAME, f"R of {case.name}", "round trips", [model.round_trips], better=Better.LOWER, note=note),
    ]


SCENARIO = Scenario(NAME, "Throughput over a network", "jobs/s", run)
