"""Call one step without a database: build the `Context` that a worker would pass to it.

Payloads, results and states are encoded to JSON and back, so that a type that does not survive this is found here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, cast, overload

from gen_durable.context import Child, Context
from gen_durable.instances import Status
from gen_durable.json_codec import JSON_NULL
from gen_durable.signals import Received, Signal
from gen_durable.starts import Startable, to_step_spec
from gen_durable.step_services import StepConnection, StepTransaction
from gen_durable.testing.memory_journal import NO_CHECKPOINT, MemoryJournal
from gen_durable.validation import to_stored_key

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")
FIRST_SIGNAL_AT: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclasses.dataclass(slots=True)
class StepExecutionStub:
    """The part of a claim that a context reads (`StepExecution`)."""

    step_errors: int
    timed_out: bool
    taken: list[int] | None = None


def make_context(
    step: Startable[Any, Any],
    *,
    attempt: int = 0,
    awaited: Iterable[Received] = (),
    inbox: Iterable[Received] = (),
    timed_out: bool = False,
    children: Iterable[Child] = (),
    id: int = 1,  # noqa: A002 - the name that it has in the context
    queue: str | None = None,
    priority: int = 0,
    partition_key: str | None = None,
    unique_key: str | bytes | None = None,
    parent_id: int | None = None,
    connection: StepConnection | None = None,
    checkpoint: object = NO_CHECKPOINT,
    finished: Mapping[str, object] | None = None,
) -> Context:
    """The context of one execution of a step.

    `awaited` are the signals that the step has waited for, made with `sent`; `timed_out` says that the deadline fired
    without any. `inbox` are other signals that arrived. `children` are made with `child_done` and `child_failed`.
    `checkpoint` and `finished` (results by name) are left by an earlier execution of the step: these activities are not
    called again. `connection` is for a transactional step: an asyncpg connection in a transaction that you roll back.
    """
    spec = to_step_spec(step, "make_context")
    waited_for = list(awaited)
    came = _with_ids_and_times([*waited_for, *inbox])
    return Context(
        id=id,
        machine=spec.machine.name,
        version=spec.machine.version,
        step=spec.name,
        attempt=attempt,
        queue=spec.machine.queue if queue is None else queue,
        priority=priority,
        partition_key=partition_key,
        unique_key=None if unique_key is None else to_stored_key(unique_key, "unique_key"),
        parent_id=parent_id,
        worker="gen_durable.testing",
        claim=attempt + 1,
        seq=0,
        inbox=came,
        awaited=came[: len(waited_for)],
        _children=tuple(dataclasses.replace(child, id=id + n) for n, child in enumerate(children, start=1)),
        _transaction=None if connection is None else StepTransaction(connection),
        _journal=MemoryJournal(checkpoint, finished or {}),
        _claim=StepExecutionStub(attempt, timed_out),
    )


def _with_ids_and_times(signals: Iterable[Received]) -> tuple[Received, ...]:
    """Signals with the ids and times that a database gives them."""
    return tuple(
        dataclasses.replace(signal, id=n, inserted_at=FIRST_SIGNAL_AT + timedelta(seconds=n))
        for n, signal in enumerate(signals, start=1)
    )


@overload
def sent(signal: Signal[None]) -> Received: ...
@overload
def sent(signal: Signal[P], payload: P) -> Received: ...
def sent(signal: Signal[Any], payload: object = None) -> Received:
    """A received signal, for `make_context(awaited=[sent(payment, Paid(100))])`."""
    return Received(id=0, name=signal.name, payload=signal.codec.encode(payload), inserted_at=FIRST_SIGNAL_AT)


def child_done(step: Startable[Any, R], result: R) -> Child:
    """A child that was started at `step` and is done, for `make_context(children=[...])`."""
    return _make_child(step, Status.DONE, None, to_step_spec(step, "child_done").result_codec.encode(result))


def child_failed(step: Startable[Any, Any], error: str) -> Child:
    """A child that was started at `step` and has failed, for `make_context(children=[...])`."""
    return _make_child(step, Status.FAILED, error, None)


def round_trip(step: Startable[S, Any], state: S) -> S:
    """A state as the step gets it: encoded to JSON and decoded. Raises what `insert` would raise."""
    codec = to_step_spec(step, "round_trip").state_codec
    return cast(S, codec.decode(codec.encode(state)))


def _make_child(step: Startable[Any, Any], status: Status, error: str | None, result: bytes | None) -> Child:
    spec = to_step_spec(step, "a child")
    return Child(
        id=0,
        machine=spec.machine.name,
        version=spec.machine.version,
        step=spec.name,
        status=status,
        last_error=error,
        raw_result=result,
        raw_state=JSON_NULL,
    )
