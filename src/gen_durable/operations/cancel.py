"""Canceller: end an instance and its descendants, whoever runs them.

In: a target and a reason; or word that there are children to be cancelled. Out: rows ended; workers told to stop what
they run. The target comes first, in a transaction of its own; its descendants follow, some at a time. What is still to
be done is listed in the database, so a tree is cancelled to its last leaf whoever dies meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from gen_durable.core.requests import Requests
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable
from gen_durable.store.statements import Statements
from gen_durable.store.types import CancelTarget

log = logging.getLogger("gen_durable.cancel")
BATCH: Final = 1000
FIRST_PAUSE: Final = 0.01
LAST_PAUSE: Final = 0.5
PATIENCE: Final = 10


class Canceller:
    """Cancels for one `Durable`. `own` carries on, in workers too; `ring_all` takes what is to be rung."""

    __slots__ = ("_ask", "_calls", "_own", "_ring_all", "_tasks")

    def __init__(
        self, ask: Requests, own: Requests, calls: Statements, ring_all: Callable[[Iterable[str]], None]
    ) -> None:
        self._ask = ask
        self._own = own
        self._calls = calls
        self._ring_all = ring_all
        self._tasks: dict[int | None, asyncio.Task[None]] = {}

    async def one(
        self, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> tuple[CancelTarget, int, int]:
        """Canceller an instance: what became of it, and how many descendants were ended and asked to stop."""
        call = self._calls.cancel([(instance, key)], reason, cascade=cascade)
        (target,), rings = await self._ask.run(call, "cancel", safe=True)
        self._ring_all(rings)
        ended, asked = await self._carry(target.id) if cascade and target.id is not None else (0, 0)
        return target, ended, asked

    def carry_on(self, origin: int | None) -> None:
        """There are children to be cancelled, of an instance or (None) of any: see to it, in the background."""
        if origin not in self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks[origin] = loop.create_task(self._carry_behind(origin), name="gen_durable cascade")

    async def close(self) -> None:
        """Leave what is not done to others."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_behind(self, origin: int | None) -> None:
        try:
            await self._carry(origin)
        finally:
            del self._tasks[origin]

    async def _carry(self, origin: int | None) -> tuple[int, int]:
        ended = asked = 0
        pause, patience = FIRST_PAUSE, PATIENCE
        try:
            while True:
                done = await self._own.run(self._calls.cascade(BATCH, origin), "cancel", safe=True)
                self._ring_all(done.woken)
                ended, asked = ended + done.ended, asked + done.asked
                if not done.more:
                    return ended, asked
                if done.ended + done.asked > 0:
                    pause, patience = FIRST_PAUSE, PATIENCE
                    continue
                patience -= 1  # the rows that are left are held by others
                if patience == 0:
                    break
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_PAUSE)
        except (DatabaseRefused, DatabaseUnavailable) as error:
            log.warning("a cascade was interrupted (%s)", error)
        log.info("children that could not be cancelled now are left to the workers' next round")
        return ended, asked
