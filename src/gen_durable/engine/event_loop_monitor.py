"""Measures from another thread how long the worker's event loop has not answered."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable


class EventLoopMonitor:
    """Sends probes to an event loop, one at a time. Create it on the thread of that loop; `measure_lag` from another.

    `report_lag` is called on the loop with the time that a probe took. A measurement counts at most `longest_interval`
    seconds since the last one, so that a process that was stopped and continued does not count as blocked.
    """

    def __init__(self, longest_interval: float, report_lag: Callable[[float], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._longest_interval = longest_interval
        self._report_lag = report_lag
        self._has_answered = True
        self._measured_at = 0.0
        self._blocked_seconds = 0.0

    def measure_lag(self) -> float:
        """How many seconds the loop has not answered; 0 if it has."""
        now = time.monotonic()
        if self._has_answered:
            self._has_answered = False
            self._blocked_seconds = 0.0
            self.call_on_loop(self._record_answer_and_report_lag, now)
        else:
            self._blocked_seconds += min(now - self._measured_at, self._longest_interval)
        self._measured_at = now
        return self._blocked_seconds

    def call_on_loop(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function on the loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is gone
            self._loop.call_soon_threadsafe(function, *arguments)

    def format_loop_stack(self) -> str:
        """Where the thread of the loop is now: lines of code, no values."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, and the only way
        frame = frames.get(self._thread_id)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(its thread has ended)"

    def _record_answer_and_report_lag(self, sent_at: float) -> None:
        self._has_answered = True
        self._report_lag(time.monotonic() - sent_at)
