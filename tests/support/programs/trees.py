"""A worker whose instances start others, many levels deep. Run by the flow tests in a process of its own."""

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gen_durable import Context, Done, Durable, Machine, Outcome, ScheduleChildren, Start, Worker, step


@dataclass(frozen=True)
class Branch:
    """How many levels are below, and how many children there are at each."""

    depth: int
    width: int


def effect(text: str) -> None:
    """Append a line in one write, so that processes do not tear each other's lines."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


class Tree(Machine):
    """Leaves work for ever; those above wait for them."""

    @step
    async def grow(self, branch: Branch, ctx: Context) -> Outcome[int]:
        if branch.depth == 0:
            effect(f"leaf {ctx.id}")
            await asyncio.sleep(3600)
        below = Branch(branch.depth - 1, branch.width)
        return ScheduleChildren([Start(Tree.grow, below) for _ in range(branch.width)], then=self.join, state=branch)

    @step
    async def join(self, branch: Branch, ctx: Context) -> Outcome[int]:
        return Done(sum(1 for child in ctx.children if child.ok))

    async def on_cancel(self, state: Branch, ctx: Context, reason: str) -> None:
        effect(f"cleaned {ctx.id}: {reason}")


async def main() -> None:
    seconds = float(os.environ.get("LEASE", "15"))
    app = Durable(os.environ["DSN"], schema=os.environ["SCHEMA"])
    worker = Worker(
        app,
        machines=[Tree()],
        queues={"default": int(os.environ.get("CONCURRENCY", "20"))},
        lease_ttl=timedelta(seconds=seconds),
        heartbeat_interval=timedelta(seconds=seconds / 3),
        reap_interval=timedelta(seconds=0.3),
    )
    effect("ready")
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
