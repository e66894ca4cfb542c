"""Worker processes that their own steps kill: each one that dies is replaced at once, until SIGTERM."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from datetime import timedelta

from gen_durable import Durable, Worker, job

PR_SET_PDEATHSIG = 1


@job(queue="default")
async def work(length: float) -> str:
    """Take a while."""
    await asyncio.sleep(length)
    return "done"


@job(queue="default")
async def poison(length: float) -> None:
    """Kill the process."""
    await asyncio.sleep(length)
    os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    lease = timedelta(seconds=float(os.environ.get("LEASE", "0.6")))
    async with Durable(os.environ["DSN"], schema=os.environ["SCHEMA"]) as app:
        await Worker(
            app,
            jobs=[work, poison],
            queues={"default": int(os.environ.get("SLOTS", "10"))},
            lease_ttl=lease,
            heartbeat_interval=lease / 3,
            reap_interval=timedelta(seconds=0.1),
            poll_interval=timedelta(seconds=0.05),
            max_poll_interval=timedelta(seconds=0.1),
            gc_interval=None,
            max_crashes=int(os.environ.get("MAX_CRASHES", "10")),
        ).run()


def run_and_replace() -> None:
    """Fork workers, one after the other: a new interpreter for each would take longer than its work."""
    while True:
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # die with the parent
            asyncio.run(main())
            os._exit(0)
        signal.signal(signal.SIGTERM, lambda *_, pid=child: os.kill(pid, signal.SIGTERM))
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            sys.exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    run_and_replace()
