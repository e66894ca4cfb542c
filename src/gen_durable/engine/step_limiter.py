"""Limits that a step acquires around one call: `async with ctx.limit("stripe", tenant):`.

They use the same slots and tokens as the limits of whole steps: a step inside such a block counts like an executing
row for as long as its claim lives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, TypeVar

from gen_durable.backoff import GrowingPauses
from gen_durable.core.notifier import Notifier
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.errors import GenDurableError, InputError, LeaseLost, UnknownLimit
from gen_durable.limits import Limit
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import AcquireLimitResult

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.25

T = TypeVar("T")


class StepLimiter:
    """Acquires and releases limits for the steps of one worker."""

    __slots__ = ("_loop", "_notifier", "_statement_runner", "_statements")

    def __init__(self, statement_runner: StatementRunner, statements: StatementBuilder, notifier: Notifier) -> None:
        self._statement_runner = statement_runner
        self._statements = statements
        self._notifier = notifier
        self._loop = asyncio.get_running_loop()

    def limit_context(self, instance: int, epoch: int, step_limit: str | None, limit: Limit) -> LimitLease:
        """A context manager that acquires `limit`; `step_limit` is the limit whose slot the step has already."""
        return LimitLease(self, instance, epoch, step_limit, limit)

    async def acquire(self, instance: int, epoch: int, limit: Limit) -> int | None:
        """Wait for a slot or a token. Returns the ticket to release, or None if there is none."""
        pauses = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.5)
        ticket = random.getrandbits(63)  # made here: after a lost answer the database recognises the ticket
        request: asyncio.Task[AcquireLimitResult] | None = None
        has_ticket: bool | None = None  # as last answered
        try:
            while True:
                # Marked safe to repeat: a token taken twice after a lost answer is merely lost.
                statement = self._statements.acquire_step_limit(instance, epoch, limit, ticket)
                request = self._loop.create_task(self._statement_runner.run(statement, "ctx.limit", may_run_twice=True))
                try:
                    answer = await asyncio.shield(request)
                except UnknownLimit:
                    if has_ticket is None:
                        raise
                    return ticket if has_ticket else None  # the limit was removed meanwhile
                has_ticket = answer.has_ticket
                if answer.is_lost:
                    raise LeaseLost(f"instance {instance}: the claim was taken over while it waited for {limit.name!r}")
                if answer.is_granted:
                    if answer.wait_seconds:
                        await asyncio.sleep(answer.wait_seconds)
                    return ticket if answer.has_ticket else None
                pause = pauses.next_seconds()
                await asyncio.sleep(answer.wait_seconds or pause)
        except BaseException:
            if request is not None:
                await asyncio.shield(self._loop.create_task(self._release_once_answered(request, ticket)))
            raise

    async def _release_once_answered(self, request: asyncio.Task[AcquireLimitResult], ticket: int) -> None:
        """Release a ticket after an interrupted wait, once the request that may have granted it is answered."""
        await asyncio.wait([request])
        if request.exception() is None:
            if request.result().has_ticket:
                await self.release(ticket)
        else:
            with suppress(GenDurableError):  # the error of the request is the one that is raised
                await self.release(ticket)

    async def release(self, ticket: int) -> None:
        """Release a ticket, and wake the queues of rows that were unblocked by it."""
        queues = await self._statement_runner.run(
            self._statements.release_step_limit(ticket), "ctx.limit", may_run_twice=True
        )
        self._notifier.wake_queues(queues)

    def run_on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the worker's loop and wait for it, from the thread of a `def` step."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        coroutine.close()
        raise InputError("in an `async def` step write `async with ctx.limit(...)`")


class LimitLease:
    """`async with ctx.limit(...)`; in a `def` step, which has a thread of its own, `with ctx.limit(...)`."""

    __slots__ = ("_epoch", "_instance", "_limit", "_limits", "_step_limit", "_ticket")

    def __init__(self, limits: StepLimiter, instance: int, epoch: int, step_limit: str | None, limit: Limit) -> None:
        self._limits = limits
        self._instance = instance
        self._epoch = epoch
        self._step_limit = step_limit
        self._limit = limit
        self._ticket: int | None = None

    async def __aenter__(self) -> None:
        if self._step_limit != self._limit.key:  # the step has this slot already, and would wait for itself
            self._ticket = await self._limits.acquire(self._instance, self._epoch, self._limit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            await asyncio.shield(self._limits.release(ticket))

    def __enter__(self) -> None:
        self._limits.run_on_loop(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.run_on_loop(self.__aexit__(kind, error, trace))
