"""Dead letters: tell the host program of instances that were failed because they crashed again and again.

In: ids that this worker's reaper has failed; that is committed. Out: one call of the host's function for each, with its
instance. It is a notification: what it raises is logged, and nobody is told of what a worker has reaped that dies
before it has called. The row is what counts.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from gen_durable.config import OnDeadLetter
from gen_durable.encryption import PayloadEncryption
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.pg.faults import ConnectionLost, SqlError
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statements

if TYPE_CHECKING:
    from gen_durable.instances import Instance

log = logging.getLogger("gen_durable.worker")


class DeadLetters:
    """Statements the host's function, beside the reaper: a slow one does not hold it up."""

    __slots__ = ("_calls", "_pool", "_seal", "_task", "_tell", "_threads", "_waiting")

    def __init__(
        self, tell: OnDeadLetter, pool: Pool, calls: Statements, threads: ThreadPool, seal: PayloadEncryption | None
    ) -> None:
        self._seal = seal
        self._tell = tell
        self._pool = pool
        self._calls = calls
        self._threads = threads
        self._waiting: list[int] = []
        self._task: asyncio.Task[None] | None = None

    def take(self, ids: Iterable[int]) -> None:
        """These were failed just now."""
        self._waiting += ids
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._tell_all(), name="gen_durable dead letters")

    async def close(self, timeout: float) -> None:
        """Wait so long for calls under way."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
        self.halt()

    def halt(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _tell_all(self) -> None:
        while self._waiting:
            number = self._waiting.pop(0)
            try:
                found = await self._pool.run_safely(self._calls.get(number, None))
            except (ConnectionLost, SqlError) as error:
                log.error("on_dead_letter: instance %d could not be read (%s)", number, type(error).__name__)
                continue
            if found is None:
                log.error("on_dead_letter: instance %d was deleted before it could be told of", number)
                continue
            try:
                await self._call(found if self._seal is None else self._seal.instance(found))
            except Exception as error:
                # Where, and its kind: its words may quote a payload, for it was handed one.
                frames = "".join(traceback.format_tb(error.__traceback__))
                log.error("on_dead_letter raised %s for instance %d\n%s", type(error).__name__, number, frames)

    async def _call(self, one: Instance) -> None:
        """A coroutine on the loop, a plain function in a thread, as with steps."""
        if inspect.iscoroutinefunction(self._tell):
            answer = self._tell(one)
        else:
            _, done = self._threads.run(partial(self._tell, one))
            answer = await done
        if inspect.isawaitable(answer):
            await answer
