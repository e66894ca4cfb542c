"""Run: one execution of one step, from a claim to an outcome that can be committed.

In: a claim and the step to run it with. Out: a `Ran`: the encoded outcome, and how to go on with the same claim if it is
held. Everything a step can do wrong ends here as that step's own error and reaches `on_error`: an exception, a
timeout, a return value that is no outcome, a state that cannot be stored. Nothing of it gets into a batch with others.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, assert_never, cast

import msgspec

from gen_durable.codec import encode
from gen_durable.context import Context
from gen_durable.errors import (
    EncodeError,
    InvalidOutcome,
    LeaseLost,
    StepCancelled,
    StepTimeout,
)
from gen_durable.jobs import Cancel, Job
from gen_durable.limits import clean_error
from gen_durable.machines import StepSpec
from gen_durable.outcomes import (
    OUTCOMES,
    AnyOutcome,
    Await,
    Done,
    Keep,
    Next,
    Outcome,
    Replay,
    ScheduleChildren,
    Start,
    Stop,
    describe,
)
from gen_durable.registry import Entry
from gen_durable.signals import Received
from gen_durable.store.rows import Claim, Commit


@dataclass(slots=True)
class Ran:
    """What became of one execution."""

    commit: Commit
    outcome: str
    consumed: tuple[int, ...] = ()


class Undecodable(Exception):
    """The stored state does not fit the step: there is nothing to call the step with."""


class Run:
    """Runs steps. `hold` says whether a `Next` may keep its claim and run ahead."""

    __slots__ = ("_threads", "_worker")

    def __init__(self, worker: str, threads: Executor) -> None:
        self._worker = worker
        self._threads = threads

    async def step(self, claim: Claim, entry: Entry, *, hold: bool) -> Ran:
        """Execute a step and encode what it decided. Raises only `Undecodable`, `LeaseLost` and cancellation."""
        try:
            state = entry.spec.state_codec.decode(claim.state)
        except Exception as error:
            raise Undecodable(describe(error)) from error
        ctx = self._context(claim, entry.spec)
        try:
            returned = await self._call(entry, state, ctx)
            if isinstance(entry.owner, Job):
                returned = Done(returned)
            return _encode(claim, entry.spec, ctx, returned, hold=hold)
        except asyncio.CancelledError:
            if claim.abandoned:
                raise
            error: Exception = StepCancelled(f"step {entry.spec.label} was cancelled from inside")
        except LeaseLost:
            raise
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = StepCancelled(f"step {entry.spec.label} raised {describe(raised)}, which does not end a worker")
        return await self.failed(claim, entry, state, ctx, error, hold=hold)

    async def rejected(self, claim: Claim, entry: Entry, error: Exception, *, hold: bool) -> Ran:
        """The database refused the outcome of a step: ask `on_error`, as for an exception in the step."""
        state = entry.spec.state_codec.decode(claim.state)
        return await self.failed(claim, entry, state, self._context(claim, entry.spec), error, hold=hold)

    async def given_up(self, claim: Claim, entry: Entry, error: Exception) -> Ran:
        """The database refused `on_error`'s answer too: the instance fails, with a reason that surely can be stored."""
        ctx = self._context(claim, entry.spec)
        return _encode(claim, entry.spec, ctx, Stop(clean_error(describe(error))), hold=False)

    async def failed(
        self, claim: Claim, entry: Entry, state: object, ctx: Context, error: Exception, *, hold: bool
    ) -> Ran:
        """Let whoever answers for the step decide what its error means."""
        try:
            if isinstance(entry.owner, Job):
                return _encode(claim, entry.spec, ctx, _retry(entry.owner, ctx, error), hold=hold, error=error)
            answer = cast(Any, entry.owner).on_error(state, ctx, error)
            if inspect.isawaitable(answer):
                answer = await answer
            return _encode(claim, entry.spec, ctx, answer, hold=hold, error=error)
        except asyncio.CancelledError:
            if claim.abandoned:
                raise
            second: BaseException = StepCancelled("on_error was cancelled from inside")
        except LeaseLost:
            raise
        except BaseException as raised:
            second = raised
        reason = f"{describe(error)} (and then on_error raised {describe(second)})"
        return _encode(claim, entry.spec, ctx, Stop(clean_error(reason)), hold=False)

    def _context(self, claim: Claim, spec: StepSpec) -> Context:
        return Context(
            id=claim.id,
            machine=claim.machine,
            version=claim.version,
            step=spec.name,
            attempt=claim.attempt,
            queue=claim.queue,
            priority=claim.priority,
            partition_key=claim.partition_key,
            unique_key=claim.unique_key,
            parent_id=claim.parent_id,
            worker=self._worker,
            claim=claim.claim,
            seq=claim.seq,
            inbox=claim.inbox,
            awaited=_awaited(claim),
            children=claim.children,
        )

    async def _call(self, entry: Entry, state: object, ctx: Context) -> Any:
        spec = entry.spec
        both = not isinstance(entry.owner, Job) or entry.owner.wants_context
        if spec.timeout is None:
            return await self._started(entry, state, ctx, both=both)
        try:
            async with asyncio.timeout(spec.timeout) as limit:
                return await self._started(entry, state, ctx, both=both)
        except TimeoutError:
            if limit.expired():
                raise StepTimeout(f"step {spec.label} ran longer than its timeout of {spec.timeout:g} s") from None
            raise

    async def _started(self, entry: Entry, state: object, ctx: Context, *, both: bool) -> Any:
        if entry.spec.is_async:
            return await (entry.call(state, ctx) if both else entry.call(state))
        call: Callable[..., Any] = (
            functools.partial(entry.call, state, ctx) if both else functools.partial(entry.call, state)
        )
        in_context = functools.partial(contextvars.copy_context().run, call)
        result = await asyncio.get_running_loop().run_in_executor(self._threads, in_context)
        return await result if inspect.isawaitable(result) else result


