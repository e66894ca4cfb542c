"""A worker under an audit hook: after `READY` it prints every import, exec and the like that happens."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

from tests.support.canaries import Secret, Waiter, burn, echo, told

from gen_durable import Durable, Worker
from gen_durable.telemetry import UnknownStepsFound

WATCHED = (
    "import",
    "exec",
    "compile",
    "pickle.find_class",
    "marshal.loads",
    "os.system",
    "subprocess.Popen",
    "os.exec",
)
watching = asyncio.Event()
seen: list[str] = []


def hook(event: str, args: tuple[object, ...]) -> None:
    if watching.is_set() and event in WATCHED:
        seen.append(f"{event} {str(args)[:200]}")


async def main() -> None:
    sys.addaudithook(hook)
    async with Durable(os.environ["DSN"], schema=os.environ["SCHEMA"]) as app:
        unknown = asyncio.Event()
        app.events.subscribe(lambda event: unknown.set() if isinstance(event, UnknownStepsFound) else None)
        brief = timedelta(seconds=0.2)
        async with Worker(app, machines=[Waiter()], jobs=[echo, burn], queues={"default": 50}, reap_interval=brief):
            # Once through everything, so that what is imported at first use is there.
            await (await app.insert(echo, Secret("x"))).wait()
            await (await app.insert(burn, Secret("x"))).wait()
            waiting = await app.insert(Waiter.wait, Secret("x"))
            await waiting.signal(told, Secret("x"))
            await waiting.wait()
            print("READY", flush=True)
            await asyncio.to_thread(sys.stdin.readline)  # the rows are there now
            watching.set()
            async with asyncio.timeout(20):
                await unknown.wait()
            last = await app.insert(echo, Secret("last"), priority=100)
            await last.wait()
            watching.clear()
    for line in seen:
        print("SEEN", line, flush=True)
    print("END", flush=True)


asyncio.run(main())
