"""PgQueuer: jobs, and a chain as a job that enqueues the next.

An end is counted when `log_jobs` has returned: the job is deleted from the queue and is in the log then. Ends are
gathered until a batch is full or 0.1 s have passed, which is most of the latency when idle.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from typing import Any

import asyncpg
import uvloop
from peer import CHAIN, WARM, DrainResult, read_task, report_rate, report_samples
from pgqueuer import PgQueuer
from pgqueuer.domain.models import Job
from pgqueuer.queries import Queries

BATCH = 1000
SETTINGS = (
    f"uvloop, asyncpg: one connection for the worker and a pool for enqueues, batch_size {BATCH}, durability balanced"
    " (log and statistics unlogged), autovacuum settings of `pgq autovac`"
)


async def main() -> None:
    task = read_task()
    logging.disable(logging.WARNING)
    os.environ["PGQUEUER_DURABILITY"] = "balanced"
    connection = await asyncpg.connect(task.dsn)
    pool = await asyncpg.create_pool(task.dsn, min_size=5, max_size=20)
    producer = Queries.from_asyncpg_pool(pool)
    await producer.install()
    await producer.optimize_autovacuum()
    engine = PgQueuer.from_asyncpg_connection(connection)

    @engine.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    @engine.entrypoint("link")
    async def link(job: Job) -> None:
        left = int(job.payload or b"1")
        if left > 1:
            await producer.enqueue("link", str(left - 1).encode())

    match task.work:
        case "drain":
            await fill(producer, "noop", b"1", task.count)
            report_rate(SETTINGS, count=task.count, seconds=await until(engine, task.count))
        case "chain":
            await fill(producer, "link", str(CHAIN).encode(), task.count)
            report_rate(SETTINGS, count=CHAIN * task.count, seconds=await until(engine, CHAIN * task.count))
        case "latency":
            report_samples(SETTINGS, await latencies(engine, producer, task.count))
    await pool.close()


async def fill(producer: Queries, entrypoint: str, payload: bytes, count: int) -> None:
    for begin in range(0, count, 5000):
        many = min(5000, count - begin)
        await producer.enqueue([entrypoint] * many, [payload] * many, [0] * many)


async def until(engine: PgQueuer, count: int) -> float:
    """Run a worker until `count` jobs have ended."""
    tally = DrainResult(count)
    log = engine.qm.queries.log_jobs

    async def logged(ended: list[Any]) -> None:
        await log(ended)
        tally.add(len(ended))

    engine.qm.queries.log_jobs = logged
    tally.start()
    worker = asyncio.create_task(engine.run(batch_size=BATCH))
    await asyncio.to_thread(tally.full.wait)
    engine.shutdown.set()
    await asyncio.wait([worker], timeout=10)
    return tally.seconds


async def latencies(engine: PgQueuer, producer: Queries, count: int) -> list[float]:
    ended = asyncio.Event()
    log = engine.qm.queries.log_jobs

    async def logged(several: list[Any]) -> None:
        await log(several)
        ended.set()

    engine.qm.queries.log_jobs = logged
    worker = asyncio.create_task(engine.run(batch_size=BATCH))
    await asyncio.sleep(1)
    found: list[float] = []
    for _ in range(WARM + count):
        await asyncio.sleep(random.uniform(0.005, 0.015))
        ended.clear()
        began = time.monotonic()
        await producer.enqueue("noop", b"1")
        await ended.wait()
        found.append(time.monotonic() - began)
    engine.shutdown.set()
    await asyncio.wait([worker], timeout=10)
    return found[WARM:]


uvloop.run(main())
