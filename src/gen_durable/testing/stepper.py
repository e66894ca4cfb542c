"""Runs one step at a time with the parts of a worker: claim, execute, commit.

There is no picker, no heartbeat and no group commit, and no claim runs ahead: every state goes into the database as
JSON and is read from there for the next step. Everything after the claim is the engine's own code: the `ClaimRunner`
executes the step and handles outcomes, refusals and cancels; the `ClaimTable` returns rows that cannot be decoded.

Each step runs in a task of its own, as in a worker, so its context variables and cancellations do not reach the test.
A test that is cancelled releases its row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

from gen_durable.client import Durable
from gen_durable.context import Context
from gen_durable.core.claim_and_outcome_encryption import ClaimAndOutcomeEncryption
from gen_durable.core.notifier import Notifier
from gen_durable.core.services import Services, services_of
from gen_durable.durations import Duration
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.claim_part_loader import ClaimPartLoader
from gen_durable.engine.claim_runner import ClaimRunner
from gen_durable.engine.claim_table import ClaimTable
from gen_durable.engine.committer import Committer
from gen_durable.engine.executor import Executor, TransactionalStepRaised, UndecodableState
from gen_durable.engine.journal_action_runner import JournalActionRunner
from gen_durable.engine.many_children_reader import ManyChildrenReader
from gen_durable.engine.outcome_encoder import EncodedOutcome
from gen_durable.engine.slots import Slots
from gen_durable.engine.slow_commit_connections import SlowCommitConnections
from gen_durable.engine.step_journal import Action, SleepBeforeRetry
from gen_durable.engine.step_limiter import StepLimiter
from gen_durable.engine.task_set import TaskSet
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.engine.transactional_executor import TransactionalExecutor
from gen_durable.errors import LeaseLost, NoFreeThread, OutcomeRejected, UnreadableSignal
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.retry_policy import RetryPolicy
from gen_durable.signal_decoder_fingerprints import SignalDecoderFingerprints
from gen_durable.step_registry import Registry, RunnableStep
from gen_durable.step_services import StepTransaction
from gen_durable.store.types import Claim, FollowUps
from gen_durable.telemetry import Event, Events, OutcomePostponed, SignalRejected, StateUndecodable, StepCommitted
from gen_durable.testing.drain_result import LOST, PUT_BACK, SIGNAL_REJECTED, UNDECODABLE, Execution
from gen_durable.testing.harness_statements import HarnessStatements
from gen_durable.worker_options import WorkerOptions

T = TypeVar("T")
WORKER: Final = "gen_durable.testing"
LEASE_SECONDS: Final = 3600.0  # no heartbeat extends it, so it must outlast any step
REAP_BATCH: Final = 1000
CANCEL_PAUSE: Final = 0.01  # seconds
CANCEL_WAITS: Final = 50
OPTIONS: Final = WorkerOptions(queues={}, run_ahead_steps=0)


class Stepper:
    """Runs single steps of the machines and jobs in a registry."""

    __slots__ = (
        "_claims",
        "_committer",
        "_connection",
        "_errors",
        "_events",
        "_executor",
        "_journal",
        "_notifier",
        "_outcomes",
        "_registry",
        "_runner",
        "_services",
        "_side_connection",
        "_side_connections",
        "_statements",
        "_tasks",
        "_threads",
        "_transactional",
    )

    def __init__(
        self, app: Durable, registry: Registry, statements: HarnessStatements, errors: dict[int, Exception]
    ) -> None:
        """`errors` receives what the last execution of each instance raised."""
        self._services = services = services_of(app)
        self._statements = statements
        self._errors = errors
        self._outcomes: dict[int, str] = {}
        self._events = Events()  # not those of `app`: they report the outcome of the step under way
        self._events.subscribe(self._record_outcome)
        self._connection = PersistentConnection(services.connection_target)
        self._side_connection = PersistentConnection(services.connection_target)
        self._side_connections = SlowCommitConnections(services.connection_target, 1)
        self._threads = ThreadPool(1)
        self._tasks = TaskSet()
        self._notifier = CancelRecordingNotifier(services)
        self._journal = UnpausedJournalActionRunner(
            services.pool,
            services.schema.name,
            services.journal_statements,
            self._threads,
            services.installation_id,
            encryption=services.encryption,
        )
        self._executor = HarnessExecutor(
            WORKER,
            self._threads,
            ManyChildrenReader(services.pool, services.statements, services.encryption),
            StepLimiter(services.statement_runner, services.statements, self._notifier),
            self._journal,
            encryption=None
            if services.encryption is None
            else ClaimAndOutcomeEncryption(services.encryption, services.pool, services.statements),
        )
        self._executor.errors = errors
        side = self._side_connections
        self._committer = Committer(
            self._connection, side, side, services.statements, 1, notifier=self._notifier, worker=WORKER
        )
        self._transactional = TransactionalExecutor(
            self._executor, services.connection_target, services.statements, 1, notifier=self._notifier, worker=WORKER
        )
        self._build_claim_table_and_runner(registry)

    def _build_claim_table_and_runner(self, registry: Registry) -> None:
        """Build the parts that know the machines and jobs."""
        services = self._services
        self._registry = registry
        slots = Slots({}, None, tasks=self._tasks, notifier=self._notifier)
        self._claims = ClaimTable(
            services.pool,
            services.statements,
            slots=slots,
            tasks=self._tasks,
            registry=registry,
            notifier=self._notifier,
            events=self._events,
            max_crashes=None,
            fingerprints=SignalDecoderFingerprints(registry, services.codec_identity),
        )
        slots.runner = self._runner = ClaimRunner(
            self._executor,
            self._transactional,
            self._committer,
            ClaimPartLoader(services.pool, services.statements, services.journal_statements, self._journal),
            registry=registry,
            claims=self._claims,
            slots=slots,
            notifier=self._notifier,
            completions=services.completion_watcher,
            options=OPTIONS,
            events=self._events,
        )

    async def open(self) -> None:
        # The schema is thrown away after the test, so a commit need not wait for the disk.
        await self._connection.run_script("set synchronous_commit = off")

    async def close(self) -> None:
        await self._committer.close_and_cancel_flushes()
        await self._journal.close()
        self._threads.close()
        connections = self._connection, self._side_connection, self._side_connections, self._transactional
        closing = [each.close() for each in connections]
        await asyncio.gather(*closing, return_exceptions=True)

    async def read_due_queues(self) -> list[str]:
        """The queues that have due rows, by name."""
        return await self._connection.run(self._statements.read_due_queues())

    async def claim_next(self, queue: str) -> Claim | None:
        """Claim the next due row of a queue."""
        statement = self._services.statements.pick(WORKER, {queue: 1}, self._registry.known_step_keys, LEASE_SECONDS)
        picked = await self._connection.run(statement)
        return picked.claims[0] if picked.claims else None

    async def claim_instance(self, instance: int, queue: str) -> Claim | None:
        """Claim this row and no other. A pick skips locked rows, so all other rows are locked meanwhile."""
        driver_connection = await self._side_connection.connect()
        transaction = driver_connection.transaction()
        await transaction.start()
        try:
            await driver_connection.fetch(self._statements.lock_other_due_rows, instance)
            return await self.claim_next(queue)
        finally:
            await transaction.rollback()

    async def execute_and_commit(self, claim: Claim) -> Execution:
        """Execute the step of a claim and commit its outcome."""
        self._errors.pop(claim.id, None)
        self._outcomes.pop(claim.id, None)
        active = self._claims.register(claim, time.monotonic())
        await self._finish_cancel_cascades()
        active.task = self._tasks.spawn(self._runner.run_claim(active))
        try:
            await asyncio.shield(active.task)
            while self._tasks.running or not self._committer.is_idle:
                await self._tasks.wait_until_empty()
                await self._committer.wait_until_idle()
        except asyncio.CancelledError:
            await self._interrupt_and_release(active, active.task)
            raise
        if active.entry.spec.transactional:
            self._notifier.has_children_to_cancel = True  # the step may have cancelled instances in its transaction
        await self._finish_cancel_cascades()
        return self._make_execution_record(claim, self._outcomes.pop(claim.id, LOST))

    def _record_outcome(self, event: Event) -> None:
        match event:
            case StepCommitted():
                self._outcomes[event.id] = event.outcome
            case StateUndecodable():
                self._outcomes[event.id] = UNDECODABLE
            case OutcomePostponed():
                self._outcomes[event.id] = PUT_BACK
                self._errors[event.id] = OutcomeRejected(event.reason)
            case SignalRejected():
                self._outcomes[event.id] = SIGNAL_REJECTED
            case _:
                pass

    async def _finish_cancel_cascades(self) -> None:
        """Cancel children that no parent waits for any more, as workers do in the background.

        The client does the same after the commit of a caller's transaction; then this waits until it has.
        """
        waits = 0
        while self._notifier.has_children_to_cancel:
            batch = await self._connection.run(self._services.statements.cancel_listed_descendants(REAP_BATCH, None))
            if batch.more and batch.ended + batch.requested == 0:
                waits += 1
                await asyncio.sleep(CANCEL_PAUSE)
            self._notifier.has_children_to_cancel = batch.more and waits < CANCEL_WAITS

    async def simulate_crash(self, claim: Claim, *, run: bool) -> Execution:
        """Act like a worker that dies with a claim: with `run`, after the last line of the step, else before it."""
        if run:
            self._errors.pop(claim.id, None)
            entry = self._get_step_of_claim(claim)
            try:
                if entry.spec.transactional:
                    await self._run_in_task_or_release(claim, self._transactional.execute_and_roll_back(claim, entry))
                else:
                    await self._run_in_task_or_release(
                        claim, self._executor.execute_step(claim, entry, may_continue=False)
                    )
            except TransactionalStepRaised as raised:
                self._errors[claim.id] = raised.error
            except (UndecodableState, LeaseLost, NoFreeThread, UnreadableSignal):
                pass  # recorded by the executor
        await self._connection.run(self._statements.expire_lease(claim.id, claim.epoch))
        await self.reap_and_finish_cancels()
        return self._make_execution_record(claim, LOST)

    async def reap_and_finish_cancels(self) -> None:
        """Take back claims whose leases have ended, and finish cancels that callers began in their transactions."""
        more = True
        while more:
            reaped = await self._connection.run(self._services.statements.reap(REAP_BATCH, None))
            more = len(reaped.claims) == REAP_BATCH
        self._notifier.has_children_to_cancel = True
        await self._finish_cancel_cascades()

    async def release(self, claim: Claim) -> None:
        """Make a claimed row runnable again."""
        await self._connection.run(self._services.statements.release_claims([(claim.id, claim.epoch, None, None)]))

    async def shift_times_back(self, by: timedelta) -> None:
        """Move every moment in the schema back."""
        statements = await self._connection.run(self._statements.read_timestamp_shifts())
        driver_connection = await self._connection.connect()
        async with driver_connection.transaction():
            for statement in statements:
                await driver_connection.execute(statement, by)

    async def delete_instances_and_use_registry(self, registry: Registry) -> None:
        """Delete every instance, and run other machines and jobs from now on."""
        await self._connection.run_script(self._statements.delete_rows_and_reset_ids)
        self._build_claim_table_and_runner(registry)
        self._errors.clear()

    def _get_step_of_claim(self, claim: Claim) -> RunnableStep:
        return self._registry.get_known_step(claim.machine, claim.version, claim.step)

    async def _run_in_task_or_release(self, claim: Claim, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(coroutine)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            claim.is_interrupted = True  # the test was cancelled; without this the step would count as failed
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            await self.release(claim)
            raise

    async def _interrupt_and_release(self, active: ActiveClaim, task: asyncio.Task[None]) -> None:
        self._claims.interrupt_or_unbuffer(active)
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        await self._claims.release([active])

    def _make_execution_record(self, claim: Claim, outcome: str) -> Execution:
        error = self._errors.get(claim.id)
        step = self._get_step_of_claim(claim).spec.name
        return Execution(claim.id, claim.machine, claim.version, step, claim.attempt, outcome, error)


class CancelRecordingNotifier(Notifier):
    """Sends no wake-ups, since the next claim finds what became runnable; remembers that children must be cancelled."""

    def __init__(self, services: Services) -> None:
        super().__init__(services.pool, services.statements, services.engine_statement_runner, None)
        self.has_children_to_cancel = False

    def wake(self, queue: str, count: int = 1) -> None:
        pass

    def start_cancel_cascade(self, origin: int | None) -> None:
        self.has_children_to_cancel = True

    def act_on_follow_ups(self, follow_ups: FollowUps) -> None:
        if follow_ups.cascade_origins:
            self.has_children_to_cancel = True


class HarnessExecutor(Executor):
    """An executor that records what steps raised, and retries by a policy without its pauses."""

    errors: dict[int, Exception]

    async def execute_step(
        self,
        claim: Claim,
        entry: RunnableStep,
        *,
        may_continue: bool,
        previous: EncodedOutcome | None = None,
        task: asyncio.Task[Any] | None = None,
        transaction: StepTransaction | None = None,
    ) -> EncodedOutcome:
        try:
            return await super().execute_step(
                claim, entry, may_continue=may_continue, previous=previous, task=task, transaction=transaction
            )
        except (UndecodableState, LeaseLost, NoFreeThread, UnreadableSignal) as error:
            self.errors[claim.id] = error
            raise

    async def answer_step_error(
        self, claim: Claim, entry: RunnableStep, ctx: Context, error: Exception, *, may_continue: bool
    ) -> EncodedOutcome:
        self.errors[claim.id] = error
        return await super().answer_step_error(claim, entry, ctx, error, may_continue=may_continue)

    def _retry_delay(self, policy: RetryPolicy, earlier_errors: int) -> Duration:
        super()._retry_delay(policy, earlier_errors)  # a mistake in it must show
        return 0


class UnpausedJournalActionRunner(JournalActionRunner):
    """Calls an activity again without the pause of its retry policy."""

    async def _run_journal_action(self, action: Action) -> Any:
        return None if isinstance(action, SleepBeforeRetry) else await super()._run_journal_action(action)

    def _run_journal_action_blocking(self, action: Action) -> Any:
        return None if isinstance(action, SleepBeforeRetry) else super()._run_journal_action_blocking(action)
