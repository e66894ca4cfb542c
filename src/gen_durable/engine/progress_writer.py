"""Writes reports of progress (`ctx.progress`) in batches.

Reports are best effort: the last one of a step wins, a report that the database refuses is dropped, and so is a batch
that meets another error; no step waits for one.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final, TypeAlias

from gen_durable.encryption import PayloadEncryption
from gen_durable.engine.skipping_batch_runner import SkippingBatchRunner
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.json_codec import encode_json
from gen_durable.pg.pool import Pool
from gen_durable.store.journal import JournalStatementBuilder, ProgressReport
from gen_durable.validation import to_storable_error

log = get_escaping_logger("gen_durable.worker")
BATCH_PAUSE: Final = 0.05
BATCH: Final = 500
BATCH_BYTES: Final = 16_000_000  # of payloads in one statement; a larger report goes alone
CLOSE_SECONDS: Final = 1.0
_Key: TypeAlias = tuple[int, int, str, str]


class ProgressWriter:
    """The progress of one worker's steps."""

    __slots__ = ("_encryption", "_loop", "_pool", "_reports", "_runner", "_statements", "_task", "_thread")

    def __init__(self, pool: Pool, statements: JournalStatementBuilder, encryption: PayloadEncryption | None) -> None:
        self._pool = pool
        self._statements = statements
        self._encryption = encryption
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._reports: dict[_Key, ProgressReport] = {}
        self._runner = SkippingBatchRunner("progress")
        self._task: asyncio.Task[None] | None = None

    def report_progress(
        self,
        instance: int,
        epoch: int,
        step: str,
        *,
        branch: str,
        fraction: float | None,
        message: str | None,
        detail: object,
    ) -> None:
        """Queue a report, from any thread. An invalid report is logged and dropped; the step continues."""
        try:
            raw = None if detail is None else encode_json(detail, "the detail of a progress").decode()
            share = None if fraction is None else float(fraction)
            text = None if message is None else to_storable_error(str(message))
            if self._encryption is not None:
                raw = None if raw is None else self._encryption.encrypt(raw, instance, "progress/detail")
                text = (
                    None if text is None else self._encryption.encrypt_text_or_drop(text, instance, "progress/message")
                )
            self._reports[instance, epoch, step, str(branch)] = ProgressReport(
                instance, epoch, step, to_storable_error(str(branch)), share, text, raw
            )
            if threading.get_ident() == self._thread:
                self._start_writing()
            else:
                self._loop.call_soon_threadsafe(self._start_writing)
        except Exception as error:
            log.warning("instance %d: a report of progress was dropped (%s)", instance, type(error).__name__)

    async def close(self) -> None:
        """Write the last reports if that takes at most `CLOSE_SECONDS`."""
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=CLOSE_SECONDS)
            task.cancel()

    def _start_writing(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._write_all(), name="gen_durable progress")

    async def _write_all(self) -> None:
        while self._reports:
            batch = self._take_batch()
            try:
                await self._runner.run_on_list(batch, self._write_batch)
            except Exception as error:  # of any kind: progress must not disturb a step
                log.debug("%d reports of progress were dropped (%s)", len(batch), type(error).__name__)
            await asyncio.sleep(BATCH_PAUSE)

    def _take_batch(self) -> list[tuple[_Key, ProgressReport]]:
        """The reports of the first instances, in the order of ids, as many as one statement takes."""
        batch: list[tuple[_Key, ProgressReport]] = []
        size = 0
        for key in sorted(self._reports.copy())[:BATCH]:
            report = self._reports[key]
            size += len(report.detail or "") + len(report.message or "")
            if size > BATCH_BYTES and batch:
                break
            batch.append((key, self._reports.pop(key)))
        return batch

    async def _write_batch(self, batch: list[tuple[_Key, ProgressReport]]) -> None:
        locked = await self._pool.run(self._statements.record_progress([report for _, report in batch]))
        for key, report in batch:
            if report.id in locked:
                self._reports.setdefault(key, report)  # again, unless a newer report has arrived
