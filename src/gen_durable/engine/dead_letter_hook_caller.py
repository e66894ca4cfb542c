"""Calls the user's `on_dead_letter` for instances that the reaper failed because they crashed too often.

The failure is committed before the call. The call is a notification: an error in it is logged, and the calls of a
worker that dies first are not repeated. The row is the record.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from gen_durable.encryption import PayloadEncryption
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.pool import Pool
from gen_durable.printable_text import TextBlock
from gen_durable.store.statements import StatementBuilder
from gen_durable.worker_options import OnDeadLetter

if TYPE_CHECKING:
    from gen_durable.instances import Instance

log = get_escaping_logger("gen_durable.worker")


class DeadLetterHookCaller:
    """Calls the hook in a task of its own, so that a slow hook does not delay the reaper."""

    __slots__ = ("_encryption", "_hook", "_pool", "_statements", "_task", "_threads", "_waiting")

    def __init__(
        self,
        hook: OnDeadLetter,
        pool: Pool,
        statements: StatementBuilder,
        encryption: PayloadEncryption | None,
    ) -> None:
        self._hook = hook
        self._pool = pool
        self._statements = statements
        self._threads = ThreadPool(1)  # its own: a hook that hangs takes no thread from steps, nor they from it
        self._encryption = encryption
        self._waiting: list[int] = []
        self._task: asyncio.Task[None] | None = None

    def enqueue_calls(self, ids: Iterable[int]) -> None:
        """Call the hook for each of these instances."""
        self._waiting += ids
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(
                self._call_hook_for_all_queued(), name="gen_durable dead letters"
            )

    async def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for calls under way, then cancel them."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout)
        self.cancel_calls()

    def cancel_calls(self) -> None:
        self._threads.close()
        if self._task is not None:
            self._task.cancel()

    async def _call_hook_for_all_queued(self) -> None:
        while self._waiting:
            instance_id = self._waiting.pop(0)
            try:
                found = await self._pool.run_idempotent(self._statements.get(instance_id, None))
            except Exception as error:
                log.error("on_dead_letter: instance %d could not be read (%s)", instance_id, type(error).__name__)
                continue
            if found is None:
                log.error("on_dead_letter was not called for instance %d: it has been deleted", instance_id)
                continue
            try:
                await self._call_on_loop_or_in_thread(
                    found if self._encryption is None else self._encryption.decrypt_instance(found)
                )
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # a SystemExit would end the event loop, and with it the worker
                # Traceback and kind only: the hook was given payloads, which the text of its error may quote.
                frames = TextBlock("".join(traceback.format_tb(error.__traceback__)).rstrip())
                log.error("on_dead_letter raised %s for instance %d\n%s", type(error).__name__, instance_id, frames)

    async def _call_on_loop_or_in_thread(self, instance: Instance) -> None:
        """Call an `async def` hook on the loop, a `def` hook in a thread, as with steps."""
        if inspect.iscoroutinefunction(self._hook):
            answer = self._hook(instance)
        else:
            answer = await (await self._threads.start_call(partial(self._hook, instance)))
        if inspect.isawaitable(answer):
            await answer
