"""Memory of a worker process: idle, after many jobs, and (`--big`) beside a million parked instances."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable

from gen_durable import Durable, Start
from gen_durable.core.services import services_of
from gen_durable.starts import to_step_spec
from tools.bench.processes import Run, run_until, start_role
from tools.bench.resource_usage import memory
from tools.bench.result import Better, Result, compare
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.throughput import WORK
from tools.bench.work import Patient, fill, go_on, noop

NAME = "memory"
MANY = {"default": 200}


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    async def idle() -> float:
        async with server.app() as app, start_role(app, WORK, queues=MANY) as child:
            child.send("go")
            await asyncio.sleep(1)
            now, _ = memory(child.pid)
            child.send("stop")
            await child.result()
        return now

    def busy(role: str, parked: int = 0, **arguments: object) -> Callable[[], Awaitable[Run]]:
        async def once() -> Run:
            async with server.app() as app:
                if parked:
                    await _park(server, app, parked)
                await fill(app, Start(noop, 1), size.jobs)
                await server.analyze(app)
                return await run_until(server, app, [(role, arguments)], size.jobs)

        return once

    progress.expect(1)
    at_rest = await idle()
    progress.done("idle")
    runs = await run_in_rounds(
        size, progress, {"bare": busy("tools.bench.ceiling:drain"), "busy": busy(WORK, queues=MANY)}
    )
    peaks, bare = [run.peak for run in runs["busy"]], [run.peak for run in runs["bare"]]
    rows = [
        compare(NAME, "worker at rest", "MB", [at_rest], [statistics.median(bare)], better=Better.LOWER),
        compare(NAME, f"worker, {size.jobs:,} jobs", "MB", peaks, bare, better=Better.LOWER, note="at its highest"),
    ]
    if size.parked:
        progress.expect(1)
        beside = await busy(WORK, size.parked, queues=MANY)()
        progress.done("parked")
        rows.append(
            compare(
                NAME,
                f"worker beside {size.parked:,} parked",
                "MB",
                [beside.peak],
                [statistics.median(peaks)],
                better=Better.LOWER,
                note="compared with none parked",
                extras={"jobs/s": beside.rate, "jobs/s with none": statistics.median(r.rate for r in runs["busy"])},
            )
        )
    return rows


async def _park(server: Server, app: Durable, count: int) -> None:
    """Rows as `Await` leaves them, written at once: a million real ones take minutes."""
    spec = to_step_spec(Patient.end, "parked")
    await server.admin.execute(
        f'insert into "{services_of(app).statements.schema.name}".instances'
        " (fsm, fsm_version, step, status, awaits, seen, seq, claims, state)"
        " select $1, $2, $3, 'awaiting_signal', array[$4], '{}', 1, 1, '1' from generate_series(1, $5)",
        *(spec.machine.name, spec.machine.version, spec.name, go_on.name, count),
        timeout=900,
    )


SCENARIO = Scenario(NAME, "Memory of a worker process", "MB", run)
