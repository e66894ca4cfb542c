"""Executor: one execution of one step, from a claim to an outcome that can be committed.

In: a claim and the step to run it with. Out: a `EncodedOutcome`: the encoded outcome, and how to go on with the
claim if it is
held. Everything a step can do wrong ends here as that step's own error and reaches `on_error`: an exception, a
timeout, a return value that is no outcome, a state that cannot be stored. Nothing of it gets into a batch with others.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sized
from itertools import islice
from typing import Any, cast

from gen_durable.context import Context, Lent
from gen_durable.core.payloads import ClaimEncryption
from gen_durable.engine.fanout import ReadChildren
from gen_durable.engine.outcome_encoder import SAME_STATE, EncodedOutcome, encode_cancel, encode_outcome
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.errors import LeaseLost, StepCancelled, StepTimeout
from gen_durable.jobs import Abort, Job
from gen_durable.machines import Machine, StepSpec
from gen_durable.outcomes import Done, Fail, Outcome, Retry, ScheduleChildren, describe
from gen_durable.registry import Entry
from gen_durable.services import JournalService, LimitService
from gen_durable.signals import Received
from gen_durable.store.types import Claim
from gen_durable.validation import MAX_CHILDREN, clean_error

log = logging.getLogger("gen_durable.worker")


class UndecodableState(Exception):
    """The stored state does not fit the step: there is nothing to call the step with."""


class StepRaised(Exception):
    """What a transactional step raised: its transaction is rolled back before `on_error` is asked."""

    def __init__(self, error: Exception) -> None:
        super().__init__(describe(error))
        self.error = error


class Executor:
    """Runs steps. `hold` says whether a `Next` may keep its claim and run ahead."""

    __slots__ = ("_doors", "_journal", "_read_children", "_sealer", "_threads", "_worker")

    def __init__(
        self,
        worker: str,
        threads: ThreadPool,
        read_children: ReadChildren,
        doors: LimitService,
        journal: JournalService,
        *,
        sealer: ClaimEncryption | None = None,
    ) -> None:
        self._worker = worker
        self._threads = threads
        self._read_children = read_children
        self._doors = doors
        self._journal = journal
        self._sealer = sealer

    async def step(
        self,
        claim: Claim,
        entry: Entry,
        *,
        hold: bool,
        after: EncodedOutcome | None = None,
        task: asyncio.Task[Any] | None = None,
        lent: Lent | None = None,
    ) -> EncodedOutcome:
        """Execute a step and encode what it decided. Raises only `UndecodableState`, `LeaseLost` and cancellation.

        `after` is the outcome that led here by the same claim: its state was decoded from what was committed already.
        `task` is the one that this runs in, where it is known. With a transaction `lent` to it, the step's error
        is raised as `StepRaised`.
        """
        if after is not None:
            state = after.state
        else:
            try:
                if self._sealer is not None:
                    self._sealer.decrypt(claim)
                if claim.journal is not None:
                    self._journal.notes(claim, claim.seq)
                state = entry.spec.state_codec.decode(claim.state)
            except Exception as unread:
                raise UndecodableState(describe(unread)) from unread
        ctx = self._context(claim, entry.spec, lent)
        try:
            if entry.plain:
                returned = await (entry.call(state, ctx) if entry.wants_context else entry.call(state))
            else:
                returned = await self._call(entry, state, ctx)
            if task is None or task.cancelling():
                await _forget_cancellation(claim)
            if entry.is_job:
                returned = Done(returned)
            ran = encode_outcome(claim, entry.spec, ctx, returned, hold=hold)
            if ran.rest is not None:
                await _in_time(self._draw(ran, entry.spec), entry.spec)
            return ran if self._sealer is None else await _sealed(ran, self._sealer)
        except asyncio.CancelledError:
            if claim.abandoned:
                raise
            await _forget_cancellation(claim)
            error: Exception = StepCancelled(f"step {entry.spec.label} was cancelled from inside")
        except LeaseLost:
            raise
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = StepCancelled(f"step {entry.spec.label} raised {describe(raised)}, which does not end a worker")
        if lent is not None:
            raise StepRaised(error) from error
        return await self.failed(claim, entry, ctx, error, hold=hold)

    async def rejected(self, claim: Claim, entry: Entry, error: Exception, *, hold: bool) -> EncodedOutcome:
        """The database refused the outcome of a step: ask `on_error`, as for an exception in the step."""
        return await self.failed(claim, entry, self._context(claim, entry.spec), error, hold=hold)

    async def given_up(self, claim: Claim, entry: Entry, error: Exception) -> EncodedOutcome:
        """The database refused `on_error`'s answer too: the instance fails, with a reason that surely can be stored."""
        return await self._stop(claim, entry, self._context(claim, entry.spec), describe(error))

    def ended(self, claim: Claim, entry: Entry, reason: str) -> EncodedOutcome:
        """The end of an instance that was cancelled while it was ours."""
        ran = encode_cancel(claim, entry.spec, reason)
        if self._sealer is not None:
            self._sealer.encrypt_error(ran.commit)
        return ran

    async def _stop(self, claim: Claim, entry: Entry, ctx: Context, reason: str) -> EncodedOutcome:
        ran = encode_outcome(claim, entry.spec, ctx, Fail(clean_error(reason)), hold=False)
        return ran if self._sealer is None else await _sealed(ran, self._sealer)

    async def failed(self, claim: Claim, entry: Entry, ctx: Context, error: Exception, *, hold: bool) -> EncodedOutcome:
        """Let whoever answers for the step decide what its error means."""
        # The kind of the error, not its text: that may quote a payload. The text is in the row's last_error.
        log.info(
            "instance %d: %s raised %s, attempt %d", claim.id, entry.spec.label, type(error).__name__, claim.attempt
        )
        try:
            if isinstance(entry.owner, Job):
                ran = encode_outcome(claim, entry.spec, ctx, _retry(entry.owner, ctx, error), hold=hold, error=error)
                return ran if self._sealer is None else await _sealed(ran, self._sealer)
            # The state of the row, not what the failed execution may have made of its own copy.
            state = entry.spec.state_codec.decode(claim.state)
            answer = cast(Any, entry.owner).on_error(state, ctx, error)
            if inspect.isawaitable(answer):
                answer = await answer
            ran = encode_outcome(claim, entry.spec, ctx, answer, hold=hold, error=error)
            if ran.rest is not None:
                await self._draw(ran, entry.spec)
            return ran if self._sealer is None else await _sealed(ran, self._sealer)
        except asyncio.CancelledError:
            if claim.abandoned:
                raise
            second: BaseException = StepCancelled("on_error was cancelled from inside")
        except LeaseLost:
            raise
        except BaseException as raised:
            second = raised
        reason = f"{describe(error)} (and then on_error raised {describe(second)})"
        return await self._stop(claim, entry, ctx, reason)

    async def cancelled(self, claim: Claim, entry: Entry, reason: str, timeout: float) -> str:
        """Let the machine clean up after a step that was stopped. Returns the reason, with what went wrong, if any."""
        if isinstance(entry.owner, Job) or type(entry.owner).on_cancel is Machine.on_cancel:
            return reason
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                if self._sealer is not None:
                    self._sealer.decrypt(claim)
                state = entry.spec.state_codec.decode(claim.state)
                cleaning: object = entry.owner.on_cancel(state, self._context(claim, entry.spec), reason)
                if inspect.isawaitable(cleaning):
                    await cleaning
            return reason
        except TimeoutError as error:
            wrong: BaseException = error if not limit.expired() else StepTimeout(f"it took longer than {timeout:g} s")
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the worker stops
            wrong = error
        except BaseException as error:
            wrong = error
        # The kind of the error, as with on_error: its text is in the row's last_error.
        log.error("instance %d: on_cancel of %s raised %s", claim.id, entry.spec.label, type(wrong).__name__)
        return clean_error(f"{reason} (and then on_cancel raised {describe(wrong)})")

    def _context(self, claim: Claim, spec: StepSpec, lent: Lent | None = None) -> Context:
        # By position: names would cost half a microsecond a step.
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
            _awaited(claim) if claim.inbox else (),
            claim.children,
            None if claim.children is not None else functools.partial(self._read_children, claim.id),
            self._doors,
            claim.limited,
            claim.visit,
            self._journal,
            claim,
            lent,
        )

    async def _draw(self, ran: EncodedOutcome, spec: StepSpec) -> None:
        """Encode the rest of many children, where the step itself ran, with room for other work in between."""
        more = True
        while more:
            if spec.is_async:
                await asyncio.sleep(0)
                more = ran.draw()
            else:
                begun, done = self._threads.run(ran.draw)
                await begun
                more = await done

    async def _call(self, entry: Entry, state: object, ctx: Context) -> Any:
        arguments = (state, ctx) if entry.wants_context else (state,)
        if entry.spec.is_async:
            return await _in_time(entry.call(*arguments), entry.spec)
        call: Callable[[], Any] = functools.partial(_listed, functools.partial(entry.call, *arguments))
        begun, done = self._threads.run(functools.partial(contextvars.copy_context().run, call))
        await begun  # a timeout bounds the execution, not the wait for a free thread
        result = await _in_time(done, entry.spec)
        return await result if inspect.isawaitable(result) else result


