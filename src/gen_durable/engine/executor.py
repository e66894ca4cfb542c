"""Executes one step of a claim and encodes its outcome.

Everything a step can do wrong becomes that step's own error and is answered by its retry policy or by `on_error`: an
exception, a timeout, a return value that is no outcome, a state that cannot be stored. None of it reaches a batch
with the outcomes of others. The executor calls user code and reads nothing from the database itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Sized
from itertools import islice
from typing import Any, Final, cast

from gen_durable.context import Context
from gen_durable.core.claim_and_outcome_encryption import ClaimAndOutcomeEncryption
from gen_durable.durations import Duration
from gen_durable.engine.hook_caller import HookCaller, await_within_seconds
from gen_durable.engine.many_children_reader import ManyChildrenReader
from gen_durable.engine.outcome_encoder import EncodedOutcome, encode_cancel_outcome, encode_outcome
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.errors import LeaseLost, NoFreeThread, StepCancelled, UnreadableSignal
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.jobs import Job
from gen_durable.machines import Machine, StepSpec
from gen_durable.outcomes import UNCHANGED, Done, Fail, Next, Outcome, Retry, ScheduleChildren
from gen_durable.printable_text import TextBlock
from gen_durable.retry_policy import Abort, RetryPolicy
from gen_durable.signals import Received
from gen_durable.step_registry import RunnableStep
from gen_durable.step_services import JournalService, LimitService, StepTransaction
from gen_durable.store.types import Claim
from gen_durable.stored_exceptions import describe_error, error_type_of, format_traceback
from gen_durable.validation import MAX_CHILDREN, to_storable_error

log = get_escaping_logger("gen_durable.worker")
errors_log = get_escaping_logger("gen_durable.errors")
YIELD_SECONDS: Final = 0.001  # not 0: answers that are on their way to other tasks must arrive


class UndecodableState(Exception):
    """The stored state does not decode to what the step takes, so the step cannot be called."""


class TransactionalStepRaised(Exception):
    """Wraps what a transactional step raised, so that its transaction is rolled back before `on_error` runs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(describe_error(error))
        self.error = error


