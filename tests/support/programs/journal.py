"""A worker whose step does two activities and a checkpoint, and stops for good at the point it is told to."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from gen_durable import Context, Done, Durable, Machine, Next, Outcome, Worker, step

POINTS = ("begin", "in-a", "after-a", "after-checkpoint", "in-b", "after-b", "end", "next")


def effect(text: str) -> None:
    """Append a line in one write, so that processes do not tear each other's lines."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


async def point(name: str) -> None:
    """Where a process may be told to stop: it says so, and is killed there."""
    if os.environ.get("STOP_AT") == name:
        effect(f"at {name}")
        await asyncio.sleep(3600)


async def charge(number: int) -> dict[str, int]:
    await point("in-a")
    effect("charged")
    return {"charge": number}


async def mail(text: str) -> str:
    await point("in-b")
    effect("mailed")
    return text.upper()


class Pay(Machine, history="states"):
    """Charges, remembers, mails; then ends."""

    @step
    async def pay(self, number: int, ctx: Context) -> Outcome[list[str]]:
        effect(f"key {ctx.idempotency_key}")
        await point("begin")
        charged = await ctx.run("charge", charge, number)
        await point("after-a")
        seen = ctx.last_checkpoint
        await ctx.checkpoint(charged["charge"])
        await point("after-checkpoint")
        mailed = await ctx.run("mail", mail, f"charged {charged['charge']}")
        await point("after-b")
        effect(f"checkpoint {seen}")
        await point("end")
        return Next(self.end, [mailed, ctx.idempotency_key])

    @step
    async def end(self, told: list[str], ctx: Context) -> Outcome[list[str]]:
        await point("next")
        return Done([*told, ctx.idempotency_key, str(ctx.last_checkpoint)])


async def main() -> None:
    app = Durable(os.environ["DSN"], schema=os.environ["SCHEMA"])
    worker = Worker(
        app,
        machines=[Pay()],
        lease_ttl=timedelta(seconds=0.9),
        heartbeat_interval=timedelta(seconds=0.3),
        reap_interval=timedelta(seconds=0.2),
    )
    await app.open()
    effect("ready")
    await worker.run()
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