async def _sealed(ran: EncodedOutcome, sealer: ClaimEncryption) -> EncodedOutcome:
    ran.plain = ran.commit.value
    await sealer.encrypt(ran.commit)
    return ran


def _listed(call: Callable[[], Any]) -> object:
    """A generator of children may hold what belongs to its step's thread: it is drawn there, in the step's time."""
    returned: object = call()
    if isinstance(returned, ScheduleChildren) and not isinstance(returned.children, Sized):
        returned.children = tuple(islice(returned.children, MAX_CHILDREN + 1))
    return returned  # pyright: ignore[reportUnknownVariableType]


async def _in_time(running: Awaitable[Any], spec: StepSpec) -> Any:
    if spec.timeout is None:
        return await running
    limit = asyncio.timeout(spec.timeout)
    try:
        async with limit:
            return await running
    except TimeoutError:
        if limit.expired():
            raise StepTimeout(f"step {spec.label} ran longer than its timeout of {spec.timeout:g} s") from None
        raise


async def _forget_cancellation(claim: Claim) -> None:
    """A step that cancelled its own task and returned all the same: the cancellation must not hit the engine."""
    task = asyncio.current_task()
    if task is None or not task.cancelling() or claim.abandoned:
        return
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    if claim.abandoned:
        raise asyncio.CancelledError
    while task.cancelling():
        task.uncancel()


def _awaited(claim: Claim) -> tuple[Received, ...]:
    if claim.awaits is None:
        return ()
    return tuple(s for s in claim.inbox if s.name in claim.awaits)


def _retry(job: Job[Any, Any], ctx: Context, error: Exception) -> Outcome[Any]:
    if isinstance(error, Abort):
        return Fail(clean_error(f"aborted: {error.reason}"))
    if ctx.attempt + 1 >= job.max_attempts:
        return Fail(clean_error(f"{describe(error)} (attempt {ctx.attempt + 1} of {job.max_attempts})"))
    return Retry(SAME_STATE, delay=job.backoff(ctx.attempt))
