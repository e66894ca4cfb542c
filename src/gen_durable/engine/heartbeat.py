"""Extends the leases of the worker's claims from a thread with its own event loop and connection.

A step that blocks the worker's event loop therefore does not lose its lease. The thread also reads cancel requests,
for workers that no notification reaches, and measures how long the worker's loop is blocked. It acts on the worker
only through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from gen_durable.backoff import Pauses
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.claim_table import ClaimTable
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.pg.faults import ConnectionLost, FaultKind, SqlError, classify, loggable
from gen_durable.store.statements import Statements
from gen_durable.telemetry import EventLoopBlocked, Events

log = logging.getLogger("gen_durable.heartbeat")
BATCH: Final = 1000
FIRST_PAUSE: Final = 0.2
REPORTED_LAG: Final = 0.1
LOGGED_LAG: Final = 1.0
JOIN_SECONDS: Final = 5.0

T = TypeVar("T")


class Heartbeat:
    """The heartbeat thread of one worker."""

    def __init__(
        self,
        target: Target,
        statements: Statements,
        claims: ClaimTable,
        *,
        lease_seconds: float,
        interval_seconds: float,
        events: Events,
    ) -> None:
        self._target = target
        self._statements = statements
        self._claims = claims
        self._lease_seconds = lease_seconds
        self._interval_seconds = interval_seconds
        self._events = events
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: PersistentConnection | None = None

    def start(self) -> None:
        """Start the thread. The caller's event loop is the one it reports to and watches for lag."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="gen_durable heartbeat", daemon=True)
        self._thread.start()

    def stop_soon(self) -> None:
        """Let the thread end after the heartbeat under way, without waiting for it."""
        self._stopping.set()

    async def stop(self) -> None:
        """Stop after the heartbeat under way."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, self._interval_seconds + JOIN_SECONDS)

    async def extend_leases(self) -> list[ActiveClaim]:
        """Extend leases that are older than a third of their duration; returns claims that were lost."""
        if self._connection is None:
            self._connection = PersistentConnection(self._target)
        old = self._claims.leased_before(self._lease_seconds / 3)
        lost: list[ActiveClaim] = []
        for i in range(0, len(old), BATCH):
            lost += await self._extend(old[i : i + BATCH], self._connection)
        return lost

    async def _extend(self, batch: list[ActiveClaim], connection: PersistentConnection) -> list[ActiveClaim]:
        began = time.monotonic()
        fences = [(active.claim.id, active.claim.epoch) for active in batch]
        statement = self._statements.heartbeat(fences, self._lease_seconds)
        try:
            # A heartbeat that hangs is worth less than the next one on a new connection.
            lost_ids = await connection.run(statement, timeout=self._interval_seconds)
        except SqlError as error:
            if classify(error) is not FaultKind.REFUSED:
                raise
            if len(batch) == 1:
                log.warning("instance %d: its lease cannot be extended (%s)", fences[0][0], loggable(error))
                return []
            # One row must not cost the others their leases: halve until it is alone.
            middle = len(batch) // 2
            return [*await self._extend(batch[:middle], connection), *await self._extend(batch[middle:], connection)]
        lost: list[ActiveClaim] = []
        for active in batch:
            if active.claim.id in lost_ids:
                lost.append(active)
            else:
                active.leased_at = began
        return lost

    async def read_cancel_requests(self) -> dict[int, str]:
        """The reasons of cancel requests for this worker's claims, by instance id."""
        fences = sorted((active.claim.id, active.claim.epoch) for active in self._claims.all())
        if not fences or self._connection is None:
            return {}
        return await self._connection.run(self._statements.cancel_requests_of(fences), timeout=self._interval_seconds)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._beat_until_stopped(loop))

    async def _beat_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        # Two heartbeats per interval, so that a claim made just after one does not wait nearly two intervals.
        longest = self._interval_seconds / 2
        pauses = Pauses(min(FIRST_PAUSE, longest), longest)
        failed = False
        while not self._stopping.is_set():
            began = time.monotonic()
            _call_on(loop, self._report_loop_lag, began)
            pause = longest
            try:
                lost = await self.extend_leases()
                requests = await self.read_cancel_requests()
                failed = False
                pauses.reset()
            except Exception as error:  # of any kind: without this thread all claims of the worker are lost
                lost, requests = [], {}
                pause = pauses.next()
                if not failed:
                    failed = True
                    cause = error if isinstance(error, ConnectionLost) else loggable(error)
                    log.warning("heartbeats fail (%s); trying again", cause)
            if lost:
                _call_on(loop, self._claims.drop_lost, lost)
            if requests:
                _call_on(loop, self._claims.apply_cancel_requests, requests)
            await asyncio.to_thread(self._stopping.wait, max(0.0, pause - (time.monotonic() - began)))
        if self._connection is not None:
            with contextlib.suppress(Exception):
                await self._connection.close()

    def _report_loop_lag(self, sent_at: float) -> None:
        """Runs on the worker's loop: the time since `sent_at` is how long the loop was blocked."""
        lag = time.monotonic() - sent_at
        if lag <= REPORTED_LAG:
            return
        if self._events.active:
            self._events.emit(EventLoopBlocked(lag))
        if lag > LOGGED_LAG:
            log.warning(
                "the event loop was blocked for %.1f s: a step does not await; make it `def` to run in a thread", lag
            )


def _call_on(loop: asyncio.AbstractEventLoop, method: Callable[[T], None], argument: T) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is gone
        loop.call_soon_threadsafe(method, argument)