def advance(claim: Claim, ran: Ran) -> None:
    """Bring a claim to where it is after a held outcome was committed: the next step, with the committed state."""
    commit = ran.commit
    if commit.step is not None:
        claim.step = commit.step
    if commit.value is not None:
        claim.state = commit.value
    claim.attempt = 0
    claim.seq += 1
    claim.awaits = None
    claim.children = ()
    if ran.consumed:
        claim.inbox = tuple(s for s in claim.inbox if s.id not in ran.consumed)


def _awaited(claim: Claim) -> tuple[Received, ...]:
    if not claim.inbox or claim.awaits is None:
        return ()
    return tuple(s for s in claim.inbox if s.name in claim.awaits)


def _retry(job: Job[Any, Any], ctx: Context, error: Exception) -> Outcome[Any]:
    if isinstance(error, Cancel):
        return Stop(clean_error(f"cancelled: {error.reason}"))
    if ctx.attempt + 1 >= job.max_attempts:
        return Stop(clean_error(f"{describe(error)} (attempt {ctx.attempt + 1} of {job.max_attempts})"))
    return Replay(_SAME_STATE, after=job.backoff(ctx.attempt))


class _SameState:
    """The state of a job's retry: the row keeps the one it has."""


_SAME_STATE = _SameState()


def _encode(
    claim: Claim, spec: StepSpec, ctx: Context, returned: object, *, hold: bool, error: Exception | None = None
) -> Ran:
    """An outcome as the row of a flush. Raises for whatever cannot be stored."""
    if not isinstance(returned, OUTCOMES):
        raise InvalidOutcome(
            f"step {spec.label} returned {type(returned).__name__}: "
            "return Next, Replay, Await, ScheduleChildren, Done or Stop"
        )
    outcome = cast(AnyOutcome, returned)
    commit = Commit(claim.id, claim.claim, claim.seq, "")
    consumed = tuple(s.id for s in ctx.awaited)
    extra: dict[str, object] = {}
    match outcome:
        case Next():
            commit.value = _state_for(outcome.step, spec, outcome.state)
            commit.step = outcome.step.name
            commit.delay = outcome.delay
            if outcome.queue is not None and outcome.queue != claim.queue:
                extra["queue"] = outcome.queue
            if outcome.priority is not None and outcome.priority != claim.priority:
                extra["priority"] = outcome.priority
            if not isinstance(outcome.partition_key, Keep) and outcome.partition_key != claim.partition_key:
                extra["partition_key"] = outcome.partition_key
            commit.kind = "hold" if hold and outcome.run_ahead and outcome.delay == 0 and not extra else "next"
            if consumed:
                extra["consumed"] = consumed
        case Replay():
            commit.kind = "replay"
            if not isinstance(outcome.state, _SameState):
                commit.value = _state_for(spec, spec, outcome.state)
            commit.delay = outcome.after
            commit.error = describe(error) if error is not None else None
        case Await():
            target = outcome.then or spec
            commit.kind = "await"
            commit.value = _state_for(target, spec, outcome.state)
            commit.step = outcome.then.name if outcome.then is not None and outcome.then is not spec else None
            commit.delay = outcome.timeout
            extra["awaits"] = outcome.names
            extra["seen"] = [s.id for s in ctx.inbox if s.name in outcome.names]
        case ScheduleChildren():
            commit.kind = "children"
            commit.value = _state_for(outcome.then, spec, outcome.state)
            commit.step = outcome.then.name
            extra["children"] = [_child(child) for child in outcome.children]
            if consumed:
                extra["consumed"] = consumed
        case Done():
            commit.kind = "done"
            commit.value = encode(outcome.result, f"the result of {spec.label}").decode()
            commit.parent = claim.parent_id
        case Stop():
            commit.kind = "stop"
            commit.error = clean_error(outcome.reason)
            commit.parent = claim.parent_id
        case _:
            assert_never(outcome)
    if extra:
        commit.extra = msgspec.json.encode(extra).decode()
    return Ran(commit, type(outcome).__name__, consumed if commit.kind in ("hold", "next", "children") else ())


def _state_for(target: StepSpec, current: StepSpec, state: object) -> str:
    if target.machine is not current.machine:
        raise InvalidOutcome(
            f"step {current.label} goes on to {target.label}, a step of another machine: "
            "pass a step of the same object, as in Next(self.ship, state)"
        )
    return target.state_codec.encode(state).decode()


def _child(start: Start[Any]) -> dict[str, object]:
    try:
        state = start.step.state_codec.encode(start.state)
    except EncodeError as error:
        raise EncodeError(f"a child cannot be started: {error}") from error
    return {
        "fsm": start.step.machine.name,
        "version": start.step.machine.version,
        "step": start.step.name,
        "state": msgspec.Raw(state),
        "queue": start.queue,
        "priority": start.priority,
        "partition_key": start.partition_key,
        "delay": start.delay,
        "schedule_at": start.schedule_at,
        "unique_key": start.unique_key.hex() if start.unique_key is not None else None,
        "unique_scope": "{" + ",".join(start.unique_scope) + "}",
    }
