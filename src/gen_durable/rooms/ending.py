"""Ending: waiting for instances to end, for all waiters of a process together.

In: ids that somebody waits for. Out: how each ended. A worker in this process tells at once; for the rest one statement
asks for all ids at a time, more and more rarely while nothing ends. A waiter registers first and then the database is
read, so an end in between is not missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from gen_durable.errors import ConfigError
from gen_durable.instances import Status
from gen_durable.pg.pool import Pool
from gen_durable.rooms.loop import Loop
from gen_durable.store.calls import Calls
from gen_durable.store.rows import Watched

FIRST_REST: Final = 0.003
LAST_REST: Final = 0.25
BATCH: Final = 5000


class Endings(Loop):
    """Everyone of this process who waits for an instance."""

    def __init__(self, pool: Pool, calls: Calls) -> None:
        super().__init__("watcher")
        self._pool = pool
        self._calls = calls
        self._waiting: dict[int, list[asyncio.Future[Watched]]] = {}
        self._new = asyncio.Event()
        self._rest = FIRST_REST

    async def of(self, instance: int, timeout: float | None) -> Watched | None:
        """How an instance ended; None when it has not ended in time."""
        future: asyncio.Future[Watched] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(instance, []).append(future)
        self._rest = FIRST_REST
        self._new.set()
        if self._task is None:
            self.start()
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            # The last word is the database's: "has it ended?" with no time to wait is answered truly too.
            for watched in await self._pool.run_safely(self._calls.watch([instance])):
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

    def ended(self, instance: int, status: Status, result: str | None, error: str | None) -> None:
        """A worker of this process has committed an end."""
        if instance in self._waiting:
            self._answer(Watched(instance, status, result if status is Status.DONE else None, error))

    async def turn(self) -> float:
        """Ask for all ids; then rest until somebody new waits, or until it is time to ask again."""
        self._new.clear()
        ids = list(self._waiting)
        for i in range(0, len(ids), BATCH):
            for watched in await self._pool.run_safely(self._calls.watch(ids[i : i + BATCH])):
                self._answer(watched)
        rest, self._rest = self._rest, min(self._rest * 1.5, LAST_REST)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rest if self._waiting else None):
                await self._new.wait()
        return 0.0

    def _answer(self, watched: Watched) -> None:
        for future in self._waiting.pop(watched.id, ()):
            if not future.done():
                future.set_result(watched)

    def _forget(self, instance: int, future: asyncio.Future[Watched]) -> None:
        several = self._waiting.get(instance)
        if several is not None and future in several:
            several.remove(future)
            if not several:
                del self._waiting[instance]
