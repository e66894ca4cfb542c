"""How often messages of other processes may make a worker pick. No I/O.

Any login of the database can send messages (SECURITY.md), so a message is a hint and each pick that it causes is
counted: PICKS_PER_SECOND on average, after BURST at once. A pick that finds rows gives some back, so the wake-ups of
real work are not delayed, also if other workers are often faster.
"""

from __future__ import annotations

from typing import Final

PICKS_PER_SECOND: Final = 50.0
BURST: Final = 50.0
PICKS_PER_FIND: Final = 10.0


class WakeupBudget:
    """The picks that messages may still cause, for one worker."""

    __slots__ = ("_credit", "_credited_at", "_next_at")

    def __init__(self, now: float) -> None:
        self._credit = BURST
        self._credited_at = now
        self._next_at = now

    def reserve_pick_time(self, now: float) -> float:
        """When the next pick may run: now, or a moment that all messages until then share."""
        if self._next_at > now:
            return self._next_at
        self._credit = min(BURST, self._credit + (now - self._credited_at) * PICKS_PER_SECOND)
        self._credited_at = now
        self._credit -= 1.0
        if self._credit < 0.0:
            self._next_at = now - self._credit / PICKS_PER_SECOND
            return self._next_at
        return now

    def refill_after_find(self) -> None:
        """A pick has found rows."""
        self._credit = min(BURST, self._credit + PICKS_PER_FIND)
