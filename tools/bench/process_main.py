"""The child process of `tools.bench.processes`: connects, reports that it is ready, and runs its role on `go`.

The loop is the one that `gen-durable worker` uses: uvloop where it is installed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
import time
from typing import Any

from gen_durable import Durable
from tools.bench.resource_usage import memory


class Parent:
    """The pipe to the parent process."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._cpu = 0.0

    async def wait_for_start(self) -> None:
        """Report that everything is prepared, and wait for the start."""
        self.send({"ready": True})
        if (await self._reader.readline()).strip() != b"go":
            raise SystemExit("the parent process has ended")
        self._cpu = time.process_time()

    async def wait_for_stop(self) -> None:
        """Wait until the parent stops this process, or has ended."""
        await self._reader.readline()

    def report(self, count: int, at: float) -> None:
        """Report the number of ended instances, and when the last one ended."""
        self.send({"count": count, "at": at, "cpu": time.process_time() - self._cpu})

    def send(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), flush=True)


async def main() -> None:
    role, arguments = sys.argv[1], json.loads(sys.argv[2])
    module, _, name = role.partition(":")
    run_role = getattr(importlib.import_module(module), name)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    parent = Parent(reader)
    async with Durable(os.environ["BENCH_DSN"], schema=os.environ["BENCH_SCHEMA"]) as app:
        found: dict[str, Any] = await run_role(parent, app, **arguments) or {}
    now, peak = memory(os.getpid())
    parent.send({"result": {"memory": now, "peak": peak} | found})


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:
        new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
