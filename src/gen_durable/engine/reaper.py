"""Maintenance, run by every worker without a leader: Reaper takes back dead claims, Gc deletes old rows.

Both act on row truth alone and may run anywhere, any number of times at once. Maintenance never rides the queue.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from gen_durable.config import WorkerOptions
from gen_durable.core.background import BackgroundTask
from gen_durable.core.notifier import Notifier
from gen_durable.pg.connection import PersistentConnection
from gen_durable.store.statements import Statements
from gen_durable.store.types import UnknownStep
from gen_durable.telemetry import (
    ClaimsReaped,
    Events,
    InstanceDeadLettered,
    InstancesCollected,
    RowsUnblocked,
    UnknownStepsFound,
)

log = logging.getLogger("gen_durable.worker")
REAP_BATCH: Final = 1000
SWEEP_BATCH: Final = 100
SWEEPS: Final = 50
REPORT_EVERY: Final = 6


class Reaper(BackgroundTask):
    """Takes back claims whose lease has run out; now and then looks for rows that nobody here can run."""

    def __init__(
        self,
        link: PersistentConnection,
        calls: Statements,
        options: WorkerOptions,
        *,
        known: list[str],
        silent: list[str],
        wake: Notifier,
        events: Events,
        on_dead: Callable[[Iterable[int]], None],
    ) -> None:
        super().__init__("reaper")
        self._interval = (options.reap_interval or timedelta(0)).total_seconds()
        self._link = link
        self._calls = calls
        self._options = options
        self._known = known
        self._silent = silent
        self._wake = wake
        self._events = events
        self._on_dead = on_dead
        self._turns = 0
        self._swept: str | None = None
        self._told: set[tuple[str, int, str]] = set()

    async def run_once(self) -> float:
        reaping = await self._link.run(self._calls.reap(REAP_BATCH, self._options.max_crashes, self._silent))
        found = reaping.claims
        self._wake.publish(reaping.wakeups)
        if found:
            log.warning("took back %d claims whose lease had run out", len(found))
            for queue in {row.queue for row in found}:
                self._wake.wake(queue, sum(row.queue == queue for row in found))
            for row in found:
                if row.dead:
                    log.error("instance %d (%s.%s) was failed: %d crashes", row.id, row.machine, row.step, row.crashes)
            if self._events.active:
                self._events.emit(ClaimsReaped(tuple(row.id for row in found)))
                for row in found:
                    if row.dead:
                        self._events.emit(InstanceDeadLettered(row.id, row.machine, row.step, row.crashes))
            self._on_dead(row.id for row in found if row.dead)
        for _ in range(SWEEPS):
            self._swept, woken = await self._link.run(self._calls.unblock_missed(self._swept, SWEEP_BATCH))
            self._wake.wake_all(woken)
            if self._events.active:
                for queue in woken:
                    self._events.emit(RowsUnblocked(queue))
            if self._swept is None:
                break
        if self._options.queues and self._turns % REPORT_EVERY == 0:
            self._report(await self._link.run(self._calls.unknown_steps(list(self._options.queues), self._known)))
        self._turns += 1
        if len(found) == REAP_BATCH:
            return 0.0
        return self._interval * random.uniform(0.9, 1.0)

    def _report(self, unknown_steps: list[UnknownStep]) -> None:
        for row in unknown_steps:
            if self._events.active:
                self._events.emit(UnknownStepsFound(row.machine, row.version, row.step, row.queue, row.waiting))
            name = (row.machine, row.version, row.step)
            if name not in self._told:
                self._told.add(name)
                log.warning(
                    "queue %s: %d rows wait for %s version %d, step %s, which this worker was not given; "
                    "they are left to a worker that knows it",
                    row.queue, row.waiting, row.machine, row.version, row.step,
                )  # fmt: skip


class Gc(BackgroundTask):
    """Deletes instances that ended longer ago than their retention."""

    def __init__(self, link: PersistentConnection, calls: Statements, options: WorkerOptions, events: Events) -> None:
        super().__init__("gc")
        self._interval = (options.gc_interval or timedelta(0)).total_seconds()
        self._link = link
        self._calls = calls
        self._options = options
        self._events = events

    async def run_once(self) -> float:
        keep = self._options.retention
        seconds = keep.seconds
        count = await self._link.run(self._calls.gc(seconds[0], seconds[1], seconds[2], self._options.gc_batch))
        await self._link.run(self._calls.delete_full_buckets())
        if count and self._events.active:
            self._events.emit(InstancesCollected(count))
        if count == self._options.gc_batch:
            return 0.0
        return self._interval * random.uniform(0.9, 1.0)