class Executor:
    """Executes steps for one worker.

    With `may_continue`, a plain `Next` keeps its claim, so that the next step runs ahead in the same task.
    """

    __slots__ = ("_children", "_encryption", "_hooks", "_journal", "_limits", "_threads", "_worker")

    def __init__(
        self,
        worker: str,
        threads: ThreadPool,
        children: ManyChildrenReader,
        limits: LimitService,
        journal: JournalService,
        *,
        encryption: ClaimAndOutcomeEncryption | None = None,
    ) -> None:
        self._worker = worker
        self._threads = threads
        self._hooks = HookCaller(threads)
        self._children = children
        self._limits = limits
        self._journal = journal
        self._encryption = encryption

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
        """Execute a step and encode its outcome. Raises the errors that `ClaimRunner` ends a claim with, cancellation.

        `previous`, the committed outcome of this claim that led here, holds the decoded state. `task` is the current
        task, if known. With a `transaction` the step's error is raised as `TransactionalStepRaised`.
        """
        state = previous.state if previous is not None else self._decode_state_and_open_journal(claim, entry)
        ctx, claim.taken = self._make_context(claim, entry.spec, transaction), None
        try:
            if entry.plain:
                returned = await (entry.call(state, ctx) if entry.wants_context else entry.call(state))
            elif entry.spec.is_async:
                call = entry.call(state, ctx) if entry.wants_context else entry.call(state)
                returned = await _await_within_timeout(call, entry.spec)
            else:
                returned = await self._call_and_encode_in_thread(claim, entry, state, ctx, may_continue=may_continue)
            if task is None or task.cancelling():
                await _absorb_cancellation_by_step(claim)
            if type(returned) is EncodedOutcome:  # from a thread; isinstance takes longer
                encoded = returned
            else:
                if entry.is_job:
                    returned = Done(returned)
                encoded = encode_outcome(claim, entry.spec, ctx, returned, may_continue=may_continue)
            if encoded.remaining_starts is not None:
                await _await_within_timeout(self._encode_remaining_starts(encoded, entry.spec), entry.spec)
            return encoded if self._encryption is None else await _encrypt_outcome(encoded, claim, self._encryption)
        except asyncio.CancelledError as raised:
            if claim.is_interrupted:
                raise
            await _absorb_cancellation_by_step(claim)
            error: Exception = _to_step_cancelled(entry.spec, raised)
        except (LeaseLost, NoFreeThread, UnreadableSignal):
            raise
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = _to_step_cancelled(entry.spec, raised)
        if transaction is not None:
            raise TransactionalStepRaised(error) from error
        return await self.answer_step_error(claim, entry, ctx, error, may_continue=may_continue)

    def _decode_state_and_open_journal(self, claim: Claim, entry: RunnableStep) -> object:
        try:
            if self._encryption is not None:
                self._encryption.decrypt_claim(claim)
            if claim.journal is not None:
                self._journal.get_or_create_step_journal(claim, claim.seq)
            return entry.spec.state_codec.decode(claim.state)
        except UnreadableSignal:
            raise
        except BaseException as error:  # types of the user are built here: a SystemExit would end the process
            raise UndecodableState(describe_error(error)) from error

    async def answer_error_after_step(self, claim: Claim, entry: RunnableStep, error: Exception) -> EncodedOutcome:
        """Run `on_error` for an error found after the step: a refused outcome, or a transaction rolled back."""
        context = self._make_context(claim, entry.spec)
        return await self.answer_step_error(claim, entry, context, error, may_continue=False)

    async def encode_fail_after_rejection(self, claim: Claim, entry: RunnableStep, error: Exception) -> EncodedOutcome:
        """A `Fail` for an instance whose `on_error` answer was refused too, with a reason that can be stored."""
        context = self._make_context(claim, entry.spec)
        return await self._encode_fail(claim, entry, context, describe_error(error), error)

    def encode_cancel_outcome(self, claim: Claim, entry: RunnableStep, reason: str) -> EncodedOutcome:
        """The outcome that ends a cancelled instance."""
        encoded = encode_cancel_outcome(claim, entry.spec, reason)
        if self._encryption is not None:
            self._encryption.encrypt_error(encoded.commit)
        return encoded

    async def _encode_fail(
        self,
        claim: Claim,
        entry: RunnableStep,
        ctx: Context,
        reason: str,
        error: Exception,
        *,
        second: BaseException | None = None,
    ) -> EncodedOutcome:
        fail = Fail(to_storable_error(reason))
        encoded = encode_outcome(claim, entry.spec, ctx, fail, may_continue=False, error=error, second=second)
        return encoded if self._encryption is None else await _encrypt_outcome(encoded, claim, self._encryption)

    async def answer_step_error(
        self, claim: Claim, entry: RunnableStep, ctx: Context, error: Exception, *, may_continue: bool
    ) -> EncodedOutcome:
        """Answer an error of a step: by its retry policy, by `on_error`, or by failing the instance."""
        # The kind of the error, not its text, which may quote a payload. The text is in the row's last_error.
        log.info(
            "instance %d: %s raised %s, attempt %d", claim.id, entry.spec.label, type(error).__name__, claim.attempt
        )
        _log_traceback(claim, entry.spec.label, error)
        handler = "its retry policy"
        try:
            answer = self._retry_policy_outcome(claim, entry, error)
            if answer is None:
                handler = "on_error"
                encoded = await self._call_on_error_and_encode(claim, entry, ctx, error, may_continue=may_continue)
            else:
                encoded = encode_outcome(claim, entry.spec, ctx, answer, may_continue=may_continue, error=error)
            if encoded.remaining_starts is not None:
                await self._encode_remaining_starts(encoded, entry.spec)
            return encoded if self._encryption is None else await _encrypt_outcome(encoded, claim, self._encryption)
        except asyncio.CancelledError as raised:
            if claim.is_interrupted:
                raise
            second: BaseException = StepCancelled(f"{handler} was cancelled from inside")
            second.__cause__ = raised
        except (LeaseLost, NoFreeThread, UnreadableSignal):
            raise
        except BaseException as raised:
            second = raised
        _log_traceback(claim, f"{handler} of {entry.spec.label}", second)
        reason = f"{describe_error(error)} (and then {handler} raised {describe_error(second)})"
        return await self._encode_fail(claim, entry, ctx, reason, error, second=second)

    def _retry_policy_outcome(self, claim: Claim, entry: RunnableStep, error: Exception) -> Outcome[Any] | None:
        """The answer of the step's retry policy; None if `on_error` must be called.

        The policy counts the exceptions of this visit: `attempt` also counts crashes and returned `Retry`s.
        """
        policy, errors = entry.retry, claim.step_errors + 1
        if policy is not None and policy.covers(error):
            if not policy.is_used_up(errors):
                return Retry(UNCHANGED, delay=self._retry_delay(policy, claim.step_errors))
            if entry.spec.step_after_retries is not None:
                then = entry.spec.step_after_retries.fn.__get__(entry.owner)
                # Decoded again: the failed execution may have changed its own copy of the state.
                return Next(then, entry.spec.state_codec.decode(claim.state))
            if not entry.has_on_error:
                return Fail(to_storable_error(f"{describe_error(error)} (attempt {errors} of {policy.attempts})"))
        if entry.has_on_error:
            return None
        return Fail(to_storable_error(f"aborted: {error.reason}") if isinstance(error, Abort) else error)

    def _retry_delay(self, policy: RetryPolicy, earlier_errors: int) -> Duration:
        return policy.backoff(earlier_errors)

    async def _call_on_error_and_encode(
        self, claim: Claim, entry: RunnableStep, ctx: Context, error: Exception, *, may_continue: bool
    ) -> EncodedOutcome:
        """Call `on_error` and encode its answer, in the thread if it is a `def`: see `_call_and_encode_in_thread`."""
        spec, owner = entry.spec, cast(Any, entry.owner)
        is_async = inspect.iscoroutinefunction(owner.on_error)
        # Decoded again: the failed execution may have changed its own copy of the state.
        state = spec.state_codec.decode(claim.state)

        def encode(answer: object) -> EncodedOutcome:
            return encode_outcome(claim, spec, ctx, answer, may_continue=may_continue, error=error)

        def call() -> object:
            answer: object = owner.on_error(state, ctx, error)
            if is_async or inspect.isawaitable(answer):
                return answer
            _exhaust_children_generator(answer)
            return encode(answer)

        seconds = spec.machine.on_error_timeout
        too_long = f"it took longer than its timeout of {seconds:g} s"
        answer = await self._hooks.call_hook(claim, call, is_async=is_async, seconds=seconds, too_long=too_long)
        return answer if type(answer) is EncodedOutcome else encode(answer)

    async def call_on_cancel(self, claim: Claim, entry: RunnableStep, reason: str, timeout: float) -> str:
        """Run the machine's `on_cancel`. Returns the reason, extended by the error of `on_cancel` if it raised."""
        if isinstance(entry.owner, Job) or type(entry.owner).on_cancel is Machine.on_cancel:
            return reason
        owner = entry.owner
        try:
            if self._encryption is not None:
                with contextlib.suppress(UnreadableSignal):  # on_cancel runs without these signals
                    self._encryption.decrypt_claim(claim)
            state = entry.spec.state_codec.decode(claim.state)
            ctx = self._make_context(claim, entry.spec)
            await self._hooks.call_hook(
                claim,
                functools.partial(cast(Any, owner).on_cancel, state, ctx, reason),
                is_async=inspect.iscoroutinefunction(owner.on_cancel),
                seconds=timeout,
                too_long=f"it took longer than {timeout:g} s",
            )
            return reason
        except asyncio.CancelledError as error:
            if claim.is_interrupted:
                raise  # the worker stops
            raised: BaseException = error
        except BaseException as error:
            raised = error
        # The kind of the error, as in answer_step_error.
        log.error("instance %d: on_cancel of %s raised %s", claim.id, entry.spec.label, type(raised).__name__)
        _log_traceback(claim, f"on_cancel of {entry.spec.label}", raised)
        return to_storable_error(f"{reason} (and then on_cancel raised {describe_error(raised)})")

    def _make_context(self, claim: Claim, spec: StepSpec, transaction: StepTransaction | None = None) -> Context:
        # Positional, because keyword arguments cost half a microsecond per step.
        return Context(
            claim.id,
            claim.machine,
            claim.version,
            spec.name,
            claim.attempt,
            claim.queue,
            claim.priority,
            claim.partition_key,
            claim.unique_key,
            claim.parent_id,
            self._worker,
            claim.epoch,
            claim.seq,
            claim.inbox,
            _received_awaited_signals(claim) if claim.inbox else (),
            claim.children,
            None if claim.children is not None else functools.partial(self._children.read_page, claim.id),
            self._limits,
            claim.limited,
            claim.visit,
            self._journal,
            claim,
            transaction,
        )

    async def _encode_remaining_starts(self, encoded: EncodedOutcome, spec: StepSpec) -> None:
        """Encode the rest of many instances to start chunk by chunk, on the loop or in a thread, where the step ran."""
        more = True
        while more:
            if spec.is_async:
                await asyncio.sleep(YIELD_SECONDS)
                more = encoded.encode_next_chunk()
            else:
                more = await (await self._threads.start_call(encoded.encode_next_chunk))

    async def _call_and_encode_in_thread(
        self, claim: Claim, entry: RunnableStep, state: object, ctx: Context, *, may_continue: bool
    ) -> object:
        """Call a `def` step. Returns its outcome, encoded in its thread: a thread that the step has left running may
        change what it returned before the loop has the answer (tests/worker/test_left_threads.py).
        """

        def call() -> object:
            returned: object = entry.call(state, ctx) if entry.wants_context else entry.call(state)
            if inspect.isawaitable(returned):
                return returned
            _exhaust_children_generator(returned)
            outcome = Done(returned) if entry.is_job else returned
            return encode_outcome(claim, entry.spec, ctx, outcome, may_continue=may_continue)

        # A timeout bounds the execution, not the wait for a free thread.
        done = await self._threads.start_call(functools.partial(contextvars.copy_context().run, call))
        result = await _await_within_timeout(done, entry.spec)
        return await result if inspect.isawaitable(result) else result


