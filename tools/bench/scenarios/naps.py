"""Jobs that sleep, in two queues with a worker process each, at concurrency 200.

The arithmetic maximum is the lower of two: what the slots allow (2 x 200 / nap), and what the processors allow (cores /
what a job costs on both sides, measured in the same run). With naps of 50 ms it is the slots, with naps of 1 ms the
processors: 400,000 jobs a second would need many of them.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from gen_durable import Start
from tools.bench.processes import Run, run_until
from tools.bench.raw_floor import DRAIN, floor_case
from tools.bench.result import Result, compare
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import WORK, Role, rates
from tools.bench.work import fill, nap

NAME = "naps"
QUEUES = ("left", "right")
SLOTS = 200
SHORT, LONG = 1, 50
MANY = 3  # times as many of the short ones, so that the first and the last moments weigh little


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    def both(milliseconds: int, count: int, *roles: Role) -> Callable[[], Awaitable[Run]]:
        async def case() -> Run:
            async with server.app() as app:
                for queue in QUEUES:
                    await fill(app, Start(nap, milliseconds, queue=queue), count)
                await server.analyze(app)
                return await run_until(server, app, list(roles), 2 * count)

        return case

    bare: list[Role] = [("tools.bench.ceiling:drain", {"queue": queue}) for queue in QUEUES]
    raw: list[Role] = [(DRAIN, {"queue": queue}) for queue in QUEUES]
    ours: list[Role] = [(WORK, {"queues": {queue: SLOTS}}) for queue in QUEUES]
    runs = await run_in_rounds(
        size,
        progress,
        {
            "raw": floor_case(server, MANY * size.jobs, *raw),
            "bare": both(SHORT, MANY * size.jobs, *bare),
            "short": both(SHORT, MANY * size.jobs, *ours),
            "long": both(LONG, size.jobs, *ours),
        },
    )
    slots = len(QUEUES) * SLOTS / (LONG / 1000)
    short, long = ([run.rate for run in runs[key]] for key in ("short", "long"))
    processors = [(os.cpu_count() or 1) * run.count / (run.worker_cpu + run.server.cpu) for run in runs["short"]]
    of_processors = "processors / CPU of a job, both sides"
    return [
        rates(
            *(NAME, "1 ms jobs, 2 queues, 2 processes", "jobs/s", runs["short"], runs["bare"]),
            floors=runs["raw"],
            note="2 bare loops",
        ),
        compare(NAME, "the same against the arithmetic", "jobs/s", short, processors, note=of_processors),
        compare(
            NAME, "50 ms jobs, 2 queues, 2 processes", "jobs/s", long, [slots] * len(long), note="200 slots / 50 ms"
        ),
    ]


SCENARIO = Scenario(NAME, "Jobs that sleep", "jobs/s", run)
