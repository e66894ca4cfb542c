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

Turn = tuple[float, float]
"""The seconds of a turn, and the processor time of this process in it."""
SOON = timedelta(seconds=60)
BATCH = 1_000
ended: list[int] = []  # appended to from threads, too


@job
async def count(number: int) -> None:
    ended.append(number)


@job
def count_in_thread(number: int) -> None:
    ended.append(number)


class Chain(Machine):
    """Five steps."""

    @step
    async def go(self, state: int, ctx: Context) -> Outcome[None]:
        if state < 4:
            return Next(self.go, state + 1)
        ended.append(state)
        return Done()


def read_clocks() -> Turn:
    return time.perf_counter(), time.process_time()


def since(began: Turn) -> Turn:
    seconds, cpu = read_clocks()
    return seconds - began[0], cpu - began[1]


async def run_worker(app: Durable, amount: int, starts: list[Start[None]]) -> Turn:
    """Insert, then let a worker run everything. The inserts do not count."""
    ended.clear()
    for first in range(0, amount, BATCH):
        await app.insert_many(starts[first : first + BATCH])
    began = read_clocks()
    async with Worker(app, machines=[Chain()], jobs=[count, count_in_thread], queues={"default": 200}):
        while len(ended) < amount:  # noqa: ASYNC110  # an event would cost the jobs more
            await asyncio.sleep(0.001)
    return since(began)  # the worker has committed what it ran


async def drain(app: Durable, amount: int) -> Turn:
    return await run_worker(app, amount, [Start(count, n) for n in range(amount)])


async def threads(app: Durable, amount: int) -> Turn:
    return await run_worker(app, amount, [Start(count_in_thread, n) for n in range(amount)])


async def chain(app: Durable, amount: int) -> Turn:
    return await run_worker(app, amount, [Start(Chain.go, 0) for _ in range(amount)])


async def latency(app: Durable, amount: int) -> Turn:
    """From insert to the known end, one after the other. Returns the median."""
    seconds: list[float] = []
    cpu = time.process_time()
    async with Worker(app, machines=[Chain()], jobs=[count, count_in_thread]):
        await (await app.insert(count, 0)).wait(timeout=SOON)
        for number in range(amount):
            began = time.perf_counter()
            await (await app.insert(count, number)).wait(timeout=SOON)
            seconds.append(time.perf_counter() - began)
    return sorted(seconds)[amount // 2], time.process_time() - cpu


async def inserts(app: Durable, amount: int) -> Turn:
    """Batches of 1,000 that nothing runs."""
    batch = [Start(count, n, queue="unserved") for n in range(BATCH)]
    began = read_clocks()
    for _ in range(amount // BATCH):
        await app.insert_many(batch)
    return since(began)


async def singles(app: Durable, amount: int) -> Turn:
    """One insert after the other, that nothing runs."""
    began = read_clocks()
    for number in range(amount):
        await app.insert(count, number, queue="unserved")
    return since(began)


SCENARIOS: dict[str, Callable[[Durable, int], Awaitable[Turn]]] = {
    "drain": drain,
    "chain": chain,
    "threads": threads,
    "latency": latency,
    "inserts": inserts,
    "singles": singles,
}


async def main() -> None:
    schema, scenario, amount = sys.argv[1], sys.argv[2], int(sys.argv[3])
    async with Durable(os.environ["BENCH_DSN"], schema=schema) as app:
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(*await SCENARIOS[scenario](app, amount), flush=True)


if __name__ == "__main__":
    try:
        from uvloop import new_event_loop  # as in `gen-durable worker`
    except ModuleNotFoundError:
        new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
