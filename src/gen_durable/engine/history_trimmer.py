"""Trims the histories of instances that have made many outcomes, so that an instance without an end has a bounded one.

The claim runner adds an instance at every hundredth of its outcomes: no table is searched for long histories. What a
worker that dies has not trimmed is trimmed a hundred outcomes later.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from gen_durable.core.background_task import BackgroundTask
from gen_durable.engine.skipping_batch_runner import SkippingBatchRunner
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.journal import JournalStatementBuilder

TRIM_EVERY: Final = 100  # outcomes of an instance
TRIM_REMAINDER: Final = 99  # not 0: that is the first outcome of every instance
PAUSE: Final = 1.0
MAX_INSTANCES: Final = 100  # in one statement
BATCH: Final = 10_000  # rows that one statement deletes


class HistoryTrimmer(BackgroundTask):
    """Trims the histories of the instances that one worker runs."""

    def __init__(self, connection: PersistentConnection, statements: JournalStatementBuilder) -> None:
        super().__init__("history trimmer")
        self._connection = connection
        self._statements = statements
        self._lengths: dict[int, int] = {}
        self._added = asyncio.Event()
        self._runner = SkippingBatchRunner("history trimmer")

    def request_trim(self, instance: int, seq: int, length: int | None) -> None:
        """Trim the history of an instance soon if it has made `seq` outcomes, more than `length`."""
        if length is not None and seq > length:
            self._lengths[instance] = length
            self._added.set()

    async def run_once(self) -> float:
        """Wait for an instance, and trim those that were added."""
        await self._added.wait()
        while self._lengths:
            instances = list(islice(self._lengths, MAX_INSTANCES))
            await self._runner.run_on_list(instances, self._trim_histories)
            for instance in instances:
                self._lengths.pop(instance, None)
        self._added.clear()
        return PAUSE

    async def _trim_histories(self, instances: list[int]) -> None:
        lengths: dict[int, int] = {instance: self._lengths[instance] for instance in instances}
        while lengths:
            unfinished = await self._connection.run(self._statements.trim_history(lengths, BATCH))
            lengths = {instance: lengths[instance] for instance in unfinished}
