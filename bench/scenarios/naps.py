"""Jobs that sleep for 1 ms, in two queues with a worker process each, at concurrency 200.

Slots alone would allow 2 x 200 / 1 ms = 400,000 jobs a second. No database commits that many, so the bare ceiling
stands beside it: what two loops without sleep reach.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bench.child import Run, race
from bench.drains import WORK, Role, rates
from bench.result import Result, compare
from bench.scenario import Scenario, Size, Stage, take_turns
from bench.server import Server
from bench.work import fill, nap
from gen_durable import Start

NAME = "naps"
QUEUES = ("left", "right")
SLOTS = 200
NAP = 0.001


async def run(server: Server, size: Size, stage: Stage) -> list[Result]:
    count = size.jobs // 2

    def both(*roles: Role) -> Callable[[], Awaitable[Run]]:
        async def case() -> Run:
            async with server.app() as app:
                for queue in QUEUES:
                    await fill(app, Start(nap, 1, queue=queue), count)
                await server.analyze(app)
                return await race(server, app, list(roles), 2 * count)

        return case

    runs = await take_turns(
        size,
        stage,
        {
            "bare": both(*(("bench.ceiling:drain", {"queue": queue}) for queue in QUEUES)),
            "two": both(*((WORK, {"queues": {queue: SLOTS}}) for queue in QUEUES)),
        },
    )
    slots = len(QUEUES) * SLOTS / NAP
    found = [run.rate for run in runs["two"]]
    return [
        rates(
            NAME, "1 ms jobs, 2 queues, 2 processes", "jobs/s", runs["two"], runs["bare"], note="200 each; 2 bare loops"
        ),
        compare(
            NAME,
            "the same against the slots",
            "jobs/s",
            found,
            [slots] * len(found),
            note="arithmetic: 2 x 200 slots / 1 ms, not a rate that a database commits",
        ),
    ]


SCENARIO = Scenario(NAME, "Jobs that sleep for 1 ms", "jobs/s", run)
