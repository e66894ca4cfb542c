"""Who takes part: a feeder and some workers, in processes of their own, and what the workers said last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gen_durable import Durable
from tools.bench.child import Child, play


@dataclass(frozen=True, slots=True)
class Crew:
    """A running crew."""

    feeder: Child
    workers: list[Child]
    said: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every worker has said something."""
        return len(self.said) == len(self.workers)

    @property
    def ended(self) -> int:
        return sum(words["ended"] for words in self.said.values())

    def last(self) -> dict[int, dict[str, Any]]:
        """A copy of what each worker said last."""
        return {pid: dict(words) for pid, words in self.said.items()}

    async def stop_feeding(self) -> int:
        """End the feeder; how many instances it has made, children included."""
        self.feeder.tell("stop")
        inserted: int = (await self.feeder.result())["inserted"]
        return inserted


@asynccontextmanager
async def crew(app: Durable, workers: int, rate: float | None, window: float) -> AsyncIterator[Crew]:
    """Start a crew. The feeder must have been stopped when the block ends; the workers are stopped then."""
    async with AsyncExitStack() as stack:
        feeder = await stack.enter_async_context(play(app, "tools.bench.soak.load:feed", rate=rate))
        several = [
            await stack.enter_async_context(play(app, "tools.bench.soak.load:work", window=window))
            for _ in range(workers)
        ]
        found = Crew(feeder, several)
        async with asyncio.TaskGroup() as listening:
            for child in several:
                listening.create_task(_listen(child, found.said))
            for child in (feeder, *several):
                child.tell("go")
            yield found
            for child in several:
                child.tell("stop")


async def _listen(child: Child, said: dict[int, dict[str, Any]]) -> None:
    while "result" not in (heard := await child.hear()):
        said[child.pid] = heard
