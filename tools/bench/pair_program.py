"""One side of a comparison in pairs: a process that runs a scenario whenever it reads a line (`pairs.py`).

It imports the gen_durable that PYTHONPATH names, so it uses only calls that both versions have.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from gen_durable import Context, Done, Durable, Machine, Next, Outcome, Start, Worker, job, step

SOON = timedelta(seconds=60)
BATCH = 1_000
ended = 0


@job
async def count(number: int) -> None:
    global ended  # noqa: PLW0603  # one process, one loop
    ended += 1


class Chain(Machine):
    """Five steps."""

    @step
    async def go(self, state: int, ctx: Context) -> Outcome[None]:
        global ended  # noqa: PLW0603  # as above
        if state < 4:
            return Next(self.go, state + 1)
        ended += 1
        return Done()


async def run_worker(app: Durable, amount: int, starts: list[Start[None]]) -> float:
    """Insert, then let a worker run everything. Returns its seconds."""
    global ended  # noqa: PLW0603  # as above
    ended = 0
    for first in range(0, amount, BATCH):
        await app.insert_many(starts[first : first + BATCH])
    began = time.perf_counter()
    async with Worker(app, machines=[Chain()], jobs=[count], queues={"default": 200}):
        while ended < amount:  # noqa: ASYNC110  # an event would cost the jobs more
            await asyncio.sleep(0.001)
    return time.perf_counter() - began  # the worker has committed what it ran


async def drain(app: Durable, amount: int) -> float:
    return await run_worker(app, amount, [Start(count, n) for n in range(amount)])


async def chain(app: Durable, amount: int) -> float:
    return await run_worker(app, amount, [Start(Chain.go, 0) for _ in range(amount)])


async def latency(app: Durable, amount: int) -> float:
    """From insert to the known end, one after the other. Returns the median."""
    seconds: list[float] = []
    async with Worker(app, machines=[Chain()], jobs=[count]):
        await (await app.insert(count, 0)).wait(timeout=SOON)
        for number in range(amount):
            began = time.perf_counter()
            await (await app.insert(count, number)).wait(timeout=SOON)
            seconds.append(time.perf_counter() - began)
    return sorted(seconds)[amount // 2]


async def inserts(app: Durable, amount: int) -> float:
    """Batches of 1,000 that nothing runs."""
    batch = [Start(count, n, queue="unserved") for n in range(BATCH)]
    began = time.perf_counter()
    for _ in range(amount // BATCH):
        await app.insert_many(batch)
    return time.perf_counter() - began


async def singles(app: Durable, amount: int) -> float:
    """One insert after the other, that nothing runs."""
    began = time.perf_counter()
    for number in range(amount):
        await app.insert(count, number, queue="unserved")
    return time.perf_counter() - began


SCENARIOS: dict[str, Callable[[Durable, int], Awaitable[float]]] = {
    "drain": drain,
    "chain": chain,
    "latency": latency,
    "inserts": inserts,
    "singles": singles,
}


async def main() -> None:
    schema, scenario, amount = sys.argv[1], sys.argv[2], int(sys.argv[3])
    async with Durable(os.environ["BENCH_DSN"], schema=schema) as app:
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(await SCENARIOS[scenario](app, amount), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
