"""Takes back claims whose leases have ended, and unblocks rows that a lost wake-up left waiting.

Every worker runs one, without a leader: it acts on the rows alone, so any number may run at once. Its statements are
never jobs in a queue, so a full queue cannot delay them.
"""

from __future__ import annotations

import random
import time
from datetime import timedelta
from typing import Final

from gen_durable.core.background_task import BackgroundTask
from gen_durable.core.notifier import Notifier
from gen_durable.engine.crashed_row_slots import MIN_CRASHES, CrashedRowSlots
from gen_durable.engine.dead_letter_hook_caller import DeadLetterHookCaller
from gen_durable.engine.skipping_batch_runner import SkippingBatchRunner
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.signal_decoder_fingerprints import SignalDecoderFingerprints
from gen_durable.step_registry import Registry
from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import ReapedClaim, UnknownStep
from gen_durable.telemetry import (
    ClaimsReaped,
    Events,
    InstanceDeadLettered,
    RowsUnblocked,
    UnknownStepsFound,
)
from gen_durable.worker_options import WorkerOptions

log = get_escaping_logger("gen_durable.worker")
REAP_BATCH: Final = 1000
UNBLOCK_BATCH: Final = 1000
UNBLOCK_BATCHES: Final = 20
LOGGED_IDS: Final = 20
UNKNOWN_STEPS_EVERY: Final = 6
REJECTED_EVERY: Final = 5.0  # seconds
REJECTED_BATCH: Final = 1000


class Reaper(BackgroundTask):
    """The reaper of one worker; every few rounds it also reports due rows that no code here can run."""

    def __init__(
        self,
        connection: PersistentConnection,
        statements: StatementBuilder,
        options: WorkerOptions,
        *,
        registry: Registry,
        notifier: Notifier,
        events: Events,
        dead_letters: DeadLetterHookCaller | None,
        crashed: CrashedRowSlots,
        fingerprints: SignalDecoderFingerprints,
    ) -> None:
        super().__init__("reaper")
        self._connection = connection
        self._statements = statements
        self._notifier = notifier
        self._events = events
        self._dead_letters = dead_letters
        self._crashed = crashed
        self._signal_statements = InboxStatementBuilder(statements.schema)
        self._fingerprints = fingerprints
        self._rejected_after = (0, 0)  # the instance and the signal that the last round ended with
        self._rejected_due_at = 0.0
        self._interval_seconds = (options.reap_interval or timedelta(0)).total_seconds()
        self._max_crashes = options.max_crashes
        self._queues = list(options.queues)
        self._known_step_keys = registry.known_step_keys
        self._without_history = registry.machines_without_history
        self._reap_runner = SkippingBatchRunner("reaper")
        self._unblock_runner = SkippingBatchRunner("reaper, rows that wait at a gate")
        self._rounds = 0
        self._unblocked_up_to: str | None = None
        self._logged_steps: set[tuple[str, int, str]] = set()

    async def run_once(self) -> float:
        """Reap one batch; a full batch is followed by the next at once."""
        is_full = await self._reap_runner.run_one_batch(self._reap_batch, REAP_BATCH)
        if self._unblocked_up_to is None:  # once per pass over the gates
            await self._connection.run(self._statements.delete_tickets_of_dead_claims())
        await self._unblock_missed_rows()
        if self._queues and time.monotonic() >= self._rejected_due_at:
            await self._retry_signals_others_rejected()
        if self._queues and self._rounds % UNKNOWN_STEPS_EVERY == 0:
            self._report_unknown_steps(
                await self._connection.run(
                    self._statements.count_due_unknown_steps(self._queues, self._known_step_keys)
                )
            )
        self._rounds += 1
        return 0.0 if is_full else self._interval_seconds * random.uniform(0.9, 1.0)

    async def _reap_batch(self, batch: int, skip: int) -> int:
        statement = self._statements.reap(batch, self._max_crashes, self._without_history, skip=skip)
        reaped = await self._connection.run(statement)
        self._notifier.act_on_follow_ups(reaped.follow_ups)
        if reaped.claims:
            self._act_on_reaped_claims(reaped.claims)
        return len(reaped.claims)

    def _act_on_reaped_claims(self, claims: list[ReapedClaim]) -> None:
        shown = ", ".join(map(str, sorted(row.id for row in claims)[:LOGGED_IDS])) + (
            ", ..." if len(claims) > LOGGED_IDS else ""
        )
        log.warning("took back %d claims whose leases had ended: instances %s", len(claims), shown)
        for queue in {row.queue for row in claims}:
            self._notifier.wake(queue, sum(row.queue == queue for row in claims))
        dead = [row for row in claims if row.dead]
        if any(row.crashes >= MIN_CRASHES for row in claims):
            self._crashed.reset_concurrency()
        for row in dead:
            log.error("instance %d (%s.%s) was failed after %d crashes", row.id, row.machine, row.step, row.crashes)
        if self._events.active:
            self._events.emit(ClaimsReaped(tuple(row.id for row in claims)))
            for row in dead:
                self._events.emit(InstanceDeadLettered(row.id, row.machine, row.step, row.crashes))
        if self._dead_letters is not None:
            self._dead_letters.enqueue_calls(row.id for row in dead)

    async def _unblock_missed_rows(self) -> None:
        """Go through the gates that rows wait at, a few batches per round, and unblock rows that may run."""
        for _ in range(UNBLOCK_BATCHES):
            await self._unblock_runner.run_one_batch(self._unblock_gate_batch, UNBLOCK_BATCH)
            if self._unblocked_up_to is None:
                return

    async def _unblock_gate_batch(self, batch: int, skip: int) -> int:
        statement = self._statements.unblock_missed_rows(self._unblocked_up_to, batch + skip, skip=skip)
        self._unblocked_up_to, queues = await self._connection.run(statement)
        self._notifier.wake_queues(queues)
        if self._events.active:
            for queue in queues:
                self._events.emit(RowsUnblocked(queue))
        return 0  # the gates that follow are left to the next call

    async def _retry_signals_others_rejected(self) -> None:
        """Try signals again that workers with other definitions have rejected, a batch per round."""
        statement = self._signal_statements.retry_signals_others_rejected(
            self._fingerprints.list_all(), self._rejected_after, REJECTED_BATCH
        )
        result = await self._connection.run(statement)
        self._rejected_after = result.after
        self._rejected_due_at = time.monotonic() + REJECTED_EVERY
        if result.ids:
            log.info("tries %d rejected signals again, with another definition", len(result.ids))
        self._notifier.wake_queues(result.woken_queues)

    def _report_unknown_steps(self, unknown_steps: list[UnknownStep]) -> None:
        for row in unknown_steps:
            if self._events.active:
                self._events.emit(UnknownStepsFound(row.machine, row.version, row.step, row.queue, row.waiting))
            name = (row.machine, row.version, row.step)
            if name not in self._logged_steps:
                self._logged_steps.add(name)
                log.warning(
                    "queue %s: %d rows wait for %s version %d, step %s, which this worker was not given; "
                    "start a worker that has it",
                    row.queue, row.waiting, row.machine, row.version, row.step,
                )  # fmt: skip
