"""A worker process of the load: `python -m tools.chaos.worker`, configured by its environment."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from gen_durable import Durable, Worker
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable
from gen_durable.telemetry import ClaimLost, Event, StaleOutcome
from tools.chaos.effects import Effects
from tools.chaos.hostile import MAX_CRASHES, hostile_machines
from tools.chaos.machines import LIMITS, QUEUES, machines

UNREACHABLE = 75  # the exit status if the database is unreachable: the fleet starts another one


async def main() -> int:
    lease = float(os.environ["CHAOS_LEASE"])
    effects = Effects(Path(os.environ["CHAOS_EFFECTS"]))
    app = Durable(os.environ["CHAOS_DSN"])

    def note(event: Event) -> None:
        if isinstance(event, StaleOutcome | ClaimLost):
            effects.write(f"note {type(event).__name__} {event.id}")

    app.events.subscribe(note)
    worker = Worker(
        app,
        machines=[*machines(effects), *hostile_machines(effects)],
        queues=QUEUES,
        limits=LIMITS,
        lease_ttl=timedelta(seconds=lease),
        heartbeat_interval=timedelta(seconds=lease / 4),
        reap_interval=timedelta(seconds=lease / 5),
        poll_interval=timedelta(seconds=0.25),
        max_poll_interval=timedelta(seconds=0.5),
        gc_retention=None,
        max_crashes=MAX_CRASHES,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        await app.open()
        await worker.start()
    except (DatabaseUnavailable, DatabaseRefused) as error:
        print(f"cannot start: {error}", file=sys.stderr)
        return UNREACHABLE
    effects.write("note Ready")
    await stop.wait()
    await worker.stop()
    await app.close()
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    sys.exit(asyncio.run(main()))
