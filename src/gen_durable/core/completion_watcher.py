"""The completion watcher: waits for instances to end, for all waiters of a process together.

A worker of this process reports ends directly. For all other ids one statement polls at a time, ever more rarely while
nothing ends. A waiter registers before the database is read, so no end in between is missed. Results older than the
waiter are ignored: the instance may have been retried since.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Final

from gen_durable.canonical_json import canonical_json
from gen_durable.core.background_task import BackgroundTask
from gen_durable.errors import ConfigError
from gen_durable.instances import Status
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statements
from gen_durable.store.types import EndedInstance

FIRST_PAUSE: Final = 0.003
LONGEST_PAUSE: Final = 0.25
GROWTH: Final = 1.5
BATCH: Final = 5000


class CompletionWatcher(BackgroundTask):
    """Waits for instances on behalf of one `Durable`."""

    def __init__(self, pool: Pool, statements: Statements) -> None:
        super().__init__("completion watcher")
        self._pool = pool
        self._statements = statements
        # By instance, the waiters and since when each waits, by the clock of `Commit.began`.
        self._waiters: dict[int, dict[asyncio.Future[EndedInstance], float]] = {}
        self._poll_now = asyncio.Event()
        self._pause = FIRST_PAUSE

    async def wait(self, instance: int, timeout: float | None) -> EndedInstance | None:
        """Wait until an instance has ended. Returns None if it has not ended within `timeout` seconds."""
        future: asyncio.Future[EndedInstance] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(instance, {})[future] = time.perf_counter()
        self._poll_soon()
        if self._task is None:
            self.start()
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            # Read once more, so that a timeout of zero gives a true answer too.
            for finished in await self._pool.run_idempotent(self._statements.ends_of([instance])):
                return finished
            return None
        finally:
            self._remove(instance, future)

    async def stop(self) -> None:
        """Stop; calls that still wait raise `ConfigError`."""
        await super().stop()
        for waiters in self._waiters.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(ConfigError("this Durable was closed while a call waited for an instance"))
        self._waiters.clear()

    def report_end(
        self,
        instance: int,
        status: Status,
        result: str | None,
        error: str | None,
        returned_at: float = float("inf"),
    ) -> None:
        """This process has committed an end; `returned_at` is when its step returned, on the performance counter."""
        waiters = self._waiters.get(instance)
        if not waiters:
            return
        earlier = [future for future, since in waiters.items() if since <= returned_at]
        if result is not None:
            result = canonical_json(result.encode()).decode()  # as the other waiters read it from the database
        _resolve(earlier, EndedInstance(instance, status, result if status is Status.DONE else None, error))
        if len(earlier) < len(waiters):
            self._poll_soon()  # this end may be older than the other waiters: let the database answer them

    async def run_once(self) -> float:
        """Poll for all ids; then pause until a waiter is added or the next poll is due."""
        self._poll_now.clear()
        polled = {instance: list(waiters) for instance, waiters in self._waiters.items()}
        ids = list(polled)
        for i in range(0, len(ids), BATCH):
            for finished in await self._pool.run_idempotent(self._statements.ends_of(ids[i : i + BATCH])):
                _resolve(polled[finished.id], finished)
        pause, self._pause = self._pause, min(self._pause * GROWTH, LONGEST_PAUSE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause if self._waiters else None):
                await self._poll_now.wait()
        return 0.0

    def _poll_soon(self) -> None:
        self._pause = FIRST_PAUSE
        self._poll_now.set()

    def _remove(self, instance: int, future: asyncio.Future[EndedInstance]) -> None:
        waiters = self._waiters.get(instance)
        if waiters is not None:
            waiters.pop(future, None)
            if not waiters:
                del self._waiters[instance]


def _resolve(futures: Iterable[asyncio.Future[EndedInstance]], finished: EndedInstance) -> None:
    for future in futures:
        if not future.done():
            future.set_result(finished)
