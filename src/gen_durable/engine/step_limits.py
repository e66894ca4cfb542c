"""StepLimits: limits that a step asks for from inside, around one call.

In: `ctx.limit("stripe", tenant)`. Out: a context manager that waits for a slot or a token, and gives the slot back. The
same slots and tokens as those of whole steps: who has entered counts like an executing row, as long as its claim lives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, TypeVar

from gen_durable.core.requests import Requests
from gen_durable.errors import GenDurableError, InputError, LeaseLost, UnknownLimit
from gen_durable.limits import Limit
from gen_durable.store.statements import Statements
from gen_durable.store.types import LimitAnswer

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.25

T = TypeVar("T")


class StepLimits:
    """The way into limits, for the steps of one worker."""

    __slots__ = ("_ask", "_calls", "_loop", "_ring_all")

    def __init__(self, ask: Requests, calls: Statements, ring_all: Callable[[Iterable[str]], None]) -> None:
        self._ask = ask
        self._calls = calls
        self._ring_all = ring_all
        self._loop = asyncio.get_running_loop()

    def door(self, instance: int, claim: int, held: str | None, limit: Limit) -> LimitLease:
        """A way into a limit for a claim. `held`: the slot that its step has already."""
        return LimitLease(self, instance, claim, held, limit)

    async def enter(self, instance: int, claim: int, limit: Limit) -> int | None:
        """Wait until the claim may go on; returns a ticket, if there is one to give back."""
        pause = FIRST_PAUSE
        ticket = random.getrandbits(63)  # ours: a place in the line is known again after a lost answer
        asking: asyncio.Task[LimitAnswer] | None = None
        held: bool | None = None  # what was told last; None: nothing yet
        try:
            while True:
                # A token that is taken twice after a lost answer is lost.
                call = self._calls.acquire_limit(instance, claim, limit, ticket)
                asking = self._loop.create_task(self._ask.run(call, "ctx.limit", safe=True))
                try:
                    told = await asyncio.shield(asking)
                except UnknownLimit:
                    if held is None:
                        raise
                    return ticket if held else None  # it was removed meanwhile, and holds nobody
                held = told.held
                if told.lost:
                    raise LeaseLost(f"instance {instance}: the claim was taken over while it waited for {limit.name!r}")
                if told.may:
                    if told.seconds:
                        await asyncio.sleep(told.seconds)
                    return ticket if told.held else None
                await asyncio.sleep(told.seconds or pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE)
        except BaseException:
            if asking is not None:
                await asyncio.shield(self._loop.create_task(self._give_up(asking, ticket)))
            raise

    async def _give_up(self, asking: asyncio.Task[LimitAnswer], ticket: int) -> None:
        """Give a ticket back although the answer was not waited for: it may still be coming."""
        await asyncio.wait([asking])
        if asking.exception() is None:
            if asking.result().held:
                await self.leave(ticket)
        else:
            with suppress(GenDurableError):  # what went wrong with asking is told
                await self.leave(ticket)

    async def leave(self, ticket: int) -> None:
        """Give back a ticket: the next may enter."""
        woken = await self._ask.run(self._calls.release_limit(ticket), "ctx.limit", safe=True)
        self._ring_all(woken)

    def from_thread(self, asked: Coroutine[Any, Any, T]) -> T:
        """Run in the worker's loop what a step in a thread asks for."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        asked.close()
        raise InputError("in an `async def` step write `async with ctx.limit(...)`")


class LimitLease:
    """`async with ctx.limit(...)`; in a `def` step, which has a thread of its own, `with ctx.limit(...)`."""

    __slots__ = ("_claim", "_doors", "_held", "_instance", "_limit", "_ticket")

    def __init__(self, doors: StepLimits, instance: int, claim: int, held: str | None, limit: Limit) -> None:
        self._doors = doors
        self._instance = instance
        self._claim = claim
        self._held = held
        self._limit = limit
        self._ticket: int | None = None

    async def __aenter__(self) -> None:
        if self._held != self._limit.key:  # else the step has the slot already, and would wait for itself
            self._ticket = await self._doors.enter(self._instance, self._claim, self._limit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            await asyncio.shield(self._doors.leave(ticket))

    def __enter__(self) -> None:
        self._doors.from_thread(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._doors.from_thread(self.__aexit__(kind, error, trace))
