"""`def` jobs, which run in threads: what the way into a thread and back costs."""

from __future__ import annotations

from gen_durable import Start
from tools.bench.raw_floor import DRAIN, floor_case
from tools.bench.result import Result
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import WORK, costs, drain_case, rates
from tools.bench.work import noop_in_thread

NAME = "threads"


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    start, count = Start(noop_in_thread, 1), size.sync_jobs
    runs = await run_in_rounds(
        size,
        progress,
        {
            "raw": floor_case(server, count, (DRAIN, {})),
            "bare": drain_case(server, start, count, ("tools.bench.ceiling:drain", {})),
            "threads": drain_case(server, start, count, (WORK, {"queues": {"default": 200}})),
        },
    )
    engine, bare = runs["threads"], runs["bare"]
    return [
        rates(
            *(NAME, "no-op jobs in threads", "jobs/s", engine, bare),
            floors=runs["raw"],
            note="one process, concurrency 200",
        ),
        costs(NAME, "job in a thread", engine, bare)[0],
    ]


SCENARIO = Scenario(NAME, "Sync steps in threads", "jobs/s", run)
