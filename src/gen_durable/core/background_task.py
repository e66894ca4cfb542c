"""The one shape of every background task: `start`, `stop`, and a `run_once` that tests call directly.

A run that fails is logged once and repeated with growing pauses, for ever: no outage of the database ends a task.
One that other code has cancelled starts again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from gen_durable.backoff import GrowingPauses
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import ConnectionLost, describe_for_log

log = get_escaping_logger("gen_durable.worker")
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0  # the end of an outage is noticed within a second
# Not at once: an event loop that ends cancels every task, and would wait for a new one in vain.
RESTART_SECONDS: Final = 1.0


class BackgroundTask(ABC):
    """A task that calls `run_once` until it is stopped."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._is_failing = False
        self._pauses = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.5)

    @abstractmethod
    async def run_once(self) -> float:
        """Do the work that is due. Returns the seconds to pause before the next call."""

    def start(self) -> None:
        """Begin to call `run_once`."""
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._run_until_stopped(), name=f"gen_durable {self._name}")
        self._task.add_done_callback(self._schedule_restart_if_cancelled)

    async def stop(self) -> None:
        """Stop, interrupting a pause or a statement under way."""
        self._stopping = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def stop_soon(self) -> None:
        """Stop without waiting for it."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    def _schedule_restart_if_cancelled(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and not self._stopping:
            task.get_loop().call_later(RESTART_SECONDS, self._restart_after_cancellation, task)

    def _restart_after_cancellation(self, cancelled: asyncio.Task[None]) -> None:
        if self._task is cancelled and not self._stopping:
            log.warning("%s was cancelled by other code and starts again", self._name)
            self.start()

    async def _run_until_stopped(self) -> None:
        while not self._stopping:
            try:
                pause = await self.run_once()
                if self._is_failing:
                    log.info("%s works again", self._name)
                    self._is_failing = False
                    self._pauses.reset()
            except Exception as error:
                self._report_failure(error)
                pause = self._pauses.next_seconds()
            await asyncio.sleep(pause)

    def _report_failure(self, error: Exception) -> None:
        if self._is_failing:
            return
        self._is_failing = True
        if isinstance(error, ConnectionLost):
            log.warning("%s: %s; trying again", self._name, error.problem.removesuffix("."))
        else:
            # Not the error's text: a server's error may quote a row.
            log.warning("%s failed (%s); trying again", self._name, describe_for_log(error))
