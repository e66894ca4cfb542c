"""Threads for `def` steps and `def` activities.

They are daemon threads. The interpreter joins the threads of `concurrent.futures` when it exits, so a long step would
keep a drained worker from exiting; here its row is left to its lease instead.

A call that timed out keeps its thread until it returns, perhaps for ever. Such a thread is replaced, at most as many
times as the pool has threads; beyond that a call that gets no thread in time is refused, so that its row can run in
another worker (tests/worker/test_hanging_threads.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

from gen_durable.errors import NoFreeThread, StepCancelled
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.stored_exceptions import describe_error

log = get_escaping_logger("gen_durable.worker")
LONGEST_WAIT: Final = 5.0  # seconds that a call waits for a thread while abandoned calls hold too many


class _ThreadCall:
    """A call in a thread. The pool changes `state` under its lock; the futures belong to the loop."""

    __slots__ = ("begun", "done", "function", "loop", "state")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[Any] = self.loop.create_future()
        self.done: asyncio.Future[Any] = self.loop.create_future()
        self.state: Literal["waiting", "withdrawn", "running", "abandoned", "ended"] = "waiting"

    def run(self) -> tuple[object, BaseException | None]:
        self.answer_on_loop(self.begun, None, None)
        try:
            return self.function(), None
        except BaseException as raised:  # reported on the loop, where the step is awaited
            return None, raised

    def answer_on_loop(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is gone
            self.loop.call_soon_threadsafe(_answer_future, future, result, error)


class ThreadPool:
    """At most `size` threads, started on demand, and one more for each that an abandoned call holds, up to `size`."""

    __slots__ = ("_abandoned", "_calls", "_idle", "_lock", "_size", "_started")

    def __init__(self, size: int) -> None:
        self._size = size
        self._started = 0
        self._idle = 0  # below zero: calls that wait for a thread
        self._abandoned = 0
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_ThreadCall | None] = queue.SimpleQueue()

    async def start_call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Start a call in a thread, once one is free. Returns a future of its result. Raises `NoFreeThread`.

        A function that has started runs to its end. If the future is cancelled before, the call is abandoned and its
        result dropped.
        """
        call = _ThreadCall(function)
        with self._lock:
            is_waiting = self._idle <= 0 and not self._try_start_thread()
            if is_waiting or self._idle > 0:
                self._idle -= 1
        self._calls.put(call)
        try:
            if is_waiting:
                await self._wait_until_begun(call)
            else:
                await call.begun
        except asyncio.CancelledError:
            if not self._withdraw_call(call):
                self._abandon_call_and_replace_thread(call)
            raise
        call.done.add_done_callback(
            lambda done: self._abandon_call_and_replace_thread(call) if done.cancelled() else None
        )
        return call.done

    def close(self) -> None:
        """Let idle threads end now, and busy ones after their call."""
        for _ in range(self._started):
            self._calls.put(None)

    async def _wait_until_begun(self, call: _ThreadCall) -> None:
        while not (await asyncio.wait([call.begun], timeout=LONGEST_WAIT))[0]:
            # Without abandoned calls the wait is ordinary: there are fewer threads than slots.
            if self._abandoned > self._size and self._withdraw_call(call):
                raise NoFreeThread(
                    f"no free thread: calls that timed out and have not returned hold {self._abandoned} threads "
                    f"of a worker with threads={self._size}"
                )

    def _withdraw_call(self, call: _ThreadCall) -> bool:
        """Prevent a call that no thread has taken yet. Returns False if one has."""
        with self._lock:
            if call.state != "waiting":
                return False
            call.state = "withdrawn"
            del call.function  # its place in the queue stays until a thread takes it
            return True

    def _abandon_call_and_replace_thread(self, call: _ThreadCall) -> None:
        """The result of a call is not awaited any more: replace its thread."""
        with self._lock:
            if call.state != "running":
                return
            call.state = "abandoned"
            self._abandoned = abandoned = self._abandoned + 1
            if self._idle < 0 and self._try_start_thread():
                self._idle += 1
        if abandoned <= self._size:
            log.warning(
                "abandoned calls hold %d threads, which are replaced, up to %d: a step or an activity timed out and "
                "has not returned; let what it calls time out by itself",
                abandoned,
                self._size,
            )
        elif abandoned == self._size + 1:
            log.error(
                "abandoned calls hold %d threads, and no more are replaced: instances that get no thread are put back",
                abandoned,
            )

    def _try_start_thread(self) -> bool:
        """Start a thread if the pool may have one more. The caller holds the lock."""
        if self._started >= self._max_threads:
            return False
        threading.Thread(target=self._run_calls, name="gen_durable step", daemon=True).start()
        self._started += 1  # not if the system refuses the thread
        return True

    @property
    def _max_threads(self) -> int:
        return self._size + min(self._abandoned, self._size)

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._lock:
                if call.state == "waiting":
                    call.state = "running"
            result, error = (None, None) if call.state == "withdrawn" else call.run()
            with self._lock:
                if call.state == "abandoned":
                    self._abandoned -= 1
                call.state = "ended"
                is_surplus = self._started > self._max_threads
                if is_surplus:
                    self._started -= 1
                else:
                    self._idle += 1  # before the answer, which may free a slot: its claim finds this thread
            call.answer_on_loop(call.done, result, error)
            if is_surplus:
                return
            del call, result, error  # an idle thread keeps no state alive


def _answer_future(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif not isinstance(error, Exception):
        # A GeneratorExit would close the waiting coroutine; SystemExit and cancellation must not reach the worker.
        future.set_exception(StepCancelled(f"the step raised {describe_error(error)}, which does not end a worker"))
    elif isinstance(error, StopIteration):
        # A future cannot hold a StopIteration.
        future.set_exception(RuntimeError(f"the step raised {describe_error(error)}"))
    else:
        future.set_exception(error)
