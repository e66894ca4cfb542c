"""Deletes instances that ended longer ago than their retention, and rate buckets that have refilled.

Every worker runs it, without a leader: any number of them may delete at once.
"""

from __future__ import annotations

import random
from datetime import timedelta

from gen_durable.config import WorkerOptions
from gen_durable.core.background_task import BackgroundTask
from gen_durable.engine.batch_runner import BatchRunner
from gen_durable.pg.connection import PersistentConnection
from gen_durable.store.statements import Statements
from gen_durable.telemetry import Events, InstancesCollected


class Gc(BackgroundTask):
    """The garbage collector of one worker."""

    def __init__(
        self, connection: PersistentConnection, statements: Statements, options: WorkerOptions, *, events: Events
    ) -> None:
        super().__init__("gc")
        self._connection = connection
        self._statements = statements
        self._events = events
        self._interval_seconds = (options.gc_interval or timedelta(0)).total_seconds()
        self._retention = options.retention
        self._batch_size = options.gc_batch
        self._runner = BatchRunner("gc")

    async def run_once(self) -> float:
        """Delete one batch; a full batch is followed by the next at once."""
        is_full = await self._runner.run(self._collect, self._batch_size)
        await self._connection.run(self._statements.delete_full_buckets())
        return 0.0 if is_full else self._interval_seconds * random.uniform(0.9, 1.0)

    async def _collect(self, batch: int, skip: int) -> int:
        done, failed, cancelled = self._retention.seconds
        count = await self._connection.run(self._statements.gc(done, failed, cancelled, batch, skip=skip))
        if count and self._events.active:
            self._events.emit(InstancesCollected(count))
        return count
