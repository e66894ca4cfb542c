"""A worker process: `worker.py DSN SCHEMA [option=number ...]`. Its steps print what happens to them.

Timedeltas are given in seconds; `slots=3` is the concurrency of the one queue.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from gen_durable import Context, Done, Durable, Machine, Next, Outcome, Worker, job, step

WHOLE = {"slots", "prefetch", "run_ahead_steps", "max_crashes"}


def say(text: str) -> None:
    print(text, flush=True)


@job(name="quick")
async def quick(number: int) -> int:
    """Ends at once."""
    return number + 1


@job(name="gated")
async def gated(gate: str) -> str:
    """Runs until a file is there."""
    say("running")
    while True:
        if Path(gate).exists():
            break
        await asyncio.sleep(0.01)
    say("through")
    return "through"


@job(name="endless")
async def endless(_: None) -> None:
    """Never ends by itself."""
    say("running")
    try:
        await asyncio.Event().wait()
    finally:
        say("interrupted")


@job(name="stuck")
def stuck(length: float) -> None:
    """Sits in a thread."""
    say("running")
    time.sleep(length)


class Chain(Machine, name="chain"):
    """Goes round and round until a file is there."""

    @step
    async def link(self, gate: str, ctx: Context) -> Outcome[int]:
        if ctx.seq == 0:
            say("running")
        await asyncio.sleep(0.01)
        return Done(ctx.seq) if Path(gate).exists() else Next(self.link, gate)


def main() -> None:
    dsn, schema, *given = sys.argv[1:]
    options: dict[str, Any] = {}
    for one in given:
        name, _, number = one.partition("=")
        options[name] = int(number) if name in WHOLE else timedelta(seconds=float(number))
    queues = {"default": options.pop("slots", 10)}

    async def run() -> None:
        app = Durable(dsn, schema=schema)
        worker = Worker(app, machines=[Chain()], jobs=[quick, gated, endless, stuck], queues=queues, **options)
        await worker.run()
        say("left")

    asyncio.run(run())


if __name__ == "__main__":
    main()
