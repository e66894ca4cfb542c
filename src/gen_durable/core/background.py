"""The one shape of every background task: `start`, `stop`, and one `turn` that tests call directly.

In: a turn and how long to rest after it. Out: turns until stopped; a turn that fails is logged once and tried again,
with longer and longer rests, for ever: no outage of the database ends a loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod

from gen_durable.pg.faults import ConnectionLost, loggable

log = logging.getLogger("gen_durable.worker")
MAX_REST = 1.0  # an outage that ends is noticed within a second


class BackgroundTask(ABC):
    """A background task that takes turns."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._failures = 0

    @abstractmethod
    async def turn(self) -> float:
        """Do what is to be done now; returns how many seconds to rest."""

    def start(self) -> None:
        """Begin taking turns."""
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"gen_durable {self._name}")

    async def stop(self) -> None:
        """Stop, interrupting a rest or a statement under way."""
        self._stopping = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while not self._stopping:
            try:
                rest = await self.turn()
                if self._failures:
                    log.info("%s works again", self._name)
                self._failures = 0
            except Exception as error:
                rest = self._failed(error)
            await asyncio.sleep(rest)

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        if self._failures == 1:
            if isinstance(error, ConnectionLost):
                log.warning("%s: the database is not reachable (%s); trying again", self._name, error)
            else:
                # Its kind alone: the words of a server's error may quote a row.
                log.warning("%s failed (%s); trying again", self._name, loggable(error))
        return min(0.05 * 2.0 ** min(self._failures, 12), MAX_REST) * random.uniform(0.5, 1.0)
