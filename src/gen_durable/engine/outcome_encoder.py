"""Turns what a step returned into the row of a flush: validated, encoded, ready to be committed with others.

Raises gen_durable errors for outcomes that cannot be stored; the executor treats them as errors of the step. No I/O.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Final, assert_never, cast

import msgspec
from typing_extensions import Buffer

from gen_durable.context import Context
from gen_durable.errors import EncodeError, InvalidOutcome, TooLarge
from gen_durable.limits import Limit
from gen_durable.machines import StepSpec
from gen_durable.outcomes import (
    AnyOutcome,
    Await,
    Done,
    Fail,
    Next,
    Retry,
    ScheduleChildren,
    Unchanged,
    check_child,
    check_child_count,
    is_outcome,
)
from gen_durable.starts import Start
from gen_durable.store.history_entries import LINES_PER_FULL_LINE
from gen_durable.store.start_encoder import encode_start
from gen_durable.store.types import Claim, Commit, ManyChildren
from gen_durable.stored_exceptions import describe_error, error_type_of, format_traceback
from gen_durable.validation import MAX_CHILDREN_BYTES, to_storable_error

CHUNK: Final = 1000
CHUNK_BYTES: Final = 250_000  # tens of milliseconds at most, for which the event loop waits


class EncodedOutcome(msgspec.Struct, eq=False, gc=False):
    """An outcome as the row of a flush, with what the worker needs to continue.

    `state` is decoded from what is being committed: the next step of a kept claim is given it. `remaining_starts` are
    the instances to start beyond the first chunk, which are encoded chunk by chunk so that other work runs in between.
    `gc=False` as in store/types.py.
    """

    commit: Commit
    outcome: str  # its class name
    consumed: tuple[int, ...] = ()  # ids of signals
    queue: str | None = None  # a new queue
    state: object = None
    remaining_starts: Iterator[Start[Any]] | None = None
    extra: dict[str, Any] | None = None  # while its "spawn" is not complete
    plain_state: str | None = None  # the encoded state before encryption

    def encode_next_chunk(self) -> bool:
        """Encode the next chunk of instances to start; returns whether there may be more."""
        children, rest, extra = self.commit.many_children, self.remaining_starts, self.extra
        if rest is None:
            return False
        chunk, may_have_more = _encode_chunk_of_starts(rest)
        if children is not None:
            _add_children(children, chunk)
            check_child_count(len(children.encoded))
            _check_children_size(children.size)
        elif extra is not None:
            extra["spawn"] += chunk
            _check_children_size(sum(_start_payload_size(start) for start in extra["spawn"]))
            if not may_have_more:
                self.commit.extra = msgspec.json.encode(extra).decode()
        return may_have_more


def encode_outcome(
    claim: Claim,
    spec: StepSpec,
    ctx: Context,
    returned: object,
    *,
    may_continue: bool,
    error: Exception | None = None,
    second: BaseException | None = None,
) -> EncodedOutcome:
    """Encode what a step returned, or what `on_error` returned for `error`; `second` is what `on_error` raised.

    With `may_continue`, a plain `Next` keeps its claim.
    """
    if not is_outcome(returned):
        raise _wrong_return_error(spec, returned)
    outcome: AnyOutcome = returned
    encoded = EncodedOutcome(Commit(claim.id, claim.epoch, claim.seq, ""), type(outcome).__name__)
    commit = encoded.commit
    extra: dict[str, Any] = {}
    match outcome:
        case Next():
            encoded.queue = outcome.queue
            _encode_first_spawned_chunk(encoded, extra, outcome.spawn)
            encoded.state = _encode_next(commit, extra, outcome, claim, spec, may_continue=may_continue)
        case Done():
            _encode_done(commit, outcome, claim, spec)
            _encode_first_spawned_chunk(encoded, extra, outcome.spawn)
        case Retry():
            _encode_retry(commit, outcome, spec)
        case Await():
            _encode_await(commit, extra, outcome, claim, spec, ctx=ctx)
        case ScheduleChildren():
            encoded.remaining_starts = _encode_schedule_children(commit, extra, outcome, claim, spec)
        case Fail():
            commit.kind = "fail"
            commit.error = to_storable_error(outcome.reason)
            commit.parent = claim.parent_id
        case _:
            assert_never(outcome)
    if error is not None or commit.kind == "fail":
        _add_error_and_traceback(commit, extra, outcome, error, second)
    if ctx.awaited and (consumed := _consumed_signals(outcome, claim, spec, ctx)):
        encoded.consumed = extra["consumed"] = consumed
    _add_history_and_extra(commit, extra, claim, spec)
    return encoded


def encode_cancel_outcome(claim: Claim, spec: StepSpec, reason: str) -> EncodedOutcome:
    """The outcome that ends an instance which was cancelled while this worker had its claim."""
    commit = Commit(claim.id, claim.epoch, claim.seq, "cancel", error=reason, parent=claim.parent_id)
    _add_history_and_extra(commit, {}, claim, spec)
    return EncodedOutcome(commit, "Cancel")


def _add_error_and_traceback(
    commit: Commit,
    extra: dict[str, Any],
    outcome: AnyOutcome,
    error: Exception | None,
    second: BaseException | None,
) -> None:
    """Add the message, the class and the traceback of the exception behind an outcome, if there is one."""
    if error is not None and commit.error is None:
        commit.error = describe_error(error)
    failure = outcome.error if isinstance(outcome, Fail) and outcome.error is not None else error
    if failure is None:
        return
    extra["error_type"] = error_type_of(failure)
    traceback = format_traceback(failure if second is None else second, during=error)
    if traceback is not None:
        extra["traceback"] = traceback


def _wrong_return_error(spec: StepSpec, returned: object) -> InvalidOutcome:
    """The error for a step that returned no outcome, or for a job that returned an awaitable."""
    if not inspect.isawaitable(returned):
        return InvalidOutcome(
            f"step {spec.label} returned {type(returned).__name__}: "
            "return Next, Retry, Await, ScheduleChildren, Done or Fail"
        )
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns that it was never awaited
        return InvalidOutcome(f"step {spec.label} returned a coroutine: did you forget `await`?")
    return InvalidOutcome(
        f"step {spec.label} returned {type(returned).__name__}, which is awaitable: did you forget `await`?"
    )


def _add_history_and_extra(commit: Commit, extra: dict[str, Any], claim: Claim, spec: StepSpec) -> None:
    """Add what the history keeps of an outcome (append_to_history.sql), and encode `extra`."""
    if spec.machine.history != "off":
        commit.ran_step = spec.name
        commit.line = claim.recorded_lines % LINES_PER_FULL_LINE
        commit.is_first_line = claim.recorded_lines == 0
        if commit.line and commit.error is None and spec.machine.history != "states":
            commit.is_full_line = False
            commit.full_line_began = claim.recorded_began
        if spec.machine.history == "states":
            extra["with_state"] = True
    if extra:
        commit.extra = msgspec.json.encode(extra).decode()


def _encode_retry(commit: Commit, outcome: Retry, spec: StepSpec) -> None:
    commit.kind = "retry"
    if not isinstance(outcome.state, Unchanged):
        commit.value, _ = _encode_state(spec, spec, outcome.state)
    commit.delay = outcome.delay


def _encode_done(commit: Commit, outcome: Done[Any], claim: Claim, spec: StepSpec) -> None:
    commit.kind = "done"
    try:
        commit.value = spec.result_codec.encode_and_check_decodable(outcome.result)
    except EncodeError:
        if inspect.isawaitable(outcome.result):
            raise _wrong_return_error(spec, outcome.result) from None
        raise
    commit.parent = claim.parent_id


def _encode_first_spawned_chunk(encoded: EncodedOutcome, extra: dict[str, Any], starts: Iterable[Start[Any]]) -> None:
    """Encode the first chunk of instances to start; the others, if any, are left to `encode_next_chunk`."""
    if starts:
        rest = iter(starts)
        extra["spawn"], may_have_more = _encode_chunk_of_starts(rest)
        if may_have_more:
            encoded.remaining_starts, encoded.extra = rest, extra


def _encode_schedule_children(
    commit: Commit, extra: dict[str, Any], outcome: ScheduleChildren[Any], claim: Claim, spec: StepSpec
) -> Iterator[Start[Any]] | None:
    """Returns the children that remain to be encoded, if they are many."""
    commit.kind = "children"
    commit.value, _ = _encode_state(outcome.then, spec, outcome.state)
    commit.step = outcome.then.name
    _encode_limits(extra, outcome.then.limits_for(outcome.state), claim)
    _encode_barrier(commit, extra, outcome)
    return _encode_children(commit, extra, outcome, spec)


def _consumed_signals(outcome: AnyOutcome, claim: Claim, spec: StepSpec, ctx: Context) -> tuple[int, ...]:
    """The signals that an outcome consumes. If the step called `ctx.take` or `ctx.take_all`: those that it took. If it
    called neither: all that it was given as awaited, unless it goes on collecting in the same step.
    """
    if isinstance(outcome, (Retry, Fail)):
        return ()  # the step runs again with the same signals: by itself, or when an operator retries it
    if claim.taken is not None:
        return tuple(claim.taken)
    return () if isinstance(outcome, Await) and not _leaves_step(outcome, spec) else tuple([s.id for s in ctx.awaited])


def _leaves_step(outcome: Await[Any], spec: StepSpec) -> bool:
    return outcome.then is not None and outcome.then is not spec


def _encode_next(
    commit: Commit, extra: dict[str, Any], outcome: Next[Any], claim: Claim, spec: StepSpec, *, may_continue: bool
) -> object:
    """Returns the state as the next step is given it."""
    commit.value, state = _encode_state(outcome.step, spec, outcome.state, canonical=True)  # it may run at once
    commit.step = outcome.step.name
    commit.delay = outcome.delay or None
    if outcome.queue is not None and outcome.queue != claim.queue:
        extra["queue"] = outcome.queue
    if outcome.priority is not None and outcome.priority != claim.priority:
        extra["priority"] = outcome.priority
    if not isinstance(outcome.partition_key, Unchanged) and outcome.partition_key != claim.partition_key:
        extra["partition_key"] = outcome.partition_key
        if claim.partition_key is not None:
            extra["left"] = [f"partition/{claim.partition_key}"]
    limits = outcome.limits
    if limits is None:
        limits = outcome.step.limits_for(outcome.state) if outcome.step.limit is not None else ()
    if limits or claim.limited is not None:
        _encode_limits(extra, limits, claim)
    commit.kind = "continue" if may_continue and outcome.run_ahead and outcome.delay == 0 and not extra else "next"
    return state


def _encode_await(
    commit: Commit, extra: dict[str, Any], outcome: Await[Any], claim: Claim, spec: StepSpec, *, ctx: Context
) -> None:
    commit.kind = "await"
    commit.value, _ = _encode_state(outcome.then or spec, spec, outcome.state)
    commit.delay = outcome.timeout
    if outcome.then is not None and outcome.then is not spec:
        commit.step = outcome.then.name
        _encode_limits(extra, outcome.then.limits_for(outcome.state), claim)
    extra["awaits"] = outcome.names
    # A step that goes on collecting is not woken again by the signals that it was given as awaited. All others must
    # wake it: signals that it did not take, and those that came in since.
    is_collecting = claim.taken is None and not _leaves_step(outcome, spec)
    extra["seen"] = [s.id for s in ctx.awaited if s.name in outcome.names] if is_collecting else ()


def _encode_limits(extra: dict[str, Any], limits: tuple[Limit, ...], claim: Claim) -> None:
    """The limits of the next step. An empty list is written too if the current step has limits."""
    if limits or claim.limited is not None:
        extra["limits"] = [[limit.name, limit.partition, limit.weight] for limit in limits]


def _encode_state(target: StepSpec, current: StepSpec, state: object, *, canonical: bool = False) -> tuple[str, object]:
    if target.machine is not current.machine:
        raise InvalidOutcome(
            f"step {current.label} goes on to {target.label}, a step of another machine: "
            "pass a step of the same object, as in Next(self.ship, state)"
        )
    return target.state_codec.encode_and_decode(state, canonical=canonical)


def _encode_barrier(commit: Commit, extra: dict[str, Any], outcome: ScheduleChildren[Any]) -> None:
    """When the parent continues, and whether children that have not ended by then are cancelled."""
    commit.delay = outcome.timeout
    if outcome.needed is not None:
        extra["join"] = outcome.needed
    if outcome.on_child_failure != "wait":
        extra["on_failure"] = outcome.on_child_failure
    if outcome.cancel_rest:
        extra["cancel_rest"] = True


def _encode_children(
    commit: Commit, extra: dict[str, Any], outcome: ScheduleChildren[Any], spec: StepSpec
) -> Iterator[Start[Any]] | None:
    """Encode the children if they fit into one statement, by number and size. Else return those beyond the first."""
    rest = iter(outcome.children)
    # A generator that was made in a thread is iterated there (Executor._encode_remaining_starts).
    here = spec.is_async or isinstance(outcome.children, Sized)
    first, may_have_more = _encode_chunk_of_starts(rest) if here else ([], True)
    if not may_have_more:
        extra["children"] = first
        return None
    commit.many_children = ManyChildren.empty()
    _add_children(commit.many_children, first)
    return rest


def _encode_chunk_of_starts(starts: Iterator[Start[Any]]) -> tuple[list[dict[str, object]], bool]:
    """Encode instances to start until they are many or large; returns whether there may be more."""
    encoded: list[dict[str, object]] = []
    size = 0
    for start in starts:
        one = _check_and_encode_start(start)
        encoded.append(one)
        size += _start_payload_size(one)
        if len(encoded) > CHUNK or size > CHUNK_BYTES:
            return encoded, True
    return encoded, False


def _start_payload_size(start: dict[str, object]) -> int:
    """The bytes of the state and the first signals of an instance to start."""
    return sum(len(memoryview(cast(Buffer, start[part]))) for part in ("state", "signals") if part in start)


def _check_children_size(size: int) -> None:
    if size > MAX_CHILDREN_BYTES:
        raise TooLarge(
            f"the instances that one outcome starts are over {MAX_CHILDREN_BYTES:,} bytes of JSON: "
            "store large data elsewhere and pass a reference to it"
        )


def _add_children(children: ManyChildren, chunk: list[dict[str, object]]) -> None:
    for child in chunk:
        key = child["unique_key"]
        children.add(msgspec.json.encode(child), None if key is None else str(key).encode())


def _check_and_encode_start(start: Start[Any]) -> dict[str, object]:
    check_child(start)
    try:
        return encode_start(start)
    except EncodeError as error:
        raise EncodeError(f"an instance cannot be started: {error}") from error


def advance_claim(claim: Claim, encoded: EncodedOutcome) -> None:
    """Bring a kept claim to where its committed outcome leads: the next step, with the committed state."""
    commit = encoded.commit
    if commit.step is not None:
        claim.step = commit.step
    if commit.value is not None:
        claim.state = commit.value if encoded.plain_state is None else encoded.plain_state
    claim.attempt = claim.step_errors = claim.crashes = 0
    claim.seq += 1
    if commit.is_full_line:
        claim.recorded_began = commit.began
    claim.recorded_lines += 1
    claim.visit = claim.seq
    claim.journal = claim.step_journal = None
    claim.awaits = claim.taken = None
    claim.timed_out = False
    claim.children = ()
    if encoded.consumed:
        claim.inbox = tuple(s for s in claim.inbox if s.id not in encoded.consumed)
