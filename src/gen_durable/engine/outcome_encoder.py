"""An outcome as the row of a flush: encoded, checked, ready to be committed with others.

In: the claim, the step, and whatever the step returned. Out: a `EncodedOutcome`, or an error of ours that is the
step's own error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any, Final, assert_never, cast

import msgspec
from typing_extensions import Buffer

from gen_durable.codec import encode
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
    describe,
    is_outcome,
)
from gen_durable.signals import Received
from gen_durable.starts import Start
from gen_durable.store.types import Claim, Commit, ManyChildren
from gen_durable.validation import MAX_CHILDREN_BYTES, clean_error

CHUNK: Final = 1000


class EncodedOutcome(msgspec.Struct, eq=False, gc=False):
    """What became of one execution: the row of a flush, the outcome's name, the signals it consumes, a new queue.

    `state` is what was decoded from what is being committed: what the next step of a held claim is given. `rest` are
    children beyond the first chunk: to be drawn chunk by chunk, with room for others in between. `gc=False` as in
    store.rows.
    """

    commit: Commit
    outcome: str
    consumed: tuple[int, ...] = ()
    queue: str | None = None
    state: object = None
    rest: Iterator[Start[Any]] | None = None
    plain: str | None = None  # the state before it was sealed

    def draw(self) -> bool:
        """Encode some more of the children; tells whether there may be others."""
        brood, rest = self.commit.brood, self.rest
        if brood is None or rest is None:
            return False
        some = [_child(child) for child in islice(rest, CHUNK)]
        _add(brood, some)
        check_child_count(len(brood.encoded))
        _check_size(brood.size)
        return len(some) == CHUNK


class SameState:
    """The state of a job's retry: the row keeps the one it has."""


SAME_STATE: Final = SameState()


def encode_outcome(
    claim: Claim, spec: StepSpec, ctx: Context, returned: object, *, hold: bool, error: Exception | None = None
) -> EncodedOutcome:
    """Encode what a step returned. `hold`: a plain `Next` may keep its claim. `error`: what `on_error` answers."""
    if not is_outcome(returned):
        raise InvalidOutcome(
            f"step {spec.label} returned {type(returned).__name__}: "
            "return Next, Retry, Await, ScheduleChildren, Done or Fail"
        )
    outcome: AnyOutcome = returned
    commit = Commit(claim.id, claim.epoch, claim.seq, "")
    extra: dict[str, Any] = {}
    consumed: tuple[int, ...] = ()
    queue: str | None = None
    state: object = None
    rest: Iterator[Start[Any]] | None = None
    match outcome:
        case Next():
            consumed = _ids(ctx.awaited)
            queue = outcome.queue
            state = _next(commit, extra, outcome, claim, spec, hold=hold)
        case Retry():
            commit.kind = "retry"
            if not isinstance(outcome.state, SameState):
                commit.value, _ = _state_for(spec, spec, outcome.state)
            commit.delay = outcome.delay
        case Await():
            _await(commit, extra, outcome, claim, spec, ctx=ctx)
        case ScheduleChildren():
            consumed = _ids(ctx.awaited)
            commit.kind = "children"
            commit.value, _ = _state_for(outcome.then, spec, outcome.state)
            commit.step = outcome.then.name
            _limit(extra, outcome.then.limits_for(outcome.state), claim)
            _barrier(commit, extra, outcome)
            rest = _children(commit, extra, outcome, spec)
        case Done():
            commit.kind = "done"
            commit.value = encode(outcome.result, f"the result of {spec.label}").decode()
            commit.parent = claim.parent_id
            if outcome.spawn:
                extra["spawn"] = _several(outcome.spawn)
        case Fail():
            commit.kind = "fail"
            commit.error = clean_error(outcome.reason)
            commit.parent = claim.parent_id
        case _:
            assert_never(outcome)
    if error is not None and commit.error is None:
        commit.error = describe(error)
    if spec.machine.history != "off":
        _remember(commit, extra, claim, spec)
    if consumed:
        extra["consumed"] = consumed
    if extra:
        commit.extra = msgspec.json.encode(extra).decode()
    return EncodedOutcome(commit, type(outcome).__name__, consumed, queue, state, rest)


def encode_cancel(claim: Claim, spec: StepSpec, reason: str) -> EncodedOutcome:
    """The end of an instance that was cancelled while it was ours."""
    commit = Commit(claim.id, claim.epoch, claim.seq, "cancel", error=reason, parent=claim.parent_id)
    extra: dict[str, Any] = {}
    if spec.machine.history != "off":
        _remember(commit, extra, claim, spec)
    if extra:
        commit.extra = msgspec.json.encode(extra).decode()
    return EncodedOutcome(commit, "Cancel")


def _remember(commit: Commit, extra: dict[str, Any], claim: Claim, spec: StepSpec) -> None:
    """What the history keeps of an outcome (record_transitions.sql)."""
    commit.origin = spec.name
    if claim.attempt:
        extra["attempt"] = claim.attempt
    if spec.machine.history == "states":
        extra["keep"] = True


def _ids(signals: tuple[Received, ...]) -> tuple[int, ...]:
    return tuple([s.id for s in signals]) if signals else ()


