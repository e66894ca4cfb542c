"""Inserts in callers' transactions: 64 callers, each with a connection of its own, one insert per transaction.

The ceiling is the same without any notification (`notify="never"`): workers are notified after the commits, and that
must cost the callers little. The last row says how soon the rows begin in a worker of another process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from gen_durable import Durable
from gen_durable.core.services import services_of
from gen_durable.operations.caller_transaction_calls import Notify
from gen_durable.pg.connector import connect_to_first_usable_host
from tools.bench.process_main import Parent
from tools.bench.processes import Run, run_until, start_role
from tools.bench.result import Result, compare_latencies
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import rates
from tools.bench.work import look_at_clock, worker

NAME = "callers"
CALLERS = 64


async def call(parent: Parent, app: Durable, *, count: int, notify: Notify) -> dict[str, Any]:
    """A role: the callers. Returns when each instance was committed."""
    target = services_of(app).connection_target
    connections = [(await connect_to_first_usable_host(target)).driver_connection for _ in range(CALLERS)]
    committed: dict[int, float] = {}

    async def commit_some(connection: Any, some: int) -> None:
        for number in range(some):
            async with connection.transaction():
                handle = await app.insert(look_at_clock, number, connection=connection, notify=notify)
            committed[handle.id] = time.time()

    await asyncio.gather(*(commit_some(connection, 1) for connection in connections))
    committed.clear()
    await parent.wait_for_start()
    await asyncio.gather(*(commit_some(connection, count // CALLERS) for connection in connections))
    parent.report(count, time.monotonic())
    return {"committed": committed}


async def work(parent: Parent, app: Durable) -> None:
    """A role: a worker with default settings."""
    await parent.wait_for_start()
    async with worker(app):
        await parent.wait_for_stop()


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    count = 6 * size.singles // CALLERS * CALLERS

    def alone(notify: Notify) -> Callable[[], Awaitable[Run]]:
        async def once() -> Run:
            async with server.app() as app:
                return await run_until(server, app, [(f"{__name__}:call", {"count": count, "notify": notify})], count)

        return once

    runs = await run_in_rounds(
        size,
        progress,
        {mode: alone(mode) for mode in ("never", "after_commit", "in_transaction")},
    )
    delays = await run_in_rounds(size, progress, {"with a worker": lambda: _delays(server, count)})
    note = f"{CALLERS} connections; ceiling: without any notification"
    return [
        rates(NAME, "commits, notified after", "commits/s", runs["after_commit"], runs["never"], note=note),
        rates(NAME, "commits, notified inside", "commits/s", runs["in_transaction"], runs["never"], note=note),
        compare_latencies(NAME, "commit → begin, other process", delays["with a worker"], note="as fast as they can"),
    ]


async def _delays(server: Server, count: int) -> list[float]:
    """The seconds from each commit to the begin of its job, by the clock that all processes share."""
    async with (
        server.app() as app,
        start_role(app, f"{__name__}:work") as working,
        start_role(app, f"{__name__}:call", count=count, notify="after_commit") as calling,
    ):
        working.send("go")
        await asyncio.sleep(1)
        calling.send("go")
        committed: dict[str, float] = (await calling.result())["committed"]
        query = f"select id, result::text from \"{services_of(app).schema.name}\".instances where status = 'done'"
        began: dict[str, float] = {}
        while len(began.keys() & committed.keys()) < count:
            await asyncio.sleep(0.1)
            began = {str(row["id"]): float(row["result"]) for row in await server.admin.fetch(query)}
        working.send("stop")
    return [began[instance] - at for instance, at in committed.items()]


SCENARIO = Scenario(NAME, "Callers' transactions", "commits/s", run)
