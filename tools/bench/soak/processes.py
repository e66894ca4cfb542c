"""The processes of a soak: a feeder and some workers, and the latest report of each worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gen_durable import Durable
from tools.bench.processes import Child, start_role


@dataclass(frozen=True, slots=True)
class SoakProcesses:
    """The running processes."""

    feeder: Child
    workers: list[Child]
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def has_all_reports(self) -> bool:
        """Whether every worker has sent a report."""
        return len(self.reports) == len(self.workers)

    @property
    def ended(self) -> int:
        return sum(words["ended"] for words in self.reports.values())

    def latest(self) -> dict[int, dict[str, Any]]:
        """A copy of each worker's latest report."""
        return {pid: dict(words) for pid, words in self.reports.items()}

    async def stop_feeding(self) -> int:
        """Stop the feeder. Returns how many instances it has inserted, children included."""
        self.feeder.send("stop")
        inserted: int = (await self.feeder.result())["inserted"]
        return inserted


@asynccontextmanager
async def start_processes(
    app: Durable, workers: int, rate: float | None, window: float
) -> AsyncIterator[SoakProcesses]:
    """Start the processes. Stop the feeder before the block ends; the end of the block stops the workers."""
    async with AsyncExitStack() as stack:
        feeder = await stack.enter_async_context(start_role(app, "tools.bench.soak.load:feed", rate=rate))
        workers_started = [
            await stack.enter_async_context(start_role(app, "tools.bench.soak.load:work", window=window))
            for _ in range(workers)
        ]
        found = SoakProcesses(feeder, workers_started)
        async with asyncio.TaskGroup() as listening:
            for child in workers_started:
                listening.create_task(_listen(child, found.reports))
            for child in (feeder, *workers_started):
                child.send("go")
            yield found
            for child in workers_started:
                child.send("stop")


async def _listen(child: Child, reports: dict[int, dict[str, Any]]) -> None:
    while "result" not in (message := await child.receive()):
        reports[child.pid] = message