def _to_step_cancelled(spec: StepSpec, raised: BaseException) -> StepCancelled:
    """The error of a step that raised a cancellation, a SystemExit or the like."""
    is_cancelled = isinstance(raised, asyncio.CancelledError)
    what = (
        "was cancelled from inside" if is_cancelled else f"raised {describe_error(raised)}, which does not end a worker"
    )
    error = StepCancelled(f"step {spec.label} {what}")
    error.__cause__ = raised  # it has the frames
    return error


def _log_traceback(claim: Claim, what: str, error: BaseException) -> None:
    """Log the frames of an error, for users that set the level of this logger to DEBUG. They hold no values."""
    if errors_log.isEnabledFor(logging.DEBUG):
        frames = TextBlock(format_traceback(error) or "(no frames outside of the engine)")
        errors_log.debug("instance %d: %s raised %s\n%s", claim.id, what, error_type_of(error), frames)


async def _encrypt_outcome(
    encoded: EncodedOutcome, claim: Claim, encryption: ClaimAndOutcomeEncryption
) -> EncodedOutcome:
    encoded.plain_state = encoded.commit.value
    await encryption.allocate_ids_and_encrypt_outcome(encoded.commit, claim)
    return encoded


def _exhaust_children_generator(returned: object) -> None:
    """Exhaust a generator of children in the step's own thread, whose resources it may use, and within its timeout."""
    if isinstance(returned, ScheduleChildren) and not isinstance(returned.children, Sized):
        returned.children = tuple(islice(returned.children, MAX_CHILDREN + 1))


async def _await_within_timeout(running: Awaitable[Any], spec: StepSpec) -> Any:
    if spec.timeout is None:
        return await running
    too_long = f"step {spec.label} ran longer than its timeout of {spec.timeout:g} s"
    return await await_within_seconds(running, spec.timeout, too_long)


async def _absorb_cancellation_by_step(claim: Claim) -> None:
    """Absorb the cancellation of a step that cancelled its own task and returned; it must not hit the engine."""
    task = asyncio.current_task()
    if task is None or not task.cancelling() or claim.is_interrupted:
        return
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    if claim.is_interrupted:
        raise asyncio.CancelledError
    while task.cancelling():
        task.uncancel()


def _received_awaited_signals(claim: Claim) -> tuple[Received, ...]:
    return () if claim.awaits is None else tuple(s for s in claim.inbox if s.name in claim.awaits)
