"""A worker whose steps write down that they began. Run by the flow tests in a process of its own."""

import asyncio
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gen_durable import Context, Done, Durable, Machine, Next, Outcome, Worker, job, step


@dataclass(frozen=True)
class Work:
    """How long to work, and whether to let the event loop run meanwhile."""

    seconds: float
    blocking: bool = False


def effect(text: str) -> None:
    """Append a line in one write, so that processes do not tear each other's lines."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


class Slow(Machine):
    """Two steps, the first of which takes its time."""

    @step
    async def work(self, work: Work, ctx: Context) -> Outcome[int]:
        effect(f"work {ctx.id} attempt {ctx.attempt}")
        if work.blocking:
            time.sleep(work.seconds)  # noqa: ASYNC251  # blocking the loop is what is tested
        else:
            await asyncio.sleep(work.seconds)
        effect(f"worked {ctx.id} attempt {ctx.attempt}")
        return Next(self.finish, work)

    @step
    async def finish(self, work: Work, ctx: Context) -> Outcome[int]:
        effect(f"finish {ctx.id}")
        return Done(ctx.attempt)


@job
async def quick(n: int, ctx: Context) -> int:
    """Ends at once."""
    effect(f"quick {n}")
    return n


@job
async def turn(name: str) -> None:
    """Takes a moment, and says when."""
    effect(f"begin {name}")
    await asyncio.sleep(0.01)
    effect(f"end {name}")


@job(name="die", queue="poison")
async def die(n: int) -> int:
    """Kills its own process, as a segfault or the OOM killer would."""
    effect(f"die {n}")
    os.kill(os.getpid(), 9)
    return n


async def main() -> None:
    seconds = float(os.environ.get("LEASE", "1.2"))
    app = Durable(os.environ["DSN"], schema=os.environ["SCHEMA"])
    worker = Worker(
        app,
        machines=[Slow()],
        jobs=[quick, turn, die],
        queues={
            name: int(os.environ.get("CONCURRENCY", "5")) for name in os.environ.get("QUEUES", "default").split(",")
        },
        lease_ttl=timedelta(seconds=seconds),
        heartbeat_interval=timedelta(seconds=seconds / 3),
        reap_interval=timedelta(seconds=float(os.environ.get("REAP", "0.3"))),
        drain_timeout=timedelta(seconds=float(os.environ.get("DRAIN", "5"))),
        max_crashes=int(os.environ["MAX_CRASHES"]) if "MAX_CRASHES" in os.environ else None,
        prefetch=int(os.environ.get("PREFETCH", "0")),
    )
    await app.open()
    effect("ready")
    await worker.run()
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
