"""A worker with a transactional step. Run by the flow tests in a process of its own."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from gen_durable import Context, Done, Durable, Machine, Outcome, Worker, step


def effect(text: str) -> None:
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


class Book(Machine):
    """Writes a row of the user's, and ends."""

    @step(transactional=True)
    async def write(self, text: str, ctx: Context) -> Outcome[str]:
        await ctx.connection.execute(f"insert into {os.environ['SCHEMA']}.book (text) values ($1)", text)
        effect("written")
        if os.environ.get("HANG"):
            await asyncio.sleep(3600)
        return Done(text)


async def main() -> None:
    app = Durable(os.environ["DSN"], schema=os.environ["SCHEMA"])
    worker = Worker(
        app,
        machines=[Book()],
        lease_ttl=timedelta(seconds=1.5),
        heartbeat_interval=timedelta(seconds=0.4),
        reap_interval=timedelta(seconds=0.3),
    )
    await app.open()
    effect("ready")
    await worker.run()
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
