"""No-op jobs, all there from the start, run to their end: one worker process, two, and one with default settings."""

from __future__ import annotations

from statistics import median

from gen_durable import Start
from tools.bench.ceiling import BATCH
from tools.bench.raw_floor import DRAIN, floor_case
from tools.bench.result import Result
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import WORK, costs, drain_case, hot, rates
from tools.bench.work import noop

NAME = "drain"
BARE = "tools.bench.ceiling:drain"
MANY: dict[str, object] = {"queues": {"default": 200}}
LARGE = 500


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    start, count = Start(noop, 1), size.jobs
    runs = await run_in_rounds(
        size,
        progress,
        {
            "raw": floor_case(server, count, (DRAIN, {})),
            "bare": drain_case(server, start, count, (BARE, {})),
            "one": drain_case(server, start, count, (WORK, MANY)),
            "defaults": drain_case(server, start, count, (WORK, {})),
            "bare, larger batches": drain_case(server, start, count, (BARE, {"batch": LARGE})),
            "two bare": drain_case(server, start, count, (BARE, {}), (BARE, {})),
            "two raw": floor_case(server, count, (DRAIN, {}), (DRAIN, {})),
            "two": drain_case(server, start, count, (WORK, MANY), (WORK, MANY)),
        },
    )
    bare, raw, two = runs["bare"], runs["raw"], runs["two"]
    larger = median(run.rate for run in runs["bare, larger batches"])
    note = f"one process, concurrency 200; bare in batches of {BATCH} (of {LARGE}: {larger:,.0f})"
    return [
        rates(NAME, "no-op jobs", "jobs/s", runs["one"], bare, floors=raw, note=note),
        rates(
            NAME, "no-op jobs, default settings", "jobs/s", runs["defaults"], bare, floors=raw, note="concurrency 10"
        ),
        rates(
            *(NAME, "no-op jobs, 2 processes", "jobs/s", two, runs["two bare"]),
            floors=runs["two raw"],
            note="200 each; 2 bare loops",
        ),
        *costs(NAME, "job", runs["one"], bare),
        hot(NAME, "a job", runs["one"], bare, note="a claim and an end both move the row in an index"),
    ]


SCENARIO = Scenario(NAME, "Drain of no-op jobs", "jobs/s", run)
