"""The load: the feeder and the workers, each a process of its own (see `tools.bench.process_main`)."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from typing import Any

import asyncpg

from gen_durable import Durable, Start, Worker, job
from gen_durable.core.services import services_of
from tools.bench.process_main import Parent
from tools.bench.resource_usage import memory
from tools.bench.work import Fan, Patient, Recorded, go_on, machines, noop

TICK = 0.05
BACKLOG = 3000
RETENTION = timedelta(seconds=20)

# The mix of a hundred instances; the children of a fan-out come on top.
JOBS, CHAINS, WAITING, FANS = 78, 14, 6, 2
CHILDREN = 5
ENDS_PER_HUNDRED = JOBS + CHAINS + WAITING + FANS * (1 + CHILDREN)

_late: list[float] = []


@job(history="off")
async def stamped(sent: float) -> None:
    """Records how long the instance waited before it ran."""
    _late.append(time.time() - sent)


async def feed(parent: Parent, app: Durable, rate: float | None) -> dict[str, Any]:
    """A role: insert `rate` hundreds per second, or without a rate as many as are executed; signal waiting ones."""
    connection = await asyncpg.connect(services_of(app).connection_target.dsn)
    await parent.wait_for_start()
    stopped = asyncio.create_task(parent.wait_for_stop())
    inserted = 0
    waiting: list[int] = []
    began, due = time.monotonic(), 0.0
    while not stopped.done():
        if rate is None:
            due += 5 if await _backlog(connection, app) < BACKLOG else 0
        else:
            due = (time.monotonic() - began) * rate
        hundreds = int(due) - inserted // ENDS_PER_HUNDRED
        for _ in range(hundreds):
            if waiting:
                await asyncio.gather(*(app.signal(number, go_on, None) for number in waiting))
            waiting = await _hundred(app)
            inserted += ENDS_PER_HUNDRED
        await asyncio.sleep(0.005 if rate is None else TICK)
    await asyncio.gather(*(app.signal(number, go_on, None) for number in waiting))
    await connection.close()
    return {"inserted": inserted}


async def _hundred(app: Durable) -> list[int]:
    now = time.time()
    await app.insert_many([Start(stamped, now)] * JOBS + [Start(Recorded.first, 1)] * CHAINS)
    await app.insert_many([Start(Fan.spread, CHILDREN)] * FANS)
    return [handle.id for handle in await app.insert_many([Start(Patient.begin, 1)] * WAITING)]


async def _backlog(connection: asyncpg.Connection[Any], app: Durable) -> int:
    waiting: int = await connection.fetchval(
        services_of(app).statements.schema.render("select count(*) from @schema.instances where due_at is not null")
    )
    return waiting


async def work(parent: Parent, app: Durable, window: float) -> None:
    """A role: run everything, and report once per window, until stopped."""
    ended = 0

    def count(*_: object) -> None:
        nonlocal ended
        ended += 1

    services_of(app).completion_watcher.report_end = count  # type: ignore[method-assign, assignment]
    worker = Worker(
        app,
        machines=machines(),
        jobs=[noop, stamped],
        queues={"default": 100},
        gc_interval=timedelta(seconds=2),
        gc_retention=RETENTION,
    )
    await parent.wait_for_start()
    async with worker:
        stopped = asyncio.create_task(parent.wait_for_stop())
        while not stopped.done():
            await asyncio.wait([stopped], timeout=window)
            late = sorted(_late)
            _late.clear()
            parent.send(
                {
                    "ended": ended,
                    "at": time.monotonic(),
                    "memory": memory(os.getpid())[0],
                    "late": [late[min(len(late) - 1, len(late) * part // 100)] for part in (50, 99)] if late else None,
                }
            )
