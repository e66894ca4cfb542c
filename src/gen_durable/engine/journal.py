"""JournalWriter: writes down what the steps of a worker keep in their journal.

In: the moves of `StepJournal`, and reports of progress. Out: writes, one round trip each, tried again until the
database has
answered, as it is with outcomes: only the fence decides whether one counts. Reports of progress are the exception: they
are gathered, the last word for a step counts, and what fails is dropped. Nobody waits for one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import logging
import random
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar, assert_never

from gen_durable.codec import encode
from gen_durable.encryption import PayloadEncryption
from gen_durable.engine.activities import Invoke, Move, Moves, Pause, StepJournal
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.errors import InputError, LeaseLost
from gen_durable.pg.faults import ConnectionLost, Fault, SqlError, classify
from gen_durable.pg.pool import Pool
from gen_durable.pg.sqlstate import to_error
from gen_durable.store.journal import Fence, JournalCalls, Report
from gen_durable.store.statements import Statement
from gen_durable.store.types import Claim
from gen_durable.validation import clean_error

log = logging.getLogger("gen_durable.worker")
MAX_PAUSE: Final = 1.0
REST: Final = 0.05
BATCH: Final = 500
CLOSING: Final = 1.0

T = TypeVar("T")


class JournalWriter:
    """The journal of one worker's steps."""

    __slots__ = (
        "_asked",
        "_calls",
        "_loop",
        "_pool",
        "_reports",
        "_schema",
        "_seal",
        "_thread",
        "_threads",
        "_writer",
        "installation",
    )

    def __init__(
        self,
        pool: Pool,
        schema: str,
        calls: JournalCalls,
        threads: ThreadPool,
        installation: str,
        *,
        seal: PayloadEncryption | None = None,
    ) -> None:
        self.installation = installation
        self._pool = pool
        self._schema = schema
        self._calls = calls
        self._seal = seal
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._reports: dict[tuple[int, int, str, str], Report] = {}
        self._writer: asyncio.Task[None] | None = None
        self._asked: set[concurrent.futures.Future[Any]] = set()

    def notes(self, claim: Claim, seq: int) -> StepJournal:
        """The notes of a claim's step; `seq` is the one that the step was begun with."""
        if claim.seq != seq:
            raise LeaseLost(f"instance {claim.id}: the step that writes this has been left")
        notes = claim.notes
        if not isinstance(notes, StepJournal):
            fence = Fence(claim.id, claim.epoch, seq)
            claim.notes = notes = StepJournal(self._calls, fence, claim.journal, visit=claim.visit, seal=self._seal)
        return notes

    async def make(self, moves: Moves) -> Any:
        """Make moves on the loop."""
        try:
            move = next(moves)
            while True:
                try:
                    answer = await self._do(move)
                except BaseException as error:  # it is the moves' to deal with
                    move = moves.throw(error)
                else:
                    move = moves.send(answer)
        except StopIteration as end:
            return end.value

    def make_in_thread(self, moves: Moves) -> Any:
        """Make moves in the thread of a `def` step."""
        if threading.get_ident() == self._thread:
            moves.close()
            raise InputError("ctx.sync is for `def` steps: in an `async def` step write `await ctx.run(...)`")
        try:
            move = next(moves)
            while True:
                try:
                    answer = self._do_in_thread(move)
                except BaseException as error:
                    move = moves.throw(error)
                else:
                    move = moves.send(answer)
        except StopIteration as end:
            return end.value

    async def _do(self, move: Move) -> Any:
        match move:
            case Invoke(fn, args):
                if inspect.iscoroutinefunction(fn):
                    return await fn(*args)
                call = functools.partial(contextvars.copy_context().run, fn, *args)
                begun, done = self._threads.run(call)
                await begun
                return await _awaited(await done)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Statement():
                return await self._write(move)
        assert_never(move)

    def _do_in_thread(self, move: Move) -> Any:
        match move:
            case Invoke(fn, args):
                answer = fn(*args)
                return self._from_thread(_awaited(answer)) if inspect.isawaitable(answer) else answer
            case Pause(seconds):
                return time.sleep(seconds)
            case Statement():
                return self._from_thread(self._write(move))
        assert_never(move)

    async def _write(self, call: Statement[bool]) -> None:
        pause = 0.01
        while True:
            try:
                if not await self._pool.run(call):
                    raise LeaseLost(f"instance {call.args[0]}: the claim was taken over by another worker")
                return
            except ConnectionLost as error:
                told: Exception = error
            except SqlError as error:
                if classify(error) is Fault.REFUSED:
                    raise to_error(error, "the journal", self._schema) from None
                told = error
            log.debug("the journal of instance %s cannot be written now (%s)", call.args[0], type(told).__name__)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, MAX_PAUSE)

    def _from_thread(self, asked: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        self._asked.add(future)
        try:
            return future.result()
        finally:
            self._asked.discard(future)

    def report(
        self,
        instance: int,
        claim: int,
        step: str,
        *,
        branch: str,
        fraction: float | None,
        message: str | None,
        detail: object,
    ) -> None:
        """Take a report of progress, from any thread. Whatever is wrong with it does not touch the step."""
        try:
            raw = None if detail is None else encode(detail, "the detail of a progress").decode()
            share = None if fraction is None else float(fraction)
            words = None if message is None else clean_error(str(message))
            if self._seal is not None:
                raw = None if raw is None else self._seal.close(raw, instance, "progress/detail")
                words = None if words is None else self._seal.close_text(words, instance, "progress/message")
            self._reports[instance, claim, step, str(branch)] = Report(
                instance, claim, step, clean_error(str(branch)), share, words, raw
            )
            if threading.get_ident() == self._thread:
                self._begin()
            else:
                self._loop.call_soon_threadsafe(self._begin)
        except Exception as error:
            log.warning("instance %d: a report of progress was dropped (%s)", instance, type(error).__name__)

    def _begin(self) -> None:
        if self._writer is None:
            self._writer = self._loop.create_task(self._tell(), name="gen_durable progress")

    async def _tell(self) -> None:
        try:
            while self._reports:
                keys = sorted(self._reports.copy())[:BATCH]
                batch = [self._reports.pop(key) for key in keys]
                try:
                    locked = await self._pool.run(self._calls.report(batch))
                    for key, report in zip(keys, batch, strict=True):
                        if report.id in locked:
                            self._reports.setdefault(key, report)  # unless there is a newer word
                except Exception as error:  # whatever it is: no step may notice
                    log.debug("%d reports of progress were dropped (%s)", len(batch), type(error).__name__)
                await asyncio.sleep(REST)
        finally:
            self._writer = None

    async def close(self) -> None:
        """Write the last reports, if that is quick, and let go of threads that wait for an answer."""
        writer = self._writer
        if writer is not None:
            await asyncio.wait([writer], timeout=CLOSING)
            writer.cancel()
        for future in list(self._asked):
            future.cancel()


async def _awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
