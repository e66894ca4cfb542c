"""A worker whose steps run under limits, and say when they do. Run by the flow tests in a process of its own."""

import asyncio
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import asyncpg

from gen_durable import Context, Durable, Worker, job

EFFECTS = """
create table @schema.effects (
  key text, id bigint, claim int, word text, at timestamptz not null default clock_timestamp()
)
"""


@dataclass(frozen=True)
class Task:
    """Which of the limit's keys, and how long."""

    key: str
    seconds: float


class Book:
    """Where executions are written down, over a connection that the engine knows nothing of."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._free = asyncio.Lock()

    async def write(self, task: Task, ctx: Context, word: str) -> None:
        sql = f"insert into {os.environ['SCHEMA']}.effects (key, id, claim, word) values ($1, $2, $3, $4)"
        async with self._free:
            await self._connection.execute(sql, task.key, ctx.id, ctx.claim, word)


books: list[Book] = []


def effect(text: str) -> None:
    """Append a line in one write, so that processes do not tear each other's lines."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


@job
async def work(task: Task, ctx: Context) -> None:
    """Takes its time, and says when it began and ended."""
    await books[0].write(task, ctx, "begin")
    await asyncio.sleep(task.seconds)
    await books[0].write(task, ctx, "end")


@job
async def inside(task: Task, ctx: Context) -> None:
    """The same, under a limit that it asks for itself."""
    async with ctx.limit("l", task.key):
        await books[0].write(task, ctx, "begin")
        await asyncio.sleep(task.seconds)
        await books[0].write(task, ctx, "end")


@job
async def tick(n: int) -> None:
    """Says when it began."""
    effect(f"tick {time.time():.6f}")


async def main() -> None:
    seconds = float(os.environ.get("LEASE", "15"))
    books.append(Book(await asyncpg.connect(os.environ["DSN"])))
    app = Durable(os.environ["DSN"], schema=os.environ["SCHEMA"])
    worker = Worker(
        app,
        jobs=[work, inside, tick],
        queues={"default": int(os.environ.get("CONCURRENCY", "10"))},
        lease_ttl=timedelta(seconds=seconds),
        heartbeat_interval=timedelta(seconds=seconds / 4),
        reap_interval=timedelta(seconds=float(os.environ.get("REAP", "5"))),
    )
    await app.open()
    effect("ready")
    await worker.run()
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
