"""ScanFloors: where to begin looking for due rows, while a long transaction holds dead index entries in front of them.

In: answers of picks, and how long they took. Out: what to send with the next pick. As long as picks are quick there are
no floors, and every pick looks at everything. A slow one tells where the live rows begin; the picks after it begin
there. Rows that come in below (their transaction was long, their time was set in the past, their worker died) are found
by the next full look: after a second, or twenty times as long as a full look takes, at most five seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from gen_durable.store.types import Picked

REST: Final = 1.0
SHARE: Final = 20.0
LONGEST: Final = 5.0


class ScanFloors:
    """The floors of one picker's queues."""

    __slots__ = ("_full_at", "_heads")

    def __init__(self) -> None:
        self._heads: dict[str, str] = {}
        self._full_at = 0.0

    def of(self, queues: Iterable[str]) -> str | None:
        """What to send with a pick of these queues; None: look at everything."""
        if not self._heads:
            return None
        if time.monotonic() >= self._full_at:
            self._heads.clear()
            return None
        known = [f'"{queue}":{self._heads[queue]}' for queue in queues if queue in self._heads]
        return "{" + ",".join(known) + "}" if known else None

    def note(self, picked: Picked, sent: str | None, took: float) -> None:
        """A pick was answered, after so many seconds."""
        if not picked.heads:
            return
        if sent is None and not self._heads:
            self._full_at = time.monotonic() + min(max(REST, SHARE * took), LONGEST)
        self._heads.update(picked.heads)

    def full_in(self, queue: str) -> float | None:
        """Seconds until a queue is looked at in full again; None: it always is."""
        return max(self._full_at - time.monotonic(), 0.0) if queue in self._heads else None
