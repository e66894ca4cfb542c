"""Runs each claim from its first step to the commit that ends it.

A plain `Next` keeps the claim: the task waits for the commit and continues with the next step, from the state that was
committed. Any other outcome ends the task when it is handed to the committer, so that the slot is free while the commit
is under way: slots count user code that runs. The claim stays in the table, and so keeps its lease, until the commit is
answered.

A cancel request interrupts the step if it can be interrupted, else discards the outcome of the step unless that ends
the instance. Then `on_cancel` runs if a step was interrupted or its outcome discarded, and the claim ends with a cancel
outcome.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Coroutine
from typing import Any, Final, assert_never

import msgspec

from gen_durable.core.completion_watcher import CompletionWatcher
from gen_durable.core.notifier import Notifier
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.claim_part_loader import ClaimPartLoader, UnreadableClaim
from gen_durable.engine.claim_table import LIMIT_REST, ClaimTable
from gen_durable.engine.committer import CANCEL_REQUESTED, STALE, CommitResult, Committer
from gen_durable.engine.crashed_row_slots import MIN_CRASHES
from gen_durable.engine.executor import Executor, TransactionalStepRaised, UndecodableState
from gen_durable.engine.history_trimmer import TRIM_EVERY, TRIM_REMAINDER, HistoryTrimmer
from gen_durable.engine.outcome_encoder import EncodedOutcome, advance_claim
from gen_durable.engine.outcome_rejection import UnusableLimit
from gen_durable.engine.slots import Slots
from gen_durable.engine.transactional_executor import TransactionalExecutor
from gen_durable.errors import LeaseLost, NoFreeThread, OutcomeRejected, UnreadableSignal
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.instances import Status
from gen_durable.pg.error_classifier import describe_for_log
from gen_durable.printable_text import TextBlock
from gen_durable.step_registry import Registry
from gen_durable.store.types import Claim, Commit
from gen_durable.telemetry import ClaimLost, Events, OutcomePostponed, StaleOutcome, StateUndecodable, StepCommitted
from gen_durable.worker_options import WorkerOptions

log = get_escaping_logger("gen_durable.worker")
ENDS: Final = ("done", "fail")
STATUS_OF_END: Final = {"done": Status.DONE, "fail": Status.FAILED, "cancel": Status.CANCELLED}
LARGE_STATE: Final = 50_000  # bytes


class ClaimEndReceiver(msgspec.Struct, eq=False, gc=False):
    """Receives the answer to an outcome that ends a claim."""

    runner: ClaimRunner
    active: ActiveClaim
    encoded: EncodedOutcome
    took: float
    answered: asyncio.Future[None] | None = None
    is_answered: bool = False

    def receive_commit_result(self, result: CommitResult | OutcomeRejected) -> None:
        if self.is_answered:
            return
        self.is_answered = True
        self.runner.act_on_commit_result(self.active, self.encoded, self.took, result)
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(None)


class ClaimRunner:
    """Runs the claims of one worker."""

    def __init__(
        self,
        executor: Executor,
        transactional: TransactionalExecutor,
        committer: Committer,
        part_loader: ClaimPartLoader,
        *,
        registry: Registry,
        claims: ClaimTable,
        slots: Slots,
        notifier: Notifier,
        completions: CompletionWatcher,
        options: WorkerOptions,
        events: Events,
        history_trimmer: HistoryTrimmer | None = None,
    ) -> None:
        self._executor = executor
        self._transactional = transactional
        self._committer = committer
        self._part_loader = part_loader
        self._registry = registry
        self._claims = claims
        self._slots = slots
        self._notifier = notifier
        self._completions = completions
        self._events = events
        self._history_trimmer = history_trimmer
        self._max_seconds = options.run_ahead_time.total_seconds()
        self._max_steps = options.run_ahead_steps
        self._cancel_timeout = options.cancel_timeout.total_seconds()
        self._large_state_lock = asyncio.Lock()

    def run_claim(self, active: ActiveClaim) -> Coroutine[Any, Any, None]:
        """Execute the step of a claim and commit its outcome, and again while the claim is kept."""
        claim = active.claim
        if claim.is_large:
            return self._load_large_parts_and_run(active)
        return self._run_steps(active) if len(claim.state) < LARGE_STATE else self._yield_to_loop_and_run(active)

    async def _yield_to_loop_and_run(self, active: ActiveClaim) -> None:
        """Run a claim with a large state: one is decoded per iteration of the event loop, which runs others between."""
        async with self._large_state_lock:
            await asyncio.sleep(0)
        await self._run_steps(active)

    async def _load_large_parts_and_run(self, active: ActiveClaim) -> None:
        """Run a claim after its large parts were loaded. Its slot is kept until its outcome is committed."""
        try:
            async with self._part_loader.load_parts_within_bound(active.claim):
                await self._run_steps(active)
        except UnreadableClaim as error:
            log.error("instance %d of %s: %s", active.claim.id, active.claim.machine, error)
            self._claims.postpone_soon(active, str(error))

    async def _run_steps(self, active: ActiveClaim) -> None:
        claim, steps, encoded = active.claim, 0, None
        if claim.is_interrupted:
            return None  # withdrawn while the loop was blocked
        started = time.perf_counter()
        deadline = started + self._max_seconds
        try:
            while True:
                steps += 1
                may_continue = steps <= self._max_steps and started < deadline and not self._slots.stopping
                if active.is_cancel_requested():  # before the first step, or between two steps
                    return await self._end_cancelled_claim(active, 0.0, calls_on_cancel=False)
                if active.entry.spec.transactional:
                    return await self._run_transactional_step(active, started)
                active.is_in_step = True
                encoded = await self._executor.execute_step(
                    claim, active.entry, may_continue=may_continue, previous=encoded, task=active.task
                )
                active.is_in_step = False
                took = time.perf_counter() - started
                encoded.commit.began, encoded.commit.took = started, took
                if active.is_cancel_requested() and encoded.commit.kind not in ENDS:
                    return await self._end_cancelled_claim(active, took)
                if encoded.commit.kind != "continue":
                    return await self._commit_claim_end(active, encoded, took)
                committing = self._committer.commit(encoded.commit)
                self._slots.record_step_end_and_lend_slot(active)
                try:
                    result = await committing
                    if not active.has_slot and result is not STALE:
                        await self._slots.wait_for_slot_to_continue(active)
                except (OutcomeRejected, asyncio.CancelledError) as error:
                    return await self._handle_continue_not_committed(active, encoded, error)
                if result is STALE:
                    return self.act_on_commit_result(active, encoded, took, result)
                if result is CANCEL_REQUESTED:
                    return await self._end_cancelled_claim(active, took)
                if self._events.active:
                    self._emit_commit_events(active, encoded, took)
                started = time.perf_counter()
                self._advance_to_next_step(active, encoded)
        except (UndecodableState, LeaseLost, NoFreeThread, UnreadableSignal) as error:
            self._end_without_outcome(active, error)
        except asyncio.CancelledError:
            if active.cancel_reason is None or not active.is_in_step:
                raise
            took = time.perf_counter() - started
            await self._treat_exit_as_engine_error(active, self._end_cancelled_claim(active, took))
        except (SystemExit, KeyboardInterrupt) as error:  # as in _treat_exit_as_engine_error
            self.log_engine_error_and_postpone(active, error)

    def log_engine_error_and_postpone(self, active: ActiveClaim, error: BaseException) -> None:
        """Log an error that is no step's, and return the row with a back-off."""
        # Traceback and kind only: the text of the error may quote a payload.
        frames = TextBlock("".join(traceback.format_tb(error.__traceback__)).rstrip())
        log.error("instance %d: %s\n%s", active.claim.id, describe_for_log(error), frames)
        self._claims.postpone_soon(active, f"an error of the engine: {describe_for_log(error)}")

    def release_unstarted(self, claims: list[ActiveClaim]) -> None:
        """Release claims that have not begun, for another worker to run."""
        self._claims.release_soon(claims)

    def recover_from_cancellation_by_other_code(self, active: ActiveClaim) -> None:
        """Return the row of a task that was cancelled by user code, not by the engine: by a timer that a step has left.

        An outcome that was handed to the committer is sent again, because only its answer tells where the row is. (The
        task itself cannot absorb the cancellation: one that the end of the event loop sends looks the same.)
        """
        if not self._claims.has_claim(active):
            return
        claim, encoded = active.claim, active.unanswered
        log.warning("instance %d: code of %s cancelled its task outside of its step", claim.id, active.entry.spec.label)
        if encoded is not None:
            active.unanswered = None
            self._committer.enqueue_or_flush_apart(
                encoded.commit, ClaimEndReceiver(self, active, encoded, encoded.commit.took)
            )
            return
        self._claims.postpone_soon(active, "its task was cancelled outside of its step")
        self._notifier.wake_local_workers()  # a transaction may have committed without an answer

    def act_on_commit_result(
        self, active: ActiveClaim, encoded: EncodedOutcome, took: float, result: CommitResult | OutcomeRejected
    ) -> None:
        """Act on the answer to an outcome that ends the claim."""
        match result:
            case CommitResult.COMMITTED if encoded.commit.kind == "continue":
                self._claims.release_soon([active])  # its task has ended
            case CommitResult.COMMITTED:
                self._claims.remove(active)
                if active.claim.crashes >= MIN_CRASHES:
                    self._claims.allow_more_crashed_rows(active)
                if encoded.commit.seq % TRIM_EVERY == TRIM_REMAINDER:
                    self._request_history_trim(active, encoded.commit)
                self._report_end_to_waiters(encoded.commit)
                self._wake_after_claim_end(active.claim, encoded)
                if self._events.active:
                    self._emit_commit_events(active, encoded, took)
            case CommitResult.STALE:
                self._claims.remove(active)
                claim = active.claim
                log.warning("instance %d: its outcome is stale, another worker has the claim", claim.id)
                if self._events.active:
                    self._events.emit(StaleOutcome(claim.id, claim.machine, active.entry.spec.name))
            case CommitResult.CANCEL_REQUESTED:
                self._spawn_after_refused_commit(active, self._end_cancelled_claim(active, took))
            case UnusableLimit():
                self._postpone_for_unusable_limit(active, result)
            case OutcomeRejected() if encoded.commit.kind == "cancel":
                self._claims.postpone_soon(active, str(result))
            case OutcomeRejected():
                self._spawn_after_refused_commit(
                    active, self._answer_rejection_as_step_error(active, result, encoded.commit)
                )
            case _:
                assert_never(result)

    def _spawn_after_refused_commit(self, active: ActiveClaim, coroutine: Coroutine[Any, Any, None]) -> None:
        active.has_outcome = False
        self._slots.spawn_without_slot(active, self._treat_exit_as_engine_error(active, coroutine))

    async def _treat_exit_as_engine_error(self, active: ActiveClaim, coroutine: Coroutine[Any, Any, None]) -> None:
        """Treat SystemExit as an error of the engine: out of a task, asyncio passes it on to the whole event loop."""
        try:
            await coroutine
        except (SystemExit, KeyboardInterrupt) as error:
            self.log_engine_error_and_postpone(active, error)

    def _report_end_to_waiters(self, commit: Commit) -> None:
        """Report the end of an instance, if the outcome ends it, to waiters of this process."""
        status = STATUS_OF_END.get(commit.kind)
        if status is not None:
            result, error = (commit.value, None) if commit.kind == "done" else (None, commit.error)
            self._completions.report_end(commit.id, status, result, error, commit.began + commit.took)

    def _wake_after_claim_end(self, claim: Claim, encoded: EncodedOutcome) -> None:
        """Plan the pick of a delayed row, and wake the queue of a freed partition key."""
        if encoded.commit.delay:
            self._slots.schedule_pick_or_wake_others(encoded.queue or claim.queue, encoded.commit.delay)
        if claim.partition_key is not None:
            self._notifier.wake(claim.queue)

    def _request_history_trim(self, active: ActiveClaim, commit: Commit) -> None:
        if self._history_trimmer is not None:
            self._history_trimmer.request_trim(commit.id, commit.seq + 1, active.entry.spec.machine.history_keep)

    async def _handle_continue_not_committed(
        self, active: ActiveClaim, encoded: EncodedOutcome, error: OutcomeRejected | asyncio.CancelledError
    ) -> None:
        """The task of a claim that was meant to go on has no answer to its outcome."""
        if isinstance(error, UnusableLimit):
            return self._postpone_for_unusable_limit(active, error)
        if isinstance(error, OutcomeRejected):
            return await self._answer_rejection_as_step_error(active, error, encoded.commit)
        active.unanswered = encoded
        raise error

    async def _commit_claim_end(self, active: ActiveClaim, encoded: EncodedOutcome, took: float) -> None:
        """Hand an outcome that ends the claim to the committer."""
        active.has_outcome = True
        receiver = ClaimEndReceiver(self, active, encoded, took)
        is_side_flush = self._committer.enqueue_or_flush_apart(encoded.commit, receiver)
        if is_side_flush or active.claim.is_large:
            # Keep the slot until it is committed, so that no other step makes more of its kind.
            receiver.answered = asyncio.get_running_loop().create_future()
            await receiver.answered

    async def _run_transactional_step(self, active: ActiveClaim, started: float) -> None:
        """Run a step whose writes commit with its outcome. `on_error` runs after they are rolled back."""
        try:
            encoded, result = await self._transactional.execute_and_commit(active)
        except TransactionalStepRaised as raised:
            took = time.perf_counter() - started
            encoded = await self._executor.answer_error_after_step(active.claim, active.entry, raised.error)
            encoded.commit.began, encoded.commit.took = started, took
            await self._commit_claim_end(active, encoded, took)
        except UnusableLimit as error:
            self._postpone_for_unusable_limit(active, error)
        else:
            self.act_on_commit_result(active, encoded, time.perf_counter() - started, result)

    async def _end_cancelled_claim(self, active: ActiveClaim, took: float, *, calls_on_cancel: bool = True) -> None:
        """End a claim that has a cancel request; `on_cancel` runs first if the request met a running step."""
        claim, task = active.claim, asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()  # the cancellation was meant for the step, which has received it
        claim.is_interrupted = active.is_in_step = False
        reason = active.cancel_reason
        if reason is None:
            reason = await self._claims.fetch_cancel_reason(active)
        active.cancel_reason = reason
        if calls_on_cancel:
            reason = await self._executor.call_on_cancel(claim, active.entry, reason, self._cancel_timeout)
        encoded = self._executor.encode_cancel_outcome(claim, active.entry, reason)
        encoded.commit.began, encoded.commit.took = time.perf_counter() - took, took
        active.has_outcome = True
        self._committer.enqueue_or_flush_apart(encoded.commit, ClaimEndReceiver(self, active, encoded, took))

    async def _answer_rejection_as_step_error(
        self, active: ActiveClaim, rejected: OutcomeRejected, former: Commit
    ) -> None:
        """Treat an outcome that the database refused as an error of the step. If the answer of `on_error` is refused
        too, the instance fails.
        """
        claim, entry = active.claim, active.entry
        try:
            encoded = await self._executor.answer_error_after_step(claim, entry, rejected)
        except UnreadableSignal as unreadable:
            return self._end_without_outcome(active, unreadable)
        encoded.commit.began, encoded.commit.took = former.began, former.took
        try:
            try:
                result = await self._committer.commit(encoded.commit)
            except UnusableLimit as error:
                return self._postpone_for_unusable_limit(active, error)
            except OutcomeRejected:
                encoded = await self._executor.encode_fail_after_rejection(claim, entry, rejected)
                encoded.commit.began, encoded.commit.took = former.began, former.took
                result = await self._committer.commit(encoded.commit)
        except OutcomeRejected as again:
            self._claims.postpone_soon(active, str(again))
        except asyncio.CancelledError:
            active.unanswered = encoded
            raise
        else:
            self.act_on_commit_result(active, encoded, former.took, result)

    def _advance_to_next_step(self, active: ActiveClaim, encoded: EncodedOutcome) -> None:
        """Bring a kept claim to its next step."""
        claim = active.claim
        if claim.crashes >= MIN_CRASHES:
            self._claims.allow_more_crashed_rows(active)
        if encoded.commit.seq % TRIM_EVERY == TRIM_REMAINDER:
            self._request_history_trim(active, encoded.commit)
        advance_claim(claim, encoded)
        active.entry = self._registry.get_known_step(claim.machine, claim.version, claim.step)

    def _end_without_outcome(
        self, active: ActiveClaim, error: UndecodableState | LeaseLost | NoFreeThread | UnreadableSignal
    ) -> None:
        """End a claim without an outcome."""
        claim = active.claim
        match error:
            case UndecodableState():
                log.error("instance %d of %s: %s", claim.id, active.entry.spec.label, error)
                if self._events.active:
                    self._events.emit(StateUndecodable(claim.id, claim.machine, claim.step, str(error)))
                self._claims.postpone_soon(active, str(error))
            case NoFreeThread():
                log.warning("instance %d of %s is put back: %s", claim.id, active.entry.spec.label, error)
                self._claims.postpone_soon(active, str(error))
            case UnreadableSignal():
                self._claims.reject_signals_and_release_soon(active, error.faults)
            case LeaseLost():
                log.warning("instance %d: the claim was lost during a step", claim.id)
                if self._events.active and self._claims.has_claim(active):  # else a heartbeat has reported it
                    self._events.emit(ClaimLost(claim.id, claim.machine, claim.step))
                self._claims.remove(active)
            case _:
                assert_never(error)

    def _postpone_for_unusable_limit(self, active: ActiveClaim, error: UnusableLimit) -> None:
        """Return a row whose outcome names a limit that cannot be used yet. Its step runs again after a short rest."""
        claim = active.claim
        log.warning("instance %d of %s is put back: %s", claim.id, active.entry.spec.label, error)
        if self._events.active:
            self._events.emit(OutcomePostponed(claim.id, claim.machine, active.entry.spec.name, str(error)))
        self._claims.postpone_soon(active, str(error), LIMIT_REST)

    def _emit_commit_events(self, active: ActiveClaim, encoded: EncodedOutcome, took: float) -> None:
        claim, step = active.claim, active.entry.spec.name
        event = StepCommitted(claim.id, claim.machine, claim.version, step, encoded.outcome, claim.attempt, took)
        self._events.emit(event)
