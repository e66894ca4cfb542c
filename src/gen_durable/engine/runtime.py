"""Builds the parts of one worker, and starts and stops them in order.

    picker -> claims -> slots -> claim runner -> executor -> committer -> notifier
                 ^ heartbeat, in a thread          reaper, gc: on every worker

`Worker` creates a runtime when it starts; the notifier calls `wake`, `wake_by_message`, `wake_all` and
`check_cancel_requests_soon`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from gen_durable.core.background_task import BackgroundTask
from gen_durable.core.claim_and_outcome_encryption import ClaimAndOutcomeEncryption
from gen_durable.core.hand_off import AddPick
from gen_durable.core.services import Services
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.claim_part_loader import ClaimPartLoader
from gen_durable.engine.claim_runner import ClaimRunner
from gen_durable.engine.claim_table import ClaimTable
from gen_durable.engine.committer import Committer
from gen_durable.engine.dead_letter_hook_caller import DeadLetterHookCaller
from gen_durable.engine.executor import Executor
from gen_durable.engine.gc import Gc
from gen_durable.engine.heartbeat import Heartbeat
from gen_durable.engine.history_trimmer import HistoryTrimmer
from gen_durable.engine.journal_action_runner import JournalActionRunner
from gen_durable.engine.many_children_reader import ManyChildrenReader
from gen_durable.engine.picker import Picker
from gen_durable.engine.reaper import Reaper
from gen_durable.engine.slots import Slots
from gen_durable.engine.slow_commit_connections import SlowCommitConnections
from gen_durable.engine.step_limiter import StepLimiter
from gen_durable.engine.task_set import TaskSet
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.engine.transactional_executor import TransactionalExecutor
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.signal_decoder_fingerprints import SignalDecoderFingerprints
from gen_durable.step_registry import Registry
from gen_durable.telemetry import QueueDrained
from gen_durable.worker_options import WorkerOptions

T = TypeVar("T")
log = get_escaping_logger("gen_durable.worker")
CANCEL_GRACE_SECONDS: Final = 1.0
TRANSACTION_CONNECTIONS: Final = 10  # each is connected when a step first needs it
LOCKED_CONNECTIONS: Final = 4  # for outcomes whose rows are locked
FAN_OUTS: Final = 3  # large outcomes and fan-outs that are written at once


class Runtime:
    """The parts of one worker. Create it on the event loop that runs the worker."""

    def __init__(
        self,
        services: Services,
        target: ConnectionTarget,
        options: WorkerOptions,
        registry: Registry,
        name: str,
        *,
        on_stuck_loop: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._options = options
        self._registry = registry
        self._on_stuck_loop = on_stuck_loop
        self._events = services.events
        self._notifier = services.notifier
        self._drain_seconds = options.drain_timeout.total_seconds()
        self._pick_connection = PersistentConnection(target)
        self._flush_connection = PersistentConnection(target)
        self._side_connections = (
            SlowCommitConnections(target, LOCKED_CONNECTIONS),
            SlowCommitConnections(target, FAN_OUTS),
        )
        self._upkeep_connection = PersistentConnection(target)
        self.tasks = TaskSet()
        self._threads = ThreadPool(options.threads or max(sum(options.concurrency_by_queue.values()), 1))
        self.committer = Committer(
            self._flush_connection,
            *self._side_connections,
            services.statements,
            options.flush_batch,
            notifier=services.notifier,
            worker=name,
        )
        self.slots = Slots(options.concurrency_by_queue, options.prefetch, tasks=self.tasks, notifier=services.notifier)
        self._fingerprints = SignalDecoderFingerprints(registry, services.codec_identity)
        self.claims = ClaimTable(
            services.pool,
            services.statements,
            slots=self.slots,
            tasks=self.tasks,
            registry=registry,
            notifier=services.notifier,
            events=services.events,
            max_crashes=options.max_crashes,
            fingerprints=self._fingerprints,
        )
        self._history_trimmer = HistoryTrimmer(self._upkeep_connection, services.journal_statements)
        self._build_claim_parts(services, target)
        self._build_background_parts(services, target)

    def _build_claim_parts(self, services: Services, target: ConnectionTarget) -> None:
        """The parts that run a claim, innermost first."""
        self._journal = JournalActionRunner(
            services.pool,
            services.schema.name,
            services.journal_statements,
            self._threads,
            services.installation_id,
            encryption=services.encryption,
        )
        executor = Executor(
            self.name,
            self._threads,
            ManyChildrenReader(services.pool, services.statements, services.encryption),
            StepLimiter(services.engine_statement_runner, services.statements, services.notifier),
            self._journal,
            encryption=None
            if services.encryption is None
            else ClaimAndOutcomeEncryption(services.encryption, services.pool, services.statements),
        )
        self._transactional = TransactionalExecutor(
            executor, target, services.statements, TRANSACTION_CONNECTIONS, notifier=services.notifier, worker=self.name
        )
        self.slots.runner = ClaimRunner(
            executor,
            self._transactional,
            self.committer,
            ClaimPartLoader(services.pool, services.statements, services.journal_statements, self._journal),
            registry=self._registry,
            claims=self.claims,
            slots=self.slots,
            notifier=services.notifier,
            completions=services.completion_watcher,
            options=self._options,
            events=services.events,
            history_trimmer=self._history_trimmer,
        )

    def _build_background_parts(self, services: Services, target: ConnectionTarget) -> None:
        """The parts that run on their own: picker, heartbeat, reaper, gc."""
        options = self._options
        self.picker = Picker(
            self._pick_connection,
            services.statements,
            options,
            worker=self.name,
            known_step_keys=self._registry.known_step_keys,
            slots=self.slots,
            claims=self.claims,
            committer=self.committer,
            notifier=services.notifier,
            events=services.events,
        )
        self._heartbeat = Heartbeat(
            target,
            services.statements,
            self.claims,
            lease_seconds=options.lease_ttl.total_seconds(),
            interval_seconds=options.heartbeat_interval.total_seconds(),
            max_block_seconds=options.max_loop_block.total_seconds(),
            on_stuck_loop=self._on_stuck_loop,
            events=services.events,
        )
        hook = options.on_dead_letter
        self._dead_letters = (
            None
            if hook is None
            else DeadLetterHookCaller(hook, services.pool, services.statements, services.encryption)
        )
        self._upkeep: list[BackgroundTask] = [self._history_trimmer] if options.queues else []
        if options.reap_interval is not None:
            self._upkeep.append(
                Reaper(
                    self._upkeep_connection,
                    services.statements,
                    options,
                    registry=self._registry,
                    notifier=services.notifier,
                    events=services.events,
                    dead_letters=self._dead_letters,
                    crashed=self.claims.crashed,
                    fingerprints=self._fingerprints,
                )
            )
        if options.gc_interval is not None:
            statements = services.statements, services.retention_statements
            self._upkeep.append(Gc(self._upkeep_connection, *statements, options, events=services.events))

    def wake_and_get_capacity(self, queue: str) -> int:
        """Pick from a queue. Returns how many more rows this worker could take."""
        return self.picker.wake_and_get_capacity(queue)

    def start_hand_off(
        self, rows_by_queue: Mapping[str, int], add_pick: AddPick[T]
    ) -> asyncio.Task[tuple[T, frozenset[int]]] | None:
        """Claim rows with the statement that makes them runnable, if slots are free for all of them."""
        return self.picker.start_hand_off(rows_by_queue, add_pick)

    def wake_by_message(self, queue: str) -> None:
        """Pick from a queue because of a message, within the budget for messages."""
        self.picker.wake_by_message(queue)

    def notify_if_pick_misses(self, queue: str, count: int) -> None:
        """Report rows that became runnable and that a pick does not find."""
        self.picker.notify_if_pick_misses(queue, count)

    def wake_all(self) -> None:
        """Pick from every queue."""
        self.picker.wake_all()

    def check_cancel_requests_soon(self) -> None:
        """Read the cancel requests of this worker's claims, and act on them."""
        self.claims.check_cancel_requests_soon()

    async def start(self) -> None:
        """Start the background parts. A worker without queues only maintains the database."""
        if self._options.queues:
            # Connected now, so that the first row does not wait for it. If it fails, the next statement tries again.
            await asyncio.gather(
                self._pick_connection.connect(), self._flush_connection.connect(), return_exceptions=True
            )
            self._notifier.add_worker(self)
            self._heartbeat.start()
            self.picker.start()
        for part in self._upkeep:
            part.start()

    def stop_starting_claims(self) -> None:
        """Start no further claim, and let no claim run ahead."""
        self.slots.stopping = True

    async def stop(self) -> None:
        """Stop picking, drain, and close every part; also if the drain is interrupted."""
        try:
            if self._options.queues:
                await self.picker.stop()
                await self._drain()
                await self._heartbeat.stop()
            for part in self._upkeep:
                await part.stop()
            if self._dead_letters is not None:
                await self._dead_letters.close(self._drain_seconds)
            if not self.claims.list_all():
                await asyncio.gather(*(c.close() for c in self._connections), return_exceptions=True)
                await self._transactional.close()
        finally:
            # The heartbeat must not extend leases of rows that no task runs.
            self._heartbeat.stop_soon()
            for part in (self.picker, *self._upkeep):
                part.stop_soon()
            if self._dead_letters is not None:
                self._dead_letters.cancel_calls()
            self._notifier.remove_worker(self)
            for active in self.claims.list_all():
                self.claims.interrupt_or_unbuffer(active)
            self.tasks.cancel_all()
            for connection in self._connections:
                connection.terminate()
            self._transactional.terminate_connections()
            await self.committer.close_and_cancel_flushes()
            await self._journal.close()
            self._threads.close()

    @property
    def _connections(self) -> tuple[PersistentConnection | SlowCommitConnections, ...]:
        return self._pick_connection, self._flush_connection, *self._side_connections, self._upkeep_connection

    async def _drain(self) -> None:
        """Release claims that have not started, wait for steps under way, and for their commits."""
        unstarted = [active for active in self.claims.list_all() if active.task is None]
        await self.claims.release(unstarted)
        await self.tasks.wait_until_empty(self._drain_seconds)
        overdue = [active for active in self.claims.list_all() if active.task is not None and not active.task.done()]
        if self._events.active:
            for queue in self.slots.queues:
                released = sum(active.claim.queue == queue for active in unstarted)
                still_running = sum(active.claim.queue == queue for active in overdue)
                self._events.emit(QueueDrained(queue, released, still_running))
        if overdue:
            log.warning("worker %s: %d steps did not end within drain_timeout", self.name, len(overdue))
            await self._interrupt_and_release(overdue)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds + CANCEL_GRACE_SECONDS):
                await self.committer.wait_until_idle()

    async def _interrupt_and_release(self, overdue: list[ActiveClaim]) -> None:
        """Interrupt steps and release their rows. A step in a thread cannot be stopped: its row waits for its lease."""
        stoppable = [active for active in overdue if not active.is_uninterruptible]
        for active in stoppable:
            self.claims.interrupt_or_unbuffer(active)
        tasks = [active.task for active in stoppable if active.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE_SECONDS)
        await self.claims.release([active for active in stoppable if active.task is None or active.task.done()])
