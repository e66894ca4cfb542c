"""The other side of `tools.bench.child`: connects, says that it is ready, and plays its role on `go`.

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
from tools.bench.measure import memory


class Line:
    """The line to the parent."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._cpu = 0.0

    async def go(self) -> None:
        """Say that all is prepared, and wait for the start."""
        self.tell({"ready": True})
        if (await self._reader.readline()).strip() != b"go":
            raise SystemExit("the parent is gone")
        self._cpu = time.process_time()

    async def stop(self) -> None:
        """Wait until the parent has seen enough, or is gone."""
        await self._reader.readline()

    def ended(self, count: int, at: float) -> None:
        """So many instances were ended until now, the last at that moment."""
        self.tell({"count": count, "at": at, "cpu": time.process_time() - self._cpu})

    def tell(self, words: dict[str, Any]) -> None:
        print(json.dumps(words), flush=True)


async def main() -> None:
    role, arguments = sys.argv[1], json.loads(sys.argv[2])
    module, _, name = role.partition(":")
    play = getattr(importlib.import_module(module), name)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = Line(reader)
    async with Durable(os.environ["BENCH_DSN"], schema=os.environ["BENCH_SCHEMA"]) as app:
        found: dict[str, Any] = await play(line, app, **arguments) or {}
    now, peak = memory(os.getpid())
    line.tell({"result": {"memory": now, "peak": peak} | found})


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:
        new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
