"""Back-off between attempts: the one place that computes growing pauses."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Final

from gen_durable.durations import Duration
from gen_durable.validation import check_delay

MAX_DOUBLINGS: Final = 60


def backoff(attempt: int, *, base: Duration = 1, cap: Duration = 900, jitter: float = 0.1) -> timedelta:
    """The pause before the next attempt: doubles from `base` up to `cap`, plus up to `jitter` of it.

    By default from a second up to 15 minutes. The 19 pauses of 20 attempts take 2 h 32 min to 2 h 48 min together.
    """
    first, longest = check_delay(base, "backoff(base=)"), check_delay(cap, "backoff(cap=)")
    seconds = min(first * 2.0 ** min(max(attempt, 0), MAX_DOUBLINGS), longest)
    return timedelta(seconds=seconds * (1 + random.uniform(0, jitter)))


class GrowingPauses:
    """Growing pauses for one retry loop: `first` seconds, then twice the last one, up to `longest`.

    With `jitter`, each pause is shortened at random by up to that share of it, so that many clients do not retry in
    step.
    """

    __slots__ = ("_first", "_jitter", "_longest", "_next")

    def __init__(self, first: float, longest: float, *, jitter: float = 0.0) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._next = first

    def next_seconds(self) -> float:
        """The seconds to sleep now; the following call returns up to twice as many."""
        pause = self._next
        self._next = min(pause * 2, self._longest)
        return pause * random.uniform(1 - self._jitter, 1.0) if self._jitter else pause

    def reset(self) -> None:
        """Start again with the first pause, after progress."""
        self._next = self._first
