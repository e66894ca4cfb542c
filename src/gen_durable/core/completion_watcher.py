"""The completion watcher: waits for instances to end, for all waiters of a process together.

A worker of this process reports ends directly. All other ids are polled, one statement at a time, each ever more rarely
while it does not end: a new waiter costs polls of its own id only, and ids that are polled rarely are polled together
(tests/core/test_completion_watcher.py). A new instance is first polled when it may have ended; sooner, a poll would
only compete with the statements that run the instance. A waiter registers before the database is read, so no end in
between is missed. Results older than the waiter are ignored: the instance may have been retried since.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gen_durable.core.background_task import BackgroundTask
from gen_durable.errors import ConfigError
from gen_durable.instances import Status
from gen_durable.jsonb_form import to_jsonb_form
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import EndedInstance

SHORTEST_LIFE: Final = 0.003  # seconds until the first poll; hardly an instance ends sooner in another process
FIRST_PAUSE: Final = 0.003
LONGEST_PAUSE: Final = 0.25
GROWTH: Final = 1.5
BATCH: Final = 5000
PAGE_SIZE: Final = 16_000_000  # characters of results and errors in one answer


@dataclass(slots=True, eq=False)
class WatchedInstance:
    """An instance that callers wait for, and when it is polled next."""

    # The waiters and since when each waits, by the clock of `Commit.began`.
    waiters: dict[asyncio.Future[EndedInstance], float] = field(
        default_factory=dict[asyncio.Future[EndedInstance], float]
    )
    due_at: float | None = None  # None while it is polled
    pause: float = FIRST_PAUSE

    def plan_next_poll(self, now: float) -> float:
        """Poll later and later. At the longest pause, instances share the same few moments."""
        due_at = now + self.pause
        if self.pause >= LONGEST_PAUSE:
            due_at = math.ceil(now / LONGEST_PAUSE) * LONGEST_PAUSE
        self.due_at = due_at
        self.pause = min(self.pause * GROWTH, LONGEST_PAUSE)
        return due_at


class CompletionWatcher(BackgroundTask):
    """Waits for instances on behalf of one `Durable`."""

    def __init__(self, pool: Pool, statements: StatementBuilder) -> None:
        super().__init__("completion watcher")
        self._pool = pool
        self._statements = statements
        self._watched: dict[int, WatchedInstance] = {}
        self._schedule: list[tuple[float, int]] = []  # a heap; entries that do not match `due_at` are out of date
        self._changed = asyncio.Event()

    async def wait_for_end(
        self, instance: int, timeout: float | None, inserted_at: float = -math.inf
    ) -> EndedInstance | None:
        """Wait until an instance has ended. Returns None if it has not ended within `timeout` seconds.

        `inserted_at` is when this process inserted it, on the monotonic clock.
        """
        future: asyncio.Future[EndedInstance] = asyncio.get_running_loop().create_future()
        watched = self._watched.setdefault(instance, WatchedInstance())
        watched.waiters[future] = time.perf_counter()
        self._poll_soon(instance, watched, earliest=inserted_at + SHORTEST_LIFE)
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
            self._remove_waiter(instance, future)

    async def stop(self) -> None:
        """Stop; calls that still wait raise `ConfigError`."""
        await super().stop()
        for watched in self._watched.values():
            for future in watched.waiters:
                if not future.done():
                    future.set_exception(ConfigError("this Durable was closed while a call waited for an instance"))
        self._watched.clear()

    def report_end(
        self,
        instance: int,
        status: Status,
        result: str | None,
        error: str | None,
        returned_at: float = float("inf"),
    ) -> None:
        """This process has committed an end; `returned_at` is when its step returned, on the performance counter."""
        watched = self._watched.get(instance)
        if watched is None:
            return
        earlier = [future for future, since in watched.waiters.items() if since <= returned_at]
        if result is not None:
            result = to_jsonb_form(result.encode()).decode()  # as the other waiters read it from the database
        _resolve_futures(earlier, EndedInstance(instance, status, result if status is Status.DONE else None, error))
        if len(earlier) < len(watched.waiters):
            self._poll_soon(instance, watched)  # this end may be older than the others: let the database answer them

    async def run_once(self) -> float:
        """Poll the ids that are due; then pause until the next one is due or a waiter is added."""
        self._changed.clear()
        due = self._take_due_instances()
        ids = list(due)
        try:
            for i in range(0, len(ids), BATCH):
                await self._poll_ends(ids[i : i + BATCH], due)
        finally:
            now = time.monotonic()
            for instance in ids:
                watched = self._watched.get(instance)
                if watched is not None and watched.due_at is None:  # else a waiter was added meanwhile
                    heapq.heappush(self._schedule, (watched.plan_next_poll(now), instance))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._schedule[0][0] - now, 0.0) if self._schedule else None):
                await self._changed.wait()
        return 0.0

    async def _poll_ends(self, ids: list[int], due: dict[int, list[asyncio.Future[EndedInstance]]]) -> None:
        """Resolve the waiters of ids that have ended. Large results come in pages: only the last one is not full."""
        while ids:
            page = await self._pool.run_idempotent(self._statements.ends_of(ids, PAGE_SIZE))
            for finished in page:
                _resolve_futures(due[finished.id], finished)
            if sum(len(finished.result or "") + len(finished.last_error or "") for finished in page) < PAGE_SIZE:
                return
            answered = {finished.id for finished in page}
            ids = [instance for instance in ids if instance not in answered]

    def _take_due_instances(self) -> dict[int, list[asyncio.Future[EndedInstance]]]:
        """The instances to poll now, each with the waiters that it has now."""
        now = time.monotonic()
        due: dict[int, list[asyncio.Future[EndedInstance]]] = {}
        while self._schedule and self._schedule[0][0] <= now:
            due_at, instance = heapq.heappop(self._schedule)
            watched = self._watched.get(instance)
            if watched is not None and watched.due_at == due_at:
                watched.due_at = None
                due[instance] = list(watched.waiters)
        return due

    def _poll_soon(self, instance: int, watched: WatchedInstance, earliest: float = -math.inf) -> None:
        watched.due_at, watched.pause = max(time.monotonic(), earliest), FIRST_PAUSE
        heapq.heappush(self._schedule, (watched.due_at, instance))
        self._changed.set()

    def _remove_waiter(self, instance: int, future: asyncio.Future[EndedInstance]) -> None:
        watched = self._watched.get(instance)
        if watched is not None:
            watched.waiters.pop(future, None)
            if not watched.waiters:
                del self._watched[instance]


def _resolve_futures(futures: Iterable[asyncio.Future[EndedInstance]], finished: EndedInstance) -> None:
    for future in futures:
        if not future.done():
            future.set_result(finished)
