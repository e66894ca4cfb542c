"""ThreadPool for `def` steps.

In: a function. Out: futures of the running loop. The threads are daemons: the interpreter joins the threads of
`concurrent.futures` when it exits, so that a long step would keep a drained worker from leaving; its row is left to
its lease instead.
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
    """At most `size` threads, made when they are needed."""

    __slots__ = ("_idle", "_jobs", "_lock", "_size", "_started")

    def __init__(self, size: int) -> None:
        self._size = size
        self._started = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self, function: Callable[[], Any]) -> tuple[asyncio.Future[Any], asyncio.Future[Any]]:
        """Call a function in a thread: a future of its beginning, and one of its answer.

        A function that has begun is not stopped by cancelling; its answer is dropped. One that has not is not begun.
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
            except BaseException as raised:  # whatever a step raises is told on the loop
                result, error = None, raised
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_answer, done, result, error)

        with self._lock:
            if self._idle <= 0 and self._started < self._size:  # below zero: so many wait already
                self._started += 1
                threading.Thread(target=self._serve, name="gen_durable step", daemon=True).start()
            else:
                self._idle -= 1
        self._jobs.put(work)
        return begun, done

    def close(self) -> None:
        """Let idle threads end, and busy ones when they are done."""
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
        # GeneratorExit thrown into a waiting coroutine would close it, and SystemExit or a cancellation mean the step.
        future.set_exception(StepCancelled(f"the step raised {describe(error)}, which does not end a worker"))
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"the step raised {error!r}"))  # a future cannot hold StopIteration
    else:
        future.set_exception(error)
