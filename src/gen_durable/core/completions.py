"""Ending: waiting for instances to end, for all waiters of a process together.

In: ids that somebody waits for. Out: how each ended. A worker in this process tells at once; for the rest one statement
asks for all ids at a time, more and more rarely while nothing ends. A waiter registers first and then the database is
read, so an end in between is not missed. What was read or run before a waiter came is no answer to it: that may be an
end which was retried since.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Final

from gen_durable.core.background import BackgroundTask
from gen_durable.errors import ConfigError
from gen_durable.instances import Status
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statements
from gen_durable.store.types import FinishedInstance

FIRST_REST: Final = 0.003
LAST_REST: Final = 0.25
BATCH: Final = 5000


class CompletionWatcher(BackgroundTask):
    """Everyone of this process who waits for an instance."""

    def __init__(self, pool: Pool, statements: Statements) -> None:
        super().__init__("watcher")
        self._pool = pool
        self._statements = statements
        self._waiting: dict[int, dict[asyncio.Future[FinishedInstance], float]] = {}  # and since when
        self._new = asyncio.Event()
        self._rest = FIRST_REST

    async def wait(self, instance: int, timeout: float | None) -> FinishedInstance | None:
        """How an instance ended; None when it has not ended in time."""
        future: asyncio.Future[FinishedInstance] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(instance, {})[future] = time.perf_counter()
        self._rest = FIRST_REST
        self._new.set()
        if self._task is None:
            self.start()
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            # The last word is the database's: "has it ended?" with no time to wait is answered truly too.
            for watched in await self._pool.run_safely(self._statements.finished_of([instance])):
                return watched
            return None
        finally:
            self._forget(instance, future)

    async def stop(self) -> None:
        """Stop; whoever still waits is told so."""
        await super().stop()
        for several in self._waiting.values():
            for future in several:
                if not future.done():
                    future.set_exception(ConfigError("this Durable was closed while an instance was waited for"))
        self._waiting.clear()

    def ended(
        self, instance: int, status: Status, result: str | None, error: str | None, at: float = float("inf")
    ) -> None:
        """A worker of this process has committed an end, of a step that returned at `at`."""
        if several := self._waiting.get(instance):
            early = [future for future, since in several.items() if since <= at]
            _answer(early, FinishedInstance(instance, status, result if status is Status.DONE else None, error))
            if len(early) < len(several):
                self._rest = FIRST_REST
                self._new.set()  # the others are to be told by the database, now

    async def turn(self) -> float:
        """Ask for all ids; then rest until somebody new waits, or until it is time to ask again."""
        self._new.clear()
        asked = {instance: list(several) for instance, several in self._waiting.items()}
        ids = list(asked)
        for i in range(0, len(ids), BATCH):
            for watched in await self._pool.run_safely(self._statements.finished_of(ids[i : i + BATCH])):
                _answer(asked[watched.id], watched)
        rest, self._rest = self._rest, min(self._rest * 1.5, LAST_REST)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rest if self._waiting else None):
                await self._new.wait()
        return 0.0

    def _forget(self, instance: int, future: asyncio.Future[FinishedInstance]) -> None:
        several = self._waiting.get(instance)
        if several is not None:
            several.pop(future, None)
            if not several:
                del self._waiting[instance]


def _answer(futures: Iterable[asyncio.Future[FinishedInstance]], watched: FinishedInstance) -> None:
    for future in futures:
        if not future.done():
            future.set_result(watched)
