"""Deletes instances that ended longer ago than their retention, and rate buckets that have refilled.

Every worker runs it, without a leader: any number of them may delete at once. A walk remembers how far it has come, so
that rows which are kept are not visited each time. Every `REVISIT_ROUNDS` rounds it starts from the oldest row: to
delete rows that were locked, that the database refused, or whose parent has ended since.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gen_durable.config import Retention, WorkerOptions
from gen_durable.core.background_task import BackgroundTask
from gen_durable.engine.skipping_batch_runner import SkippingBatchRunner
from gen_durable.pg.connection import PersistentConnection
from gen_durable.store.statements import StatementBuilder
from gen_durable.telemetry import Events, InstancesCollected

REVISIT_ROUNDS: Final = 60


@dataclass(slots=True)
class Walk:
    """A walk over the rows that ended in one of the ways that have this retention, in the order of their ends."""

    done: float | None
    failed: float | None
    cancelled: float | None
    after: datetime | None = None


class Gc(BackgroundTask):
    """The garbage collector of one worker."""

    def __init__(
        self, connection: PersistentConnection, statements: StatementBuilder, options: WorkerOptions, *, events: Events
    ) -> None:
        super().__init__("gc")
        self._connection = connection
        self._statements = statements
        self._events = events
        self._interval_seconds = (options.gc_interval or timedelta(0)).total_seconds()
        self._walks = _walks_of(options.retention)
        self._batch_size = options.gc_batch
        self._runner = SkippingBatchRunner("gc")
        self._rounds = 0

    async def run_once(self) -> float:
        """Delete a batch of each walk; continue at once until all walks have come to the end."""
        has_more = [await self._delete_batch(walk) for walk in self._walks]
        if any(has_more):
            return 0.0
        await self._connection.run(self._statements.delete_full_buckets())
        self._rounds += 1
        if self._rounds % REVISIT_ROUNDS == 0:
            for walk in self._walks:
                walk.after = None
        return self._interval_seconds * random.uniform(0.9, 1.0)

    async def _delete_batch(self, walk: Walk) -> bool:
        """Delete one batch. Returns whether more may be due."""
        after, has_more = walk.after, False

        async def delete(batch: int, skip: int) -> int:
            nonlocal after, has_more
            # The position stays until the batch is complete: `skip` counts from it.
            statement = self._statements.gc(walk.done, walk.failed, walk.cancelled, batch, skip=skip, after=walk.after)
            result = await self._connection.run(statement)
            after, has_more = result.visited_until, result.more
            if result.deleted and self._events.active:
                self._events.emit(InstancesCollected(result.deleted))
            return result.deleted

        await self._runner.run(delete, self._batch_size)
        walk.after = after
        return has_more


def _walks_of(retention: Retention) -> list[Walk]:
    """One walk for each of the retentions that differ."""
    done, failed, cancelled = retention.seconds
    return [
        Walk(
            done if done == seconds else None,
            failed if failed == seconds else None,
            cancelled if cancelled == seconds else None,
        )
        for seconds in sorted({each for each in (done, failed, cancelled) if each is not None})
    ]
