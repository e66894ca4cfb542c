"""A loop of picks and nothing else: what it claims it keeps. Run by the flow tests in a process of its own."""

import asyncio
import os
from pathlib import Path

from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.statements import StatementBuilder


def ready() -> None:
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{os.getpid()} ready\n")


async def main() -> None:
    link, calls = (
        PersistentConnection(ConnectionTarget(os.environ["DSN"])),
        StatementBuilder(Schema(os.environ["SCHEMA"])),
    )
    ready()
    while True:
        picked = await link.run(calls.pick(str(os.getpid()), {"default": 20}, [os.environ["KNOWN"]], 600))
        if not picked.claims:
            await asyncio.sleep(0.005)


if __name__ == "__main__":
    asyncio.run(main())
