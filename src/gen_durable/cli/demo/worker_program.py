"""The program of each worker process: `gen-durable worker gen_durable.cli.demo.worker_program:make_worker`."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Final

from gen_durable import Durable, Worker
from gen_durable.cli.demo.event_log import LogEntry, append_entry
from gen_durable.cli.demo.machines import Checkout, Pack, stocktake
from gen_durable.telemetry import ClaimsReaped, Event, RowsPicked, StepCommitted

SCHEMA: Final = "gen_durable_demo"
LEASE: Final = timedelta(seconds=2)


def make_worker() -> Worker:
    """A worker with a short lease, so that the claims of a killed worker are soon taken over."""
    app = Durable(schema=SCHEMA)  # uses DATABASE_URL
    app.events.subscribe(_EventRecorder().record_event)
    return Worker(
        app,
        machines=[Checkout(), Pack()],
        jobs=[stocktake],
        queues={"checkout": 4, "packing": 4, "default": 1},
        lease_ttl=LEASE,
        heartbeat_interval=LEASE / 4,
        reap_interval=timedelta(seconds=0.5),
    )


class _EventRecorder:
    """Appends this worker's events to the demo's event log."""

    def __init__(self) -> None:
        self._ready = False

    def record_event(self, event: Event) -> None:
        match event:
            case RowsPicked() if not self._ready:
                self._ready = True
                append_entry(LogEntry("ready", time.time(), os.getpid(), event.worker))
            case StepCommitted(id=instance, machine=machine, step=step, outcome=outcome):
                append_entry(
                    LogEntry(
                        "committed", time.time(), os.getpid(), id=instance, machine=machine, step=step, outcome=outcome
                    )
                )
            case ClaimsReaped(ids=ids):
                append_entry(LogEntry("reaped", time.time(), os.getpid(), ids=ids))
            case _:
                pass
