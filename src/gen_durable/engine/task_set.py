"""The asyncio tasks of one worker: steps under way, and short follow-ups such as the release of a row.

A drain waits for them; the end of a drain cancels what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """Keeps a reference to each task until it is done. Call its methods on the event loop of the worker."""

    __slots__ = ("_loop", "running")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # looked up once: a lookup per claim costs a system call
        self.running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    async def wait_until_empty(self, timeout: float | None = None) -> None:
        """Wait until no task is left, also none that a task has spawned, or until `timeout` seconds have passed."""
        deadline = None if timeout is None else self._loop.time() + timeout
        while self.running:
            left = None if deadline is None else deadline - self._loop.time()
            if left is not None and left <= 0:
                return
            await asyncio.wait(self.running, timeout=left)

    def cancel_all(self) -> None:
        for task in self.running:
            task.cancel()
