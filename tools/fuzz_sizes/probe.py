"""An idle process that measures the machine: `python -m tools.fuzz_sizes.probe`, configured by its environment.

Prints, each tenth of a second, how late its timer was and how long a commit of a few bytes took, in seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import asyncpg

PERIOD = 0.1


async def main() -> None:
    connection = await asyncpg.connect(os.environ["FUZZ_DSN"])
    while True:
        began = time.monotonic()
        await asyncio.sleep(PERIOD)
        woken = time.monotonic()
        await connection.execute("select pg_logical_emit_message(true, 'probe', '')")
        sys.stdout.write(f"machine {woken - began - PERIOD:.4f} {time.monotonic() - woken:.4f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
