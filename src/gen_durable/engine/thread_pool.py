"""Threads for `def` steps.

They are daemon threads. The interpreter joins the threads of `concurrent.futures` when it exits, so a long step would
keep a drained worker from exiting; here its row is left to its lease instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from gen_durable.errors import StepCancelled
from gen_durable.outcomes import describe


class ThreadPool:
    """At most `size` threads, started on demand."""

    __slots__ = ("_idle", "_jobs", "_lock", "_size", "_started")

    def __init__(self, size: int) -> None:
        self._size = size
        self._started = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self, function: Callable[[], Any]) -> tuple[asyncio.Future[Any], asyncio.Future[Any]]:
        """Call a function in a thread. Returns two futures: one of its start, one of its result.

        Cancelling the first before the start prevents the call. A function that has started runs to its end; if the
        second future is cancelled its result is dropped.
        """
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[Any] = loop.create_future()
        done: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            if begun.cancelled():
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is gone
                loop.call_soon_threadsafe(_answer, begun, None, None)
            try:
                result, error = function(), None
            except BaseException as raised:  # reported on the loop, where the step is awaited
                result, error = None, raised
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_answer, done, result, error)

        with self._lock:
            if self._idle <= 0 and self._started < self._size:  # below zero: calls that wait for a thread
                self._started += 1
                threading.Thread(target=self._serve, name="gen_durable step", daemon=True).start()
            else:
                self._idle -= 1
        self._jobs.put(work)
        return begun, done

    def close(self) -> None:
        """Let idle threads end now, and busy ones after their call."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (work := self._jobs.get()) is not None:
            work()
            with self._lock:
                self._idle += 1


def _answer(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif not isinstance(error, Exception):
        # A GeneratorExit would close the waiting coroutine; SystemExit and cancellation must not reach the worker.
        future.set_exception(StepCancelled(f"the step raised {describe(error)}, which does not end a worker"))
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"the step raised {error!r}"))  # a future cannot hold StopIteration
    else:
        future.set_exception(error)
