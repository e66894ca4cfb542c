"""Runs a statement on batches of rows, past rows that the database refuses.

The statements of reaper and gc find their rows themselves, the oldest first. One row that fails the statement would
therefore fail it for ever. A refused batch is halved until the row is alone; then the row is skipped, and the rest is
tried. The next round tries the row again. Other statements are given their rows; a refused list is halved likewise.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import FaultKind, SqlError, classify_error, describe_for_log, is_caused_by_data

log = get_escaping_logger("gen_durable.worker")
T = TypeVar("T")
MAX_SKIPPED: Final = 100
REPORT_SECONDS: Final = 600.0  # a row that is skipped in each round is logged so often


class SkippingBatchRunner:
    """Runs one statement. `what` names its rows in the log."""

    __slots__ = ("_reported_at", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._reported_at = -REPORT_SECONDS

    async def run_one_batch(self, handle_rows: Callable[[int, int], Awaitable[int]], batch: int) -> bool:
        """Call `handle_rows(size, skip)`, which handles up to `size` rows after the first `skip` and returns how many.

        Returns whether a full batch was handled, so that more rows may wait.
        """
        size, skip = batch, 0
        while True:
            try:
                count = await handle_rows(size, skip)
            except SqlError as error:
                if not _is_refused(error):
                    raise
                if size > 1:
                    size //= 2
                    continue
                if skip == MAX_SKIPPED:
                    raise
                size, skip = batch, skip + 1
                self._report_skipped_row(error)
                continue
            if size == batch or count < size:
                return count == batch

    async def run_on_list(self, rows: list[T], handle_rows: Callable[[list[T]], Awaitable[None]]) -> None:
        """Call `handle_rows` with all rows, or with parts of them that are not refused."""
        try:
            await handle_rows(rows)
        except SqlError as error:
            if not _is_refused(error):
                raise
            if len(rows) == 1:
                return self._report_skipped_row(error)
            middle = len(rows) // 2
            await self.run_on_list(rows[:middle], handle_rows)
            await self.run_on_list(rows[middle:], handle_rows)

    def _report_skipped_row(self, error: SqlError) -> None:
        now = time.monotonic()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            log.error("%s: the database refuses a row (%s); it is skipped", self._what, describe_for_log(error))


def _is_refused(error: SqlError) -> bool:
    return classify_error(error) is FaultKind.REFUSED or is_caused_by_data(error)
