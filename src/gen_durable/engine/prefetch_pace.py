"""The pace of a queue: how long its steps take and how many end per second. Decides how many rows to claim ahead.

Two measures, of which the slower counts. The length of steps follows each step that ends, and the time since the last
one ended: a queue whose steps have become long stops claiming ahead before the first long step has ended. The rate is
counted over a window of WINDOW_SECONDS in which the buffer never ran empty: it is what the worker and its database
really reach. A claim that runs several steps keeps those behind it waiting for all of them. Pure: the caller passes
the time.
"""

from __future__ import annotations

from typing import Final

AHEAD_SECONDS: Final = 0.04  # claim ahead what starts within this time
MAX_AHEAD: Final = 1000
WINDOW_SECONDS: Final = 0.1
WEIGHT: Final = 1 / 8  # of the newest step in the mean
UNKNOWN: Final = float("inf")


class QueuePace:
    """The pace of one queue of one worker, with `slots` slots."""

    __slots__ = (
        "_continued",
        "_ended_at",
        "_is_stalled",
        "_mean",
        "_ran_empty",
        "_rate",
        "_slots",
        "_steps",
        "_steps_per_claim",
        "_window_began",
        "seconds_per_start",
    )

    def __init__(self, slots: int, now: float) -> None:
        self._slots = slots
        self._mean = UNKNOWN  # seconds
        self._ended_at = now
        self._rate = UNKNOWN  # steps per second
        self._steps_per_claim = 1.0
        self._steps = 0  # in this window
        self._continued = 0  # those of them after which their claim went on
        self._window_began = now
        self._ran_empty = False
        self._is_stalled = False
        # How much later than the row before it a row of the buffer is expected to start, as of the last
        # `count_rows_to_claim_ahead`.
        self.seconds_per_start = 0.0

    def record_step_end(self, seconds: float, now: float) -> None:
        mean = self._mean
        self._mean = seconds if mean == UNKNOWN else mean + (seconds - mean) * WEIGHT
        self._ended_at = now
        self._steps += 1
        self._is_stalled = False

    def record_claim_continues(self) -> None:
        """The step that has just ended was not the last of its claim."""
        self._continued += 1

    def record_empty_buffer(self) -> None:
        """A slot is free and no row waits for it, so the rate of this window is that of the work, not of the worker."""
        self._ran_empty = True

    def stop_claiming_ahead(self) -> None:
        """Rows that were claimed ahead did not start in time: claim none ahead until a step ends."""
        self._is_stalled = True

    def count_rows_to_claim_ahead(self, now: float, *, is_busy: bool) -> int:
        """How many rows to claim ahead now. `is_busy`: every slot is taken, so no step has ended since the last one."""
        self._start_new_window_if_over(now)
        per_step = 0.0 if self._mean == UNKNOWN else self._mean / self._slots
        self.seconds_per_start = max(per_step, 1 / self._rate) * self._steps_per_claim
        length = max(self._mean, now - self._ended_at) if is_busy else self._mean
        if self._is_stalled or length == UNKNOWN:
            return 0
        rate = min(self._slots / max(length, 1e-6), self._rate)
        return int(min(rate * AHEAD_SECONDS, MAX_AHEAD))

    def _start_new_window_if_over(self, now: float) -> None:
        elapsed = now - self._window_began
        if elapsed < WINDOW_SECONDS:
            return
        self._rate = UNKNOWN if self._ran_empty or not self._steps else self._steps / elapsed
        self._steps_per_claim = max(self._steps / max(self._steps - self._continued, 1), 1.0)
        self._steps, self._continued, self._window_began, self._ran_empty = 0, 0, now, False
