"""A worker whose machine takes the messages of a mailbox one by one, in one step."""

import asyncio
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from gen_durable import Await, Context, Done, Durable, Machine, Outcome, Signal, Worker, step

BRIEF: dict[str, Any] = {
    "lease_ttl": timedelta(seconds=0.9),
    "heartbeat_interval": timedelta(seconds=0.3),
    "reap_interval": timedelta(seconds=0.2),
}
message = Signal("message", int)


@dataclass
class Handled:
    """What was handled, in order. `mark` is a word in the statement that commits it, to be stopped at."""

    mark: str = ""
    numbers: list[int] = field(default_factory=list)


class Mailbox(Machine):
    """Handles each message in an execution of its own; a negative one is the last."""

    @step
    async def handle(self, state: Handled, ctx: Context) -> Outcome[list[int]]:
        number = ctx.take(message)
        if number is None:
            return Await(message, state=state)
        if number < 0:
            return Done(state.numbers)
        return Await(message, state=Handled(f"mark{number:04}", [*state.numbers, number]))


async def main() -> None:
    app = Durable(os.environ["DSN"], schema=os.environ["SCHEMA"])
    await app.open()
    Path(os.environ["EFFECTS"]).write_text(f"{os.getpid()} ready\n")
    await Worker(app, machines=[Mailbox()], **BRIEF).run()
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
