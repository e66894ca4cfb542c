"""How many rows that crashed twice in a row this worker runs together.

One of them may be what kills its process. They start with one at a time; each outcome doubles the number, and a crash
ends the process and so begins with one again. A row that the next crash would fail runs without others of them, so that
none fails for another's crash. pick.sql keeps them apart from the queue (gate_of_crashed_row.sql).
"""

from __future__ import annotations

from typing import Final

from gen_durable.store.types import Claim

MIN_CRASHES: Final = 2  # as in gate_of_crashed_row.sql
MAX_TOGETHER: Final = 1024


class CrashedRowSlots:
    """Counts the claims of one worker whose rows crashed twice in a row."""

    __slots__ = ("_max_crashes", "_running", "_together")

    def __init__(self, max_crashes: int | None) -> None:
        self._max_crashes = max_crashes
        self._together = 1
        self._running: dict[int, Claim] = {}

    @property
    def free_count(self) -> int:
        """How many more of them may start."""
        if any(self._would_fail_at_next_crash(claim) for claim in self._running.values()):
            return 0
        return max(self._together - len(self._running), 0)

    @property
    def is_idle(self) -> bool:
        """None of them runs, so one that the next crash would fail may start."""
        return not self._running

    def add_claim(self, claim: Claim) -> None:
        self._running[claim.id] = claim

    def remove_claim(self, claim: Claim) -> None:
        if self._running.get(claim.id) is claim:
            del self._running[claim.id]

    def raise_concurrency(self) -> None:
        """One of them has an outcome: more of them may run together."""
        self._together = min(self._together * 2, MAX_TOGETHER)

    def reset_concurrency(self) -> None:
        """One of them crashed in another process: start with one again."""
        self._together = 1

    def _would_fail_at_next_crash(self, claim: Claim) -> bool:
        return self._max_crashes is not None and claim.crashes + 1 >= self._max_crashes
