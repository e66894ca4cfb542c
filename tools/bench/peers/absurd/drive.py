"""Absurd: tasks, and a chain as one task with five `ctx.step`.

An end is counted when `complete_run` has returned. A client has one connection on which everything takes turns, so
several clients work side by side in the process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import absurd_sdk
import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from peer import CHAIN, WARM, DrainResult, read_task, report_rate, report_samples

CLIENTS = 8
SLOTS = 50
POLL = 0.01
SETTINGS = (
    f"{CLIENTS} async clients in the process, concurrency and batch {SLOTS} each, poll_interval {POLL} s (default"
    " 0.25), psycopg (binary)"
)


def register(app: AsyncAbsurd) -> None:
    @app.register_task(name="noop")
    async def noop(params: Any, ctx: Any) -> int:
        return 1

    @app.register_task(name="chain")
    async def chain(params: Any, ctx: Any) -> int:
        async def one() -> int:
            return 1

        for number in range(CHAIN):
            await ctx.step(f"step-{number}", one)
        return 1


async def main() -> None:
    task = read_task()
    with psycopg.connect(task.dsn, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
    apps = [AsyncAbsurd(task.dsn) for _ in range(CLIENTS)]
    for app in apps:
        register(app)
    await apps[0].create_queue("default")
    match task.work:
        case "drain" | "chain":
            per = 1 if task.work == "drain" else CHAIN
            name = "noop" if task.work == "drain" else "chain"
            await asyncio.gather(*(fill(app, name, task.count // CLIENTS) for app in apps))
            count = task.count // CLIENTS * CLIENTS
            report_rate(SETTINGS, count=per * count, seconds=await until(apps, count))
        case "latency":
            report_samples(SETTINGS, await latencies(apps[0], apps[1], task.count))


async def fill(app: AsyncAbsurd, name: str, count: int) -> None:
    for number in range(count):
        await app.spawn(name, {"number": number})


def on_completion(notify: Callable[[], None]) -> None:
    complete = absurd_sdk._complete_task_run_async

    async def completed(*arguments: Any) -> None:
        await complete(*arguments)
        notify()

    absurd_sdk._complete_task_run_async = completed


async def until(apps: list[AsyncAbsurd], count: int) -> float:
    """Run the workers until `count` tasks have ended."""
    tally = DrainResult(count)
    on_completion(tally.add)
    tally.start()
    workers = [asyncio.create_task(app.start_worker(concurrency=SLOTS, poll_interval=POLL)) for app in apps]
    await asyncio.to_thread(tally.full.wait)
    for app in apps:
        app.stop_worker()
    await asyncio.wait(workers, timeout=10)
    return tally.seconds


async def latencies(app: AsyncAbsurd, client: AsyncAbsurd, count: int) -> list[float]:
    ended = asyncio.Event()
    on_completion(ended.set)
    worker = asyncio.create_task(app.start_worker(concurrency=SLOTS, poll_interval=POLL))
    found: list[float] = []
    for number in range(WARM + count):
        await asyncio.sleep(random.uniform(0.005, 0.015))
        ended.clear()
        began = time.monotonic()
        await client.spawn("noop", {"number": number})
        await ended.wait()
        found.append(time.monotonic() - began)
    app.stop_worker()
    await asyncio.wait([worker], timeout=10)
    return found[WARM:]


asyncio.run(main())
