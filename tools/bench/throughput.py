"""Shared by the throughput scenarios: fill a fresh schema, let processes drain it, and compute rates and costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gen_durable import Start
from tools.bench.processes import Run, run_until
from tools.bench.result import Better, Result, compare
from tools.bench.server import Server
from tools.bench.work import fill

WORK = "tools.bench.work:work"
Role = tuple[str, dict[str, object]]


def drain_case(server: Server, start: Start[Any], count: int, *roles: Role) -> Callable[[], Awaitable[Run]]:
    """A case: `count` instances, spread over the queues that the roles serve, run to their end."""

    async def run() -> Run:
        async with server.app() as app:
            await fill(app, start, count)
            await server.analyze(app)
            return await run_until(server, app, list(roles), count)

    return run


def rates(
    scenario: str,
    name: str,
    unit: str,
    runs: Sequence[Run],
    ceilings: Sequence[Run],
    *,
    floors: Sequence[Run] = (),
    per: int = 1,
    note: str = "",
) -> Result:
    """A row of throughput; `per` steps make one instance."""
    values, of_ceilings, of_floors = ([per * run.rate for run in some] for some in (runs, ceilings, floors))
    return compare(scenario, name, unit, values, of_ceilings, floors=of_floors, note=note)


def costs(scenario: str, what: str, runs: Sequence[Run], ceilings: Sequence[Run], *, per: int = 1) -> list[Result]:
    """Rows of the costs of one job or step: CPU of worker and server, WAL."""

    def worker(run: Run) -> float:
        return 1e6 * run.worker_cpu / run.count / per

    def postgres(run: Run) -> float:
        return 1e6 * run.server.cpu / run.count / per

    def wal(run: Run) -> float:
        return run.server.wal / run.count / per

    return [
        compare(
            scenario,
            f"{name} per {what}",
            unit,
            [read(run) for run in runs],
            [read(run) for run in ceilings],
            better=Better.LOWER,
        )
        for name, unit, read in (
            ("worker CPU", "µs", worker),
            ("Postgres CPU", "µs", postgres),
            ("WAL", "bytes", wal),
        )
    ]


def hot(scenario: str, what: str, runs: Sequence[Run], ceilings: Sequence[Run], *, note: str = "") -> Result:
    """A row of the share of updates that touched no index."""

    def share(run: Run) -> float:
        return 100 * run.updates.hot / max(run.updates.all, 1)

    return compare(
        scenario, f"HOT updates of {what}", "%", [share(run) for run in runs], [share(r) for r in ceilings], note=note
    )
