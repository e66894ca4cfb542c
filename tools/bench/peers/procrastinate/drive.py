"""Procrastinate: jobs, and a chain as a job that defers the next.

An end is counted when `finish_job` has returned: the row is `succeeded` then. It fetches one job per statement; more
slots and connections than these made it slower here, not faster.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

import procrastinate
from peer import CHAIN, WARM, DrainResult, read_task, report_rate, report_samples

SLOTS = 10
SETTINGS = f"async tasks, concurrency {SLOTS}, psycopg (binary) pool of {SLOTS + 5}, LISTEN/NOTIFY, jobs kept"


async def main() -> None:
    task = read_task()
    logging.disable(logging.INFO)
    pool = {"min_size": SLOTS, "max_size": SLOTS + 5}
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=task.dsn, **pool))

    @app.task(name="noop")
    async def noop(number: int) -> int:
        return number

    @app.task(name="link")
    async def link(left: int) -> None:
        if left > 1:
            await link.defer_async(left=left - 1)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        match task.work:
            case "drain":
                await fill(noop, [{"number": 1}] * task.count)
                report_rate(SETTINGS, count=task.count, seconds=await until(app, task.count))
            case "chain":
                await fill(link, [{"left": CHAIN}] * task.count)
                report_rate(SETTINGS, count=CHAIN * task.count, seconds=await until(app, CHAIN * task.count))
            case "latency":
                report_samples(SETTINGS, await latencies(app, noop, task.count))


async def fill(task: Any, arguments: list[dict[str, int]]) -> None:
    for begin in range(0, len(arguments), 1000):
        await task.batch_defer_async(*arguments[begin : begin + 1000])


async def until(app: procrastinate.App, count: int) -> float:
    """Run a worker until `count` jobs have ended."""
    tally = DrainResult(count)
    finish = app.job_manager.finish_job

    async def finished(**arguments: Any) -> None:
        await finish(**arguments)
        tally.add()

    app.job_manager.finish_job = finished
    tally.start()
    worker = asyncio.create_task(app.run_worker_async(concurrency=SLOTS, install_signal_handlers=False))
    await asyncio.to_thread(tally.full.wait)
    worker.cancel()
    await asyncio.wait([worker])
    return tally.seconds


async def latencies(app: procrastinate.App, task: Any, count: int) -> list[float]:
    ended = asyncio.Event()
    finish = app.job_manager.finish_job

    async def finished(**arguments: Any) -> None:
        await finish(**arguments)
        ended.set()

    app.job_manager.finish_job = finished
    worker = asyncio.create_task(app.run_worker_async(concurrency=SLOTS, install_signal_handlers=False))
    await asyncio.sleep(1)
    found: list[float] = []
    for number in range(WARM + count):
        await asyncio.sleep(random.uniform(0.005, 0.015))
        ended.clear()
        began = time.monotonic()
        await task.defer_async(number=number)
        await ended.wait()
        found.append(time.monotonic() - began)
    worker.cancel()
    await asyncio.wait([worker])
    return found[WARM:]


asyncio.run(main())
