"""Deletes instances that ended longer ago than their retention, rate buckets that have refilled, and unused ids.

Every worker runs it, without a leader: any number of them may delete at once. A scan remembers how far it has come, so
that rows which are kept are not visited each time. Every `REVISIT_ROUNDS` rounds it starts from the oldest row: to
delete rows that were locked, that the database refused, or whose parent has ended since.

There is one scan for each retention, of the worker's option and of the machines that declare one, of any worker (ADR
24), and one over the rows that were inserted with a keep of their own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gen_durable.core.background_task import BackgroundTask
from gen_durable.engine.skipping_batch_runner import SkippingBatchRunner
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.retention import Retention
from gen_durable.store.retention import RetentionStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import GcResult
from gen_durable.telemetry import Events, InstancesCollected
from gen_durable.worker_options import WorkerOptions

REVISIT_ROUNDS: Final = 60


@dataclass(slots=True)
class RetentionScan:
    """A scan over ended rows, oldest first: those under one retention, or those with a keep of their own (None)."""

    retention_seconds: float | None
    after: datetime | None = None


class Gc(BackgroundTask):
    """The garbage collector of one worker."""

    def __init__(
        self,
        connection: PersistentConnection,
        statements: StatementBuilder,
        retention_statements: RetentionStatementBuilder,
        options: WorkerOptions,
        *,
        events: Events,
    ) -> None:
        super().__init__("gc")
        self._connection = connection
        self._statements = statements
        self._retention_statements = retention_statements
        self._events = events
        self._interval_seconds = (options.gc_interval or timedelta(0)).total_seconds()
        self._retention = options.retention
        self._declared: dict[str, Retention] = {}
        self._scans = make_retention_scans([self._retention])
        self._batch_size = options.gc_batch
        self._runner = SkippingBatchRunner("gc")
        self._rounds = 0

    async def run_once(self) -> float:
        """Delete a batch of each scan; continue at once until all scans have come to the end."""
        declared = await self._connection.run(self._retention_statements.declared_retentions())
        if declared != self._declared:  # a shorter retention applies to rows that a scan has passed
            self._declared = declared
            self._scans = make_retention_scans([self._retention, *declared.values()])
        has_more = [await self._delete_batch(scan) for scan in self._scans]
        if any(has_more):
            return 0.0
        await self._connection.run(self._statements.delete_full_rate_buckets())
        if await self._connection.run(self._statements.gc_unused_ids(self._batch_size)) == self._batch_size:
            return 0.0
        self._rounds += 1
        if self._rounds % REVISIT_ROUNDS == 0:
            for scan in self._scans:
                scan.after = None
        return self._interval_seconds * random.uniform(0.9, 1.0)

    async def _delete_batch(self, scan: RetentionScan) -> bool:
        """Delete one batch. Returns whether more may be due."""
        after, has_more = scan.after, False

        async def delete(batch: int, skip: int) -> int:
            nonlocal after, has_more
            # The position stays until the batch is complete: `skip` counts from it.
            result = await self._connection.run(self._make_delete_statement(scan, batch, skip))
            after, has_more = result.visited_until, result.more
            if result.deleted and self._events.active:
                self._events.emit(InstancesCollected(result.deleted))
            return result.deleted

        await self._runner.run_one_batch(delete, self._batch_size)
        scan.after = after
        return has_more

    def _make_delete_statement(self, scan: RetentionScan, batch: int, skip: int) -> Statement[GcResult]:
        if scan.retention_seconds is None:
            return self._retention_statements.gc_rows_with_own_retention(batch, skip=skip, after=scan.after)
        return self._statements.gc(
            *self._retention.seconds, batch, skip=skip, after=scan.after, min_age=scan.retention_seconds
        )


def make_retention_scans(retentions: Iterable[Retention]) -> list[RetentionScan]:
    """One scan for each of the retentions that differ, the shortest first, and one over rows with their own keep."""
    ages = {seconds for retention in retentions for seconds in retention.seconds if seconds is not None}
    return [*(RetentionScan(seconds) for seconds in sorted(ages)), RetentionScan(None)]
