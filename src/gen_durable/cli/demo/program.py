"""What each worker process of the demo runs: `gen-durable worker gen_durable.cli.demo.program:worker`."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Final

from gen_durable import Durable, Worker
from gen_durable.cli.demo.event_log import Note, write
from gen_durable.cli.demo.machines import Checkout, Pack, stocktake
from gen_durable.telemetry import ClaimsReaped, Event, RowsPicked, StepCommitted

SCHEMA: Final = "gen_durable_demo"
LEASE: Final = timedelta(seconds=2)


def worker() -> Worker:
    """A worker with a short lease, so that one need not wait long to see another take over."""
    app = Durable(schema=SCHEMA)  # DATABASE_URL says where
    app.events.subscribe(_Witness().heard)
    return Worker(
        app,
        machines=[Checkout(), Pack()],
        jobs=[stocktake],
        queues={"checkout": 4, "packing": 4, "default": 1},
        lease_ttl=LEASE,
        heartbeat_interval=LEASE / 4,
        reap_interval=timedelta(seconds=0.5),
    )


class _Witness:
    """Notes what this worker does, for the story."""

    def __init__(self) -> None:
        self._ready = False

    def heard(self, event: Event) -> None:
        match event:
            case RowsPicked() if not self._ready:
                self._ready = True
                write(Note("ready", time.time(), os.getpid(), event.worker))
            case StepCommitted(id=instance, machine=machine, step=step, outcome=outcome):
                write(
                    Note(
                        "committed", time.time(), os.getpid(), id=instance, machine=machine, step=step, outcome=outcome
                    )
                )
            case ClaimsReaped(ids=ids):
                write(Note("reaped", time.time(), os.getpid(), ids=ids))
            case _:
                pass
