"""The table of claims that this worker holds, from the pick to the answer of the last commit.

The event loop writes the table and the heartbeat thread reads it. A claim is in the table exactly as long as its row
may execute in the name of this worker: the heartbeat extends the leases of these rows, the reaper of any worker takes
back all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Final, NamedTuple

from gen_durable.core.notifier import Notifier
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.crashed_row_slots import MIN_CRASHES, CrashedRowSlots
from gen_durable.engine.slots import Slots
from gen_durable.engine.task_set import TaskSet
from gen_durable.errors import SignalFault
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import ConnectionLost, SqlError
from gen_durable.pg.pool import Pool
from gen_durable.signal_decoder_fingerprints import SignalDecoderFingerprints
from gen_durable.step_registry import Registry
from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Claim
from gen_durable.telemetry import AwaitTimedOut, ClaimLost, Events, SignalRejected
from gen_durable.validation import to_storable_error

log = get_escaping_logger("gen_durable.worker")
DEFAULT_REASON: Final = "cancelled"
CHECK_SECONDS: Final = 0.05  # messages, which any login can send, make a worker read its cancel requests so often


class PostponeDelay(NamedTuple):
    """How long a row that is put back rests, in seconds: release_claims.sql doubles it up to the longest."""

    first: float
    longest: float


USUAL_POSTPONE_DELAY: Final = PostponeDelay(5.0, 600.0)
LIMIT_REST: Final = PostponeDelay(1.0, 30.0)  # for an undeclared limit, which a deployment that is under way declares


class ClaimTable:
    """All claims of one worker, by instance id."""

    __slots__ = (
        "_check",
        "_checked_at",
        "_claims",
        "_events",
        "_fingerprints",
        "_lock",
        "_notifier",
        "_pool",
        "_registry",
        "_should_check",
        "_signal_statements",
        "_slots",
        "_statements",
        "_tasks",
        "crashed",
    )

    def __init__(
        self,
        pool: Pool,
        statements: StatementBuilder,
        *,
        slots: Slots,
        tasks: TaskSet,
        registry: Registry,
        notifier: Notifier,
        events: Events,
        max_crashes: int | None,
        fingerprints: SignalDecoderFingerprints,
    ) -> None:
        self._pool = pool
        self._statements = statements
        self._signal_statements = InboxStatementBuilder(statements.schema)
        self._fingerprints = fingerprints
        self._slots = slots
        self._tasks = tasks
        self._registry = registry
        self._notifier = notifier
        self._events = events
        self.crashed = CrashedRowSlots(max_crashes)
        self._claims: dict[int, ActiveClaim] = {}
        self._lock = threading.Lock()
        self._should_check = False  # a message has come since the last read of cancel requests
        self._check: asyncio.Task[None] | None = None
        self._checked_at = -CHECK_SECONDS

    def add_and_start(self, claims: list[Claim], leased_at: float) -> None:
        """Start the claims of a pick, or buffer them behind busy slots. A stopping worker gives them back."""
        now = time.monotonic()
        late: list[ActiveClaim] = []
        for claim in claims:
            active = self.register(claim, leased_at)
            if self._slots.stopping:
                late.append(active)
            else:
                self._slots.start_or_buffer(active, now)
        if late:
            self.release_soon(late)

    def register(self, claim: Claim, leased_at: float) -> ActiveClaim:
        """Put a claim into the table without starting it."""
        entry = self._registry.get_known_step(claim.machine, claim.version, claim.step)
        active = ActiveClaim(claim, entry, leased_at)
        former = self._claims.get(claim.id)
        if former is not None and (former.task is None or not former.task.done()):
            # The lease of an earlier claim of ours ended, and this worker picked the row again: the first execution
            # must stop. (A task that is done has handed in its outcome; only the answer of the commit is missing.)
            self.drop_lost([former])
        with self._lock:
            self._claims[claim.id] = active
        if claim.is_woken_by_deadline and self._events.active:
            self._events.emit(AwaitTimedOut(claim.id, claim.machine, claim.step, tuple(claim.awaits or ())))
        if claim.crashes >= MIN_CRASHES:
            self.crashed.add_claim(claim)
        if claim.children != ():
            self._cancel_remaining_children(claim)
        return active

    def _cancel_remaining_children(self, claim: Claim) -> None:
        """Start the cascade of a join that did not wait for all children: the others may have to be cancelled."""
        if claim.children is None or any(not child.status.terminal for child in claim.children):
            self._notifier.start_cancel_cascade(claim.id)

    def remove(self, active: ActiveClaim) -> None:
        # The row may have been lost and claimed again: remove only this claim, not its successor.
        with self._lock:
            if self._claims.get(active.claim.id) is active:
                del self._claims[active.claim.id]
        if active.claim.crashes >= MIN_CRASHES:
            self.crashed.remove_claim(active.claim)

    def allow_more_crashed_rows(self, active: ActiveClaim) -> None:
        """A row that had crashed twice in a row has an outcome: more of them may run together."""
        self.crashed.remove_claim(active.claim)
        self.crashed.raise_concurrency()
        self._slots.request_pick_of_every_queue()

    def has_claim(self, active: ActiveClaim) -> bool:
        return self._claims.get(active.claim.id) is active

    def list_all(self) -> list[ActiveClaim]:
        with self._lock:
            return list(self._claims.values())

    def claims_leased_longer_than(self, age: float) -> list[ActiveClaim]:
        """Claims whose lease was made or extended at least `age` seconds ago, ordered by id."""
        limit = time.monotonic() - age
        with self._lock:
            old = [active for active in self._claims.values() if active.leased_at <= limit]
        return sorted(old, key=lambda active: active.claim.id)

    def withdraw_not_begun(self) -> list[ActiveClaim]:
        """Keep claims that have not begun from beginning, and return them, ordered by id. For the heartbeat thread."""
        withdrawn = [active for active in self.list_all() if not active.has_begun()]
        for active in withdrawn:
            active.claim.is_interrupted = True  # a loop that answers right now must not run them
        return sorted(withdrawn, key=lambda active: active.claim.id)

    def drop_withdrawn(self, claims: list[ActiveClaim]) -> None:
        """Remove claims whose rows the heartbeat has returned."""
        for active in claims:
            self.interrupt_or_unbuffer(active)
            self.remove(active)

    def __len__(self) -> int:
        return len(self._claims)

    async def release(self, claims: list[ActiveClaim]) -> None:
        """Make rows runnable again at once, and remove their claims."""
        await self._return_rows_and_wake([(active, None, None) for active in claims])

    def release_soon(self, claims: list[ActiveClaim]) -> None:
        """The same in a task."""
        self._return_rows_soon([(active, None, None) for active in claims])

    def postpone_soon(self, active: ActiveClaim, reason: str, rest: PostponeDelay = USUAL_POSTPONE_DELAY) -> None:
        """Make a row runnable again after a rest, in a task; `reason` becomes its last error."""
        self._return_rows_soon([(active, rest.first, reason)], rest.longest)

    def reject_signals_and_release_soon(self, active: ActiveClaim, faults: tuple[SignalFault, ...]) -> None:
        """Set signals aside that this worker cannot read, and put the row back, in a task."""
        task = self._tasks.spawn(self._reject_signals_and_release(active, faults))
        task.add_done_callback(lambda _: self.remove(active))  # as in _return_rows_soon

    async def _reject_signals_and_release(self, active: ActiveClaim, faults: tuple[SignalFault, ...]) -> None:
        claim = active.claim
        statement = self._signal_statements.reject_signals_and_release_claims(
            claim.id,
            claim.epoch,
            [fault.id for fault in faults],
            [to_storable_error(fault.reason) for fault in faults],
            self._fingerprints.get_for_machine(claim.machine, claim.version),
        )
        try:
            result = await self._pool.run_idempotent(statement)
        except (ConnectionLost, SqlError) as error:
            log.warning("instance %d: its unreadable signals stay (%s)", claim.id, type(error).__name__)
            return
        finally:
            self.remove(active)
        for fault in faults:
            if fault.id in result.ids:
                log.error("instance %d: signal %d is rejected: %s", claim.id, fault.id, fault.reason)
                if self._events.active:
                    self._events.emit(SignalRejected(claim.id, claim.machine, fault.name, fault.reason))
        self._notifier.wake_queues(result.woken_queues)
        self._slots.schedule_pick_or_wake_others(
            claim.queue, 0.0
        )  # finds when the deadline of a row is that waits again

    def _return_rows_soon(
        self,
        returns: list[tuple[ActiveClaim, float | None, str | None]],
        longest_delay: float = USUAL_POSTPONE_DELAY.longest,
    ) -> None:
        task = self._tasks.spawn(self._return_rows_and_wake(returns, longest_delay))
        # In a callback too: other code may have cancelled the task before it began. The leases then end.
        task.add_done_callback(lambda _: self._remove_returned(returns))

    async def _return_rows_and_wake(
        self,
        returns: list[tuple[ActiveClaim, float | None, str | None]],
        longest_delay: float = USUAL_POSTPONE_DELAY.longest,
    ) -> None:
        if not returns:
            return
        rows = sorted((active.claim.id, active.claim.epoch, delay, reason) for active, delay, reason in returns)
        try:
            released = await self._pool.run_idempotent(self._statements.release_claims(rows, longest_delay))
            self._notifier.wake_queues(released.woken_queues)
            for active, delay, _ in returns:
                if delay is not None:
                    self._slots.schedule_pick_or_wake_others(active.claim.queue, delay)
                if delay is None or active.claim.partition_key is not None:
                    self._notifier.wake(active.claim.queue)
        except (ConnectionLost, SqlError) as error:
            log.warning(
                "%d rows could not be released (%s); a reaper takes them back when their leases end",
                len(rows),
                type(error).__name__,
            )
        finally:  # also if other code has cancelled this task
            self._remove_returned(returns)

    def _remove_returned(self, returns: list[tuple[ActiveClaim, float | None, str | None]]) -> None:
        for active, _, _ in returns:
            self.remove(active)

    def drop_lost(self, lost: list[ActiveClaim]) -> None:
        """Stop the tasks of claims that another claim has superseded. Their outcomes would be stale."""
        for active in lost:
            claim = active.claim
            if not self.has_claim(active):
                continue  # it ended after the heartbeat was sent
            log.warning("instance %d: another worker took over the claim, its step is interrupted", claim.id)
            if self._events.active:
                self._events.emit(ClaimLost(claim.id, claim.machine, claim.step))
            self.interrupt_or_unbuffer(active)
            self.remove(active)

    def interrupt_or_unbuffer(self, active: ActiveClaim) -> None:
        """Interrupt a claim without an outcome; one that is buffered is not started."""
        active.interrupt()
        if active.task is None:
            self._slots.remove_from_buffer(active)

    def check_cancel_requests_soon(self) -> None:
        """Find out which claims have a cancel request, and cancel them: at once, then every CHECK_SECONDS at most."""
        self._should_check = True
        if self._check is None or self._check.done():
            self._check = self._tasks.spawn(self._run_cancel_request_checks())

    async def _run_cancel_request_checks(self) -> None:
        while self._should_check:
            if (wait := self._checked_at + CHECK_SECONDS - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._checked_at = time.monotonic()
            self._should_check = False  # before the read: a request that comes during it is read again
            await self._fetch_and_apply_cancel_requests()

    async def _fetch_and_apply_cancel_requests(self) -> None:
        claims = sorted((active.claim.id, active.claim.epoch) for active in self.list_all())
        if claims:
            with contextlib.suppress(ConnectionLost, SqlError):  # the next heartbeat asks again
                self.apply_cancel_requests(await self._pool.run_idempotent(self._statements.cancel_requests_of(claims)))

    def apply_cancel_requests(self, reasons: dict[int, str]) -> None:
        """Cancel claims, by instance id and reason. A repeated request changes nothing."""
        for instance, reason in reasons.items():
            active = self._claims.get(instance)
            if active is None or active.cancel_reason is not None:
                continue
            active.apply_cancel_request(reason)
            if active.task is None:
                self._slots.start_cancel_of_buffered_claim(active)

    async def fetch_cancel_reason(self, active: ActiveClaim) -> str:
        """Read the reason of a cancel that a commit reported before the heartbeat or a notification did."""
        try:
            requests = await self._pool.run_idempotent(
                self._statements.cancel_requests_of([(active.claim.id, active.claim.epoch)])
            )
        except (ConnectionLost, SqlError):
            requests = {}
        return requests.get(active.claim.id, DEFAULT_REASON)
