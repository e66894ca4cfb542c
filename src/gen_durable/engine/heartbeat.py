"""Extends the leases of the worker's claims from a thread with its own event loop and connection.

A step that blocks the worker's event loop therefore does not lose its lease. The thread also reads cancel requests,
for workers that no notification reaches. It acts on the worker only through `call_soon_threadsafe`.

A loop that has not answered for the time of a lease is reported with its stack, and claims that have not begun are
returned. If it does not answer for `max_loop_block`, heartbeats stop until it does, so that other workers take over
(tests/worker/test_blocked_loop.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from gen_durable.backoff import GrowingPauses
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.claim_table import ClaimTable
from gen_durable.engine.event_loop_monitor import EventLoopMonitor
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import ConnectionLost, FaultKind, SqlError, classify_error, describe_for_log
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.printable_text import TextBlock
from gen_durable.store.statements import StatementBuilder
from gen_durable.telemetry import EventLoopBlocked, Events

log = get_escaping_logger("gen_durable.heartbeat")
BATCH: Final = 1000
FIRST_PAUSE: Final = 0.2
REPORTED_LAG: Final = 0.1
LOGGED_LAG: Final = 1.0
JOIN_SECONDS: Final = 5.0


class Heartbeat:
    """The heartbeat thread of one worker."""

    def __init__(
        self,
        target: ConnectionTarget,
        statements: StatementBuilder,
        claims: ClaimTable,
        *,
        lease_seconds: float,
        interval_seconds: float,
        max_block_seconds: float,
        on_stuck_loop: Callable[[], None] | None,
        events: Events,
    ) -> None:
        self._target = target
        self._statements = statements
        self._claims = claims
        self._lease_seconds = lease_seconds
        self._interval_seconds = interval_seconds
        self._max_block_seconds = max(max_block_seconds, 2 * lease_seconds)
        self._on_stuck_loop = on_stuck_loop
        self._events = events
        self._block_reported = False
        self._stuck_reported = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: PersistentConnection | None = None

    def start(self) -> None:
        """Start the thread. The caller's event loop is the one it reports to and watches for lag."""
        monitor = EventLoopMonitor(2 * self._interval_seconds, self._report_loop_lag)
        self._thread = threading.Thread(
            target=self._run_thread, args=(monitor,), name="gen_durable heartbeat", daemon=True
        )
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
        old = self._claims.claims_leased_longer_than(self._lease_seconds / 3)
        lost: list[ActiveClaim] = []
        for i in range(0, len(old), BATCH):
            lost += await self._extend_batch(old[i : i + BATCH], self._connection)
        return lost

    async def _extend_batch(self, batch: list[ActiveClaim], connection: PersistentConnection) -> list[ActiveClaim]:
        began = time.monotonic()
        fences = [(active.claim.id, active.claim.epoch) for active in batch]
        statement = self._statements.heartbeat(fences, self._lease_seconds)
        try:
            # A heartbeat that hangs is worth less than the next one on a new connection.
            lost_ids = await connection.run(statement, timeout=self._interval_seconds)
        except SqlError as error:
            if classify_error(error) is not FaultKind.REFUSED:
                raise
            if len(batch) == 1:
                log.warning("instance %d: its lease cannot be extended (%s)", fences[0][0], describe_for_log(error))
                return []
            # One row must not cost the others their leases: halve until it is alone.
            middle = len(batch) // 2
            return [
                *await self._extend_batch(batch[:middle], connection),
                *await self._extend_batch(batch[middle:], connection),
            ]
        lost: list[ActiveClaim] = []
        for active in batch:
            if active.claim.id in lost_ids:
                lost.append(active)
            else:
                active.leased_at = began
        return lost

    async def read_cancel_requests(self) -> dict[int, str]:
        """The reasons of cancel requests for this worker's claims, by instance id."""
        fences = sorted((active.claim.id, active.claim.epoch) for active in self._claims.list_all())
        if not fences or self._connection is None:
            return {}
        return await self._connection.run(self._statements.cancel_requests_of(fences), timeout=self._interval_seconds)

    def _run_thread(self, monitor: EventLoopMonitor) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._run_rounds_until_stopped(monitor))

    async def _run_rounds_until_stopped(self, monitor: EventLoopMonitor) -> None:
        # Two heartbeats per interval, so that a claim made just after one does not wait nearly two intervals.
        longest = self._interval_seconds / 2
        pauses = GrowingPauses(min(FIRST_PAUSE, longest), longest)
        failed = False
        while not self._stopping.is_set():
            began = time.monotonic()
            pause = longest
            try:
                await self._run_heartbeat_round(monitor)
                failed = False
                pauses.reset()
            except Exception as error:  # of any kind: without this thread all claims of the worker are lost
                pause = pauses.next_seconds()
                if not failed:
                    failed = True
                    cause = error if isinstance(error, ConnectionLost) else describe_for_log(error)
                    log.warning("heartbeats fail (%s); trying again", cause)
            await asyncio.to_thread(self._stopping.wait, max(0.0, pause - (time.monotonic() - began)))
        if self._connection is not None:
            with contextlib.suppress(Exception):
                await self._connection.close()

    async def _run_heartbeat_round(self, monitor: EventLoopMonitor) -> None:
        """Extend leases and pass on cancel requests, unless the worker's loop has not answered for too long."""
        blocked = monitor.measure_lag()
        if blocked < self._lease_seconds:
            self._block_reported = self._stuck_reported = False
        elif not self._block_reported:
            claims = self._claims.withdraw_not_begun()
            self._report_blocked_loop(monitor, blocked, len(claims))
            await self._return_rows_not_begun(monitor, claims)
            self._block_reported = True
        if blocked >= self._max_block_seconds:
            self._report_stuck_loop(blocked)
            return
        if lost := await self.extend_leases():
            monitor.call_on_loop(self._claims.drop_lost, lost)
        if requests := await self.read_cancel_requests():
            monitor.call_on_loop(self._claims.apply_cancel_requests, requests)

    def _report_blocked_loop(self, monitor: EventLoopMonitor, blocked: float, withdrawn: int) -> None:
        log.error(
            "the event loop has not answered for %.0f s: %d claims that have not begun are returned. It is here:\n%s",
            blocked,
            withdrawn,
            TextBlock(monitor.format_loop_stack().rstrip()),
        )

    async def _return_rows_not_begun(self, monitor: EventLoopMonitor, claims: list[ActiveClaim]) -> None:
        """Return the rows of withdrawn claims, whose steps have not begun, so that other workers run them."""
        if not claims:
            return
        rows = [(active.claim.id, active.claim.epoch, None, None) for active in claims]
        if self._connection is None:
            self._connection = PersistentConnection(self._target)
        try:
            await self._connection.run(self._statements.release_claims(rows), timeout=self._interval_seconds)
        finally:
            # Also after an error: then a reaper takes them back when their leases end.
            monitor.call_on_loop(self._claims.drop_withdrawn, claims)

    def _report_stuck_loop(self, blocked: float) -> None:
        if self._stuck_reported:
            return
        self._stuck_reported = True
        log.error(
            "the event loop has not answered for %.0f s: no lease is extended any more, restart this process", blocked
        )
        if self._on_stuck_loop is not None:
            try:
                self._on_stuck_loop()
            except BaseException as error:  # user code: the heartbeat must go on if the loop comes back
                log.error("on_stuck_loop raised %s", type(error).__name__)

    def _report_loop_lag(self, lag: float) -> None:
        """Runs on the worker's loop, which was blocked for `lag` seconds."""
        if lag <= REPORTED_LAG:
            return
        if self._events.active:
            self._events.emit(EventLoopBlocked(lag))
        if lag > LOGGED_LAG:
            log.warning(
                "the event loop was blocked for %.1f s: a step does not await; make it `def` to run in a thread", lag
            )