def _next(
    commit: Commit, extra: dict[str, Any], outcome: Next[Any], claim: Claim, spec: StepSpec, *, hold: bool
) -> object:
    """Returns the state as the next step will be given it."""
    commit.value, state = _state_for(outcome.step, spec, outcome.state)
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
    if outcome.spawn:
        extra["spawn"] = _several(outcome.spawn)
    limits = outcome.limits
    if limits is None:
        limits = outcome.step.limits_for(outcome.state) if outcome.step.limit is not None else ()
    if limits or claim.limited is not None:
        _limit(extra, limits, claim)
    commit.kind = "continue" if hold and outcome.run_ahead and outcome.delay == 0 and not extra else "next"
    return state


def _await(
    commit: Commit, extra: dict[str, Any], outcome: Await[Any], claim: Claim, spec: StepSpec, *, ctx: Context
) -> None:
    commit.kind = "await"
    commit.value, _ = _state_for(outcome.then or spec, spec, outcome.state)
    commit.delay = outcome.timeout
    if outcome.then is not None and outcome.then is not spec:
        commit.step = outcome.then.name
        _limit(extra, outcome.then.limits_for(outcome.state), claim)
    extra["awaits"] = outcome.names
    # Only what it was handed as awaited: a signal that merely lay in the inbox has woken nobody yet, and must.
    extra["seen"] = [s.id for s in ctx.awaited if s.name in outcome.names]


def _limit(extra: dict[str, Any], limits: tuple[Limit, ...], claim: Claim) -> None:
    """The limits of the step that comes; none, after a step that had some, is told too."""
    if limits or claim.limited is not None:
        extra["limits"] = [[limit.name, limit.partition, limit.weight] for limit in limits]


def _state_for(target: StepSpec, current: StepSpec, state: object) -> tuple[str, object]:
    if target.machine is not current.machine:
        raise InvalidOutcome(
            f"step {current.label} goes on to {target.label}, a step of another machine: "
            "pass a step of the same object, as in Next(self.ship, state)"
        )
    return target.state_codec.store(state)


def _barrier(commit: Commit, extra: dict[str, Any], outcome: ScheduleChildren[Any]) -> None:
    """When the parent goes on, and what becomes of the children that have not ended then."""
    commit.delay = outcome.timeout
    if outcome.needed is not None:
        extra["join"] = outcome.needed
    if outcome.on_child_failure != "wait":
        extra["on_failure"] = outcome.on_child_failure
    if outcome.cancel_rest:
        extra["cancel_rest"] = True


def _children(
    commit: Commit, extra: dict[str, Any], outcome: ScheduleChildren[Any], spec: StepSpec
) -> Iterator[Start[Any]] | None:
    """Encode the children if they are few. Else begin a brood; returns what is to be drawn still."""
    rest = iter(outcome.children)
    # A generator that was made in a thread is drawn there.
    here = spec.is_async or isinstance(outcome.children, Sized)
    first = _several(islice(rest, CHUNK + 1)) if here else []
    if here and len(first) <= CHUNK:
        extra["children"] = first
        return None
    commit.brood = ManyChildren.empty()
    _add(commit.brood, first)
    return rest


def _several(starts: Iterable[Start[Any]]) -> list[dict[str, object]]:
    """Instances to be started, as long as all of them together are not too large."""
    encoded: list[dict[str, object]] = []
    size = 0
    for start in starts:
        one = _child(start)
        size += len(memoryview(cast(Buffer, one["state"])))
        _check_size(size)
        encoded.append(one)
    return encoded


def _check_size(size: int) -> None:
    if size > MAX_CHILDREN_BYTES:
        raise TooLarge(
            f"the instances that one outcome starts are over {MAX_CHILDREN_BYTES:,} bytes of JSON: "
            "keep large data elsewhere and pass where it is"
        )


def _add(brood: ManyChildren, several: list[dict[str, object]]) -> None:
    for child in several:
        key = child["unique_key"]
        brood.add(msgspec.json.encode(child), None if key is None else str(key).encode())


def _child(start: Start[Any]) -> dict[str, object]:
    check_child(start)
    try:
        state, _ = start.step.state_codec.store(start.state)
    except EncodeError as error:
        raise EncodeError(f"an instance cannot be started: {error}") from error
    return {
        "fsm": start.step.machine.name,
        "version": start.step.machine.version,
        "step": start.step.name,
        "state": msgspec.Raw(state.encode()),
        "queue": start.queue,
        "priority": start.priority,
        "partition_key": start.partition_key,
        "delay": start.delay,
        "schedule_at": start.schedule_at,
        "unique_key": start.unique_key.hex() if start.unique_key is not None else None,
        "unique_scope": "{" + ",".join(start.unique_scope) + "}",
        "limits": [[limit.name, limit.partition, limit.weight] for limit in start.limits] or None,
        "group_key": start.group,
        "metadata": None if start.metadata is None else msgspec.Raw(start.metadata.encode()),
    }


def advance(claim: Claim, ran: EncodedOutcome) -> None:
    """Bring a claim to where it is after a held outcome was committed: the next step, with the committed state."""
    commit = ran.commit
    if commit.step is not None:
        claim.step = commit.step
    if commit.value is not None:
        claim.state = commit.value if ran.plain is None else ran.plain
    claim.attempt = 0
    claim.seq += 1
    claim.visit = claim.seq
    claim.journal = claim.notes = None
    claim.awaits = None
    claim.children = ()
    if ran.consumed:
        claim.inbox = tuple(s for s in claim.inbox if s.id not in ran.consumed)
