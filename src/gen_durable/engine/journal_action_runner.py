"""Performs the actions that a `StepJournal` asks for: calls activities, and writes checkpoints and activity results.

Each write is one fenced statement, retried until the database has answered, as with outcomes: only the fence decides
whether it counts. An `async def` step performs its actions on the event loop, a `def` step in its own thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar, assert_never

from gen_durable.backoff import GrowingPauses
from gen_durable.encryption import PayloadEncryption
from gen_durable.engine.progress_writer import ProgressWriter
from gen_durable.engine.step_journal import Action, Actions, CallActivity, SleepBeforeRetry, StepJournal
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.errors import InputError, LeaseLost, StepCancelled
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import ConnectionLost, FaultKind, SqlError, classify_error
from gen_durable.pg.pool import Pool
from gen_durable.pg.sqlstate_errors import to_library_error
from gen_durable.store.journal import Fence, JournalStatementBuilder
from gen_durable.store.statements import Statement
from gen_durable.store.types import Claim
from gen_durable.stored_exceptions import describe_error

log = get_escaping_logger("gen_durable.worker")
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0

T = TypeVar("T")


class JournalActionRunner:
    """The journal of one worker's steps."""

    __slots__ = (
        "_encryption",
        "_loop",
        "_pool",
        "_progress",
        "_schema",
        "_statements",
        "_thread",
        "_thread_calls",
        "_threads",
        "installation",
        "report_progress",
    )

    def __init__(
        self,
        pool: Pool,
        schema: str,
        statements: JournalStatementBuilder,
        threads: ThreadPool,
        installation: str,
        *,
        encryption: PayloadEncryption | None = None,
    ) -> None:
        self.installation = installation
        self._pool = pool
        self._schema = schema
        self._statements = statements
        self._encryption = encryption
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._thread_calls: set[concurrent.futures.Future[Any]] = set()
        self._progress = ProgressWriter(pool, statements, encryption)
        self.report_progress = self._progress.report_progress

    def get_or_create_step_journal(self, claim: Claim, seq: int) -> StepJournal:
        """The journal of the claim's current step. Raises `LeaseLost` if the step that began with `seq` has ended."""
        if claim.seq != seq:
            raise LeaseLost(f"instance {claim.id}: the step that writes this has been left")
        journal = claim.step_journal
        if not isinstance(journal, StepJournal):
            fence = Fence(claim.id, claim.epoch, seq)
            claim.step_journal = journal = StepJournal(
                self._statements, fence, claim.journal, visit=claim.visit, encryption=self._encryption
            )
        return journal

    async def run_journal_actions(self, actions: Actions) -> Any:
        """Perform actions on the event loop."""
        try:
            action = next(actions)
            while True:
                try:
                    answer = await self._run_journal_action(action)
                except BaseException as error:  # the generator decides whether to retry
                    action = actions.throw(error)
                else:
                    action = actions.send(answer)
        except StopIteration as end:
            return end.value

    def run_journal_actions_blocking(self, actions: Actions) -> Any:
        """Perform actions in the thread of a `def` step."""
        if threading.get_ident() == self._thread:
            raise InputError("ctx.sync is for `def` steps: in an `async def` step write `await ctx.run(...)`")
        try:
            action = next(actions)
            while True:
                try:
                    answer = self._run_journal_action_blocking(action)
                except BaseException as error:
                    action = actions.throw(error)
                else:
                    action = actions.send(answer)
        except StopIteration as end:
            return end.value

    async def close(self) -> None:
        """Write the last reports of progress, and release threads that wait for an answer."""
        await self._progress.close()
        for future in list(self._thread_calls):
            future.cancel()

    async def _run_journal_action(self, action: Action) -> Any:
        match action:
            case CallActivity(fn, args):
                if inspect.iscoroutinefunction(fn):
                    return await fn(*args)
                call = functools.partial(contextvars.copy_context().run, fn, *args)
                done = await self._threads.start_call(call)
                return await _await_if_needed(await done)
            case SleepBeforeRetry(seconds):
                return await asyncio.sleep(seconds)
            case Statement():
                return await self._write_until_answered(action)
        assert_never(action)

    def _run_journal_action_blocking(self, action: Action) -> Any:
        match action:
            case CallActivity(fn, args):
                answer = fn(*args)
                return self._run_on_loop(_await_converting_exit(answer)) if inspect.isawaitable(answer) else answer
            case SleepBeforeRetry(seconds):
                return time.sleep(seconds)
            case Statement():
                return self._run_on_loop(self._write_until_answered(action))
        assert_never(action)

    async def _write_until_answered(self, statement: Statement[bool]) -> None:
        pauses = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.5)
        while True:
            try:
                if not await self._pool.run(statement):
                    raise LeaseLost(f"instance {statement.args[0]}: the claim was taken over by another worker")
                return
            except ConnectionLost as error:
                cause: Exception = error
            except SqlError as error:
                if classify_error(error) is FaultKind.REFUSED:
                    raise to_library_error(error, "the journal", self._schema) from None
                cause = error
            log.debug("instance %s: its journal cannot be written (%s)", statement.args[0], type(cause).__name__)
            await asyncio.sleep(pauses.next_seconds())

    def _run_on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._thread_calls.add(future)
        try:
            return future.result()
        finally:
            self._thread_calls.discard(future)


async def _await_if_needed(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def _await_converting_exit(answer: Awaitable[Any]) -> Any:
    """Await in a task of its own what an activity returned. A SystemExit in a task would end the event loop."""
    try:
        return await answer
    except (SystemExit, KeyboardInterrupt) as error:
        raise StepCancelled(f"the activity raised {describe_error(error)}, which does not end a worker") from error
