"""The worker process of the fuzz: `python -m tools.fuzz_sizes.worker`, configured by its environment.

Its standard output is read by the run: a line for each heartbeat, with its delay in seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta

from gen_durable import Durable, Worker
from tools.fuzz_sizes.machines import HEARTBEATS, Fuzz, Heartbeats, leaf

log = logging.getLogger("fuzz_sizes")
SHOWN_BLOCK = 0.3  # seconds for which the loop may be blocked before its stack is written to the log
RETENTION = timedelta(seconds=10)


def report(late: float) -> None:
    sys.stdout.write(f"late {late:.4f}\n")
    sys.stdout.flush()


class LoopObserver(threading.Thread):
    """Writes the stack of an event loop that does not answer, for the reader of a late heartbeat."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self._loop = loop
        self._loop_thread = threading.get_ident()

    def run(self) -> None:
        while not self._loop.is_closed():
            answered = threading.Event()
            began = time.monotonic()
            self._loop.call_soon_threadsafe(answered.set)
            if not answered.wait(SHOWN_BLOCK):
                frame = sys._current_frames().get(self._loop_thread)
                stack = "".join(traceback.format_stack(frame, limit=None)[-8:])
                answered.wait()
                log.warning("the loop was blocked for %.2f s:\n%s", time.monotonic() - began, stack)
            time.sleep(0.02)


async def main() -> None:
    async with Durable(os.environ["FUZZ_DSN"], schema=os.environ["FUZZ_SCHEMA"]) as app:
        worker = Worker(
            app,
            machines=[Fuzz(), Heartbeats(report)],
            jobs=[leaf],
            queues={"sizes": int(os.environ["FUZZ_SLOTS"]), HEARTBEATS: 1},
            gc_interval=timedelta(seconds=2),
            gc_retention=RETENTION,
        )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        LoopObserver(loop).start()
        await worker.start()
        await stop.wait()
        await worker.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(main())
