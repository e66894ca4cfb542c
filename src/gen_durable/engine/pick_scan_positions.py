"""Where a pick starts to scan for due rows while a long transaction keeps dead index entries in front of them.

As long as picks are fast there are no scan positions, and every pick scans the whole index range. A slow pick reports
where the live rows begin, and later picks start there. Rows that appear below a position (inserted by a long
transaction, scheduled in the past, or returned by a reaper) are found by the next full scan: after a second, or after
twenty times the duration of a full scan, at most five seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from gen_durable.store.types import PickResult

MIN_SECONDS: Final = 1.0
SCAN_FACTOR: Final = 20.0
MAX_SECONDS: Final = 5.0


class PickScanPositions:
    """The scan positions of one picker's queues."""

    __slots__ = ("_full_scan_at", "_heads")

    def __init__(self) -> None:
        self._heads: dict[str, str] = {}
        self._full_scan_at = 0.0

    def to_pick_argument(self, queues: Iterable[str]) -> str | None:
        """The scan positions of these queues as JSON for `pick`; None for a full scan."""
        if not self._heads:
            return None
        if time.monotonic() >= self._full_scan_at:
            self._heads.clear()
            return None
        known = [f'"{queue}":{self._heads[queue]}' for queue in queues if queue in self._heads]
        return "{" + ",".join(known) + "}" if known else None

    def update_from_pick(self, picked: PickResult, sent: str | None, seconds: float) -> None:
        """Take over the scan positions that a pick of this duration reported; `sent` is the parameter it was given."""
        if not picked.scan_positions:
            return
        if sent is None and not self._heads:
            self._full_scan_at = time.monotonic() + min(max(MIN_SECONDS, SCAN_FACTOR * seconds), MAX_SECONDS)
        self._heads.update(picked.scan_positions)

    def seconds_to_full_scan(self, queue: str) -> float | None:
        """None if picks of this queue scan everything already."""
        return max(self._full_scan_at - time.monotonic(), 0.0) if queue in self._heads else None
