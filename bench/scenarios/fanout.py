"""One parent, thousands of children, and the join: from the insert of the parent to its end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from bench.child import Run, race
from bench.drains import rates
from bench.result import Result
from bench.role import Line
from bench.scenario import Scenario, Size, Stage, take_turns
from bench.server import Server
from bench.work import Fan, worker
from gen_durable import Durable, Finished

NAME = "fanout"


async def engine(line: Line, app: Durable, *, children: int) -> None:
    """A role: a worker, and the parent inserted and waited for in the same process."""
    await line.go()
    async with worker(app, queues={"default": 200}):
        handle = await app.insert(Fan.spread, children)
        match await handle.wait():
            case Finished(result=joined) if joined == children:
                line.ended(children + 1, time.monotonic())
            case other:
                raise AssertionError(f"the join ended as {other}")
        await line.stop()


async def run(server: Server, size: Size, stage: Stage) -> list[Result]:
    def case(role: str) -> Callable[[], Awaitable[Run]]:
        async def once() -> Run:
            async with server.app() as app:
                return await race(server, app, [(role, {"children": size.children})], size.children + 1)

        return once

    runs = await take_turns(size, stage, {"bare": case("bench.ceiling:fan"), "fan-out": case(f"{__name__}:engine")})
    name = f"fan-out of {size.children:,} and join"
    return [rates(NAME, name, "children/s", runs["fan-out"], runs["bare"], note="one process, concurrency 200")]


SCENARIO = Scenario(NAME, "Fan-out and join", "children/s", run)
