"""A worker whose work has every kind of commit in it: two activities, a checkpoint, outcomes, a row of the user's."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from gen_durable import Context, Done, Durable, Machine, Next, Outcome, Worker, step

BRIEF: dict[str, Any] = {
    "lease_ttl": timedelta(seconds=1.2),
    "heartbeat_interval": timedelta(seconds=0.4),
    "reap_interval": timedelta(seconds=0.2),
}


def effect(text: str) -> None:
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


async def charge(number: int) -> int:
    effect("charged")
    return number


async def mail(number: int) -> int:
    effect("mailed")
    return number


class Order(Machine):
    """Two activities, a checkpoint and a row of the user's in one step, and another step after it.

    Each statement has a word of its own, to be stopped at: act-one, mark-one, act-two, go-close, COMMIT, all-done.
    """

    @step(transactional=True)
    async def pay(self, number: int, ctx: Context) -> Outcome[str]:
        await ctx.run("act-one", charge, number)
        effect(f"found {ctx.last_checkpoint}")
        await ctx.checkpoint("mark-one")
        await ctx.run("act-two", mail, number)
        await ctx.connection.execute(f"insert into {os.environ['SCHEMA']}.book (text) values ($1)", str(number))
        return Next(self.close, "go-close")

    @step
    async def close(self, state: str, ctx: Context) -> Outcome[str]:
        effect("closed")
        return Done("all-done")


async def main() -> None:
    app = Durable(os.environ["DSN"], schema=os.environ["SCHEMA"])
    await app.open()
    effect("ready")
    await Worker(app, machines=[Order()], **BRIEF).run()
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
