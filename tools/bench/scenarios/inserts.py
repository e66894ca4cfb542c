"""Inserts: one after the other, many at the same time, and in batches. Every one is durable when it returns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from gen_durable import Durable, Start
from gen_durable.core.services import services_of
from tools.bench.ceiling import open_runner
from tools.bench.process_main import Parent
from tools.bench.processes import Run, run_until
from tools.bench.raw_floor import INSERTS, floor_insert_case
from tools.bench.result import Result
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import rates
from tools.bench.work import noop

NAME = "inserts"
TASKS = 50
LINKS = 10
BATCH = 1000


async def single(parent: Parent, app: Durable, *, count: int) -> None:
    await app.insert(noop, 1)
    await parent.wait_for_start()
    for number in range(count):
        await app.insert(noop, number)
    parent.report(count, time.monotonic())


async def concurrent(parent: Parent, app: Durable, *, count: int) -> None:
    await asyncio.gather(*(app.insert(noop, 1) for _ in range(LINKS)))

    async def some() -> None:
        for number in range(count // TASKS):
            await app.insert(noop, number)

    await parent.wait_for_start()
    await asyncio.gather(*(some() for _ in range(TASKS)))
    parent.report(count, time.monotonic())


async def batch(parent: Parent, app: Durable, *, count: int) -> None:
    await app.insert(noop, 1)
    await parent.wait_for_start()
    for _ in range(count // BATCH):
        await app.insert_many([Start(noop, number) for number in range(BATCH)])
    parent.report(count, time.monotonic())


async def bare(parent: Parent, app: Durable, *, count: int, links: int = 1, size: int = 1) -> None:
    """The same statement, prepared once, on `links` connections at the same time."""
    asks = [await open_runner(app) for _ in range(links)]
    call = services_of(app).statements.insert([Start(noop, 1)] * size, "raise")
    for ask in asks:
        await ask(call)

    async def some(number: int) -> None:
        for _ in range(count // size // links):
            await asks[number](call)

    await parent.wait_for_start()
    await asyncio.gather(*(some(number) for number in range(links)))
    parent.report(count, time.monotonic())


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    def case(role: str, count: int, **arguments: object) -> Callable[[], Awaitable[Run]]:
        async def once() -> Run:
            async with server.app() as app:
                return await run_until(server, app, [(f"{__name__}:{role}", {"count": count, **arguments})], count)

        return once

    many = 3 * size.singles // TASKS * TASKS
    runs = await run_in_rounds(
        size,
        progress,
        {
            "raw single": floor_insert_case(server, INSERTS, size.singles, count=size.singles),
            "bare single": case("bare", size.singles),
            "single": case("single", size.singles),
            "raw concurrent": floor_insert_case(server, INSERTS, many, count=many, connections=LINKS),
            "bare concurrent": case("bare", many, links=LINKS),
            "concurrent": case("concurrent", many),
            "raw batch": floor_insert_case(server, INSERTS, size.jobs, count=size.jobs, rows=BATCH),
            "bare batch": case("bare", size.jobs, size=BATCH),
            "batch": case("batch", size.jobs),
        },
    )
    return [
        rates(
            *(NAME, "single inserts", "inserts/s", runs["single"], runs["bare single"]),
            floors=runs["raw single"],
            note="one after the other",
        ),
        rates(
            NAME,
            "concurrent inserts",
            "inserts/s",
            runs["concurrent"],
            runs["bare concurrent"],
            floors=runs["raw concurrent"],
            note=f"{TASKS} tasks, {LINKS} connections",
        ),
        rates(
            *(NAME, "batch inserts", "inserts/s", runs["batch"], runs["bare batch"]),
            floors=runs["raw batch"],
            note=f"{BATCH:,} in a call",
        ),
    ]


SCENARIO = Scenario(NAME, "Inserts", "inserts/s", run)
