"""Group commit for clients: calls that come while others are under way share the next transaction.

No timer is involved. A call that finds nothing under way runs at once, in the task of its caller; those that arrive
meanwhile wait for its answer and then go together. So a single caller pays nothing, and many concurrent callers wait
for two commits at most instead of one commit each.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gen_durable.errors import DatabaseUnavailable

Call = TypeVar("Call")
Answer = TypeVar("Answer")
MAX_GROUP: Final = 500
INTERRUPTED: Final = "other code cancelled the task of this call; it may or may not have been executed"


@dataclass(frozen=True, slots=True)
class _WaitingCall(Generic[Call, Answer]):
    """A call, and the future that its caller waits for."""

    call: Call
    answer: asyncio.Future[Answer]


class CallGrouper(ABC, Generic[Call, Answer]):
    """Runs calls of one kind. Each caller gets its own answer or error."""

    def __init__(self) -> None:
        self._waiting: deque[_WaitingCall[Call, Answer]] = deque()
        self._is_running = False
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def run_together(self, calls: Sequence[Call]) -> Sequence[Answer | None]:
        """Run calls in one transaction, without waiting for locks: None for a call that would have to wait.

        An error means that none of them was executed, except `DatabaseUnavailable`.
        """

    @abstractmethod
    async def run_alone(self, call: Call) -> Answer:
        """Run one call in a transaction of its own, which may wait."""

    @abstractmethod
    def may_run_twice(self, call: Call) -> bool:
        """Whether a call may be repeated after a lost answer."""

    async def run(self, call: Call) -> Answer:
        """Run a call, together with others that wait."""
        if self._is_running:
            answer_later: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._waiting.append(_WaitingCall(call, answer_later))
            return await answer_later
        self._is_running = True
        try:
            (answer,) = await self.run_together((call,))
        finally:
            self._run_waiting_calls()
        return await self.run_alone(call) if answer is None else answer

    async def close(self) -> None:
        """Wait for the calls that others wait for."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _run_waiting_calls(self) -> None:
        group: list[_WaitingCall[Call, Answer]] = []
        while self._waiting and len(group) < MAX_GROUP:
            waiting = self._waiting.popleft()
            if not waiting.answer.done():  # else its caller was cancelled
                group.append(waiting)
        if group:
            self._start_task(self._run_group(group))
        else:
            self._is_running = False

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="gen_durable grouped calls")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_group(self, group: list[_WaitingCall[Call, Answer]]) -> None:
        try:
            answers = await self.run_together([waiting.call for waiting in group])
        except DatabaseUnavailable as error:
            for waiting in group:
                if self.may_run_twice(waiting.call):
                    self._start_task(self._run_waiting_call_alone(waiting))
                else:
                    _set_error(waiting, DatabaseUnavailable(str(error)))
        except Exception:
            # One call is refused, and with it the transaction of all: alone each gets its own answer or error.
            for waiting in group:
                self._start_task(self._run_waiting_call_alone(waiting))
        except asyncio.CancelledError:
            for waiting in group:
                _set_error(waiting, DatabaseUnavailable(INTERRUPTED))
            raise
        else:
            for waiting, answer in zip(group, answers, strict=True):
                if answer is None:
                    self._start_task(self._run_waiting_call_alone(waiting))
                elif not waiting.answer.done():
                    waiting.answer.set_result(answer)
        finally:
            self._run_waiting_calls()

    async def _run_waiting_call_alone(self, waiting: _WaitingCall[Call, Answer]) -> None:
        if waiting.answer.done():
            return
        try:
            answer = await self.run_alone(waiting.call)
        except Exception as error:
            _set_error(waiting, error)
        except asyncio.CancelledError:
            _set_error(waiting, DatabaseUnavailable(INTERRUPTED))
            raise
        else:
            if not waiting.answer.done():
                waiting.answer.set_result(answer)


def _set_error(waiting: _WaitingCall[Call, Answer], error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
