"""The load: who feeds, and who works. Both are processes of their own (see `bench.role`)."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from typing import Any

import asyncpg

from gen_durable import Durable, Start, Worker, job
from gen_durable.core.services import services_of
from tools.bench.measure import memory
from tools.bench.role import Line
from tools.bench.work import Fan, Patient, Recorded, go_on, machines, noop

TICK = 0.05
BACKLOG = 3000
RETENTION = timedelta(seconds=20)

# Of a hundred instances so many are each; the children of a fan-out come on top.
JOBS, CHAINS, WAITING, FANS = 78, 14, 6, 2
CHILDREN = 5
ENDS_PER_HUNDRED = JOBS + CHAINS + WAITING + FANS * (1 + CHILDREN)

_late: list[float] = []


@job(history="off")
async def stamped(sent: float) -> None:
    """Tells how long it lay there before it was run."""
    _late.append(time.time() - sent)


async def feed(line: Line, app: Durable, rate: float | None) -> dict[str, Any]:
    """A role: insert so many hundreds a second, or, with no rate, as many as are taken; signal those that wait."""
    connection = await asyncpg.connect(services_of(app).target.dsn)
    await line.go()
    stopped = asyncio.create_task(line.stop())
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


async def work(line: Line, app: Durable, window: float) -> None:
    """A role: run what is there, and tell at every window what was seen in it, until told to stop."""
    ended = 0

    def count(*_: object) -> None:
        nonlocal ended
        ended += 1

    services_of(app).completions.report_end = count  # type: ignore[method-assign, assignment]
    worker = Worker(
        app,
        machines=machines(),
        jobs=[noop, stamped],
        queues={"default": 100},
        gc_interval=timedelta(seconds=2),
        gc_retention=RETENTION,
    )
    await line.go()
    async with worker:
        stopped = asyncio.create_task(line.stop())
        while not stopped.done():
            await asyncio.wait([stopped], timeout=window)
            late = sorted(_late)
            _late.clear()
            line.tell(
                {
                    "ended": ended,
                    "at": time.monotonic(),
                    "memory": memory(os.getpid())[0],
                    "late": [late[min(len(late) - 1, len(late) * part // 100)] for part in (50, 99)] if late else None,
                }
            )
