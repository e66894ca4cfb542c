"""Telemetry: events that the engine emits to subscribers.

An exception in a subscriber is logged once and never reaches the engine. Without subscribers no event is created
(`if events.active`). Events carry ids and names, never payloads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gen_durable.escaping_loggers import get_escaping_logger

log = get_escaping_logger("gen_durable.telemetry")


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step was executed and its outcome committed."""

    id: int
    machine: str
    version: int
    step: str
    outcome: str
    attempt: int
    duration: float


@dataclass(frozen=True, slots=True)
class RowsPicked:
    """The picker claimed `count` rows of a queue, out of `demand` that it requested."""

    queue: str
    count: int
    demand: int
    worker: str


@dataclass(frozen=True, slots=True)
class QueueLoadMeasured:
    """The load of a queue on this worker, emitted at each pick."""

    queue: str
    in_flight: int
    buffer: int
    concurrency: int
    prefetch: int


@dataclass(frozen=True, slots=True)
class QueueDrained:
    """A queue was drained: rows released before they started, and steps still running after the timeout."""

    queue: str
    released: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class PartitionContended:
    """Due rows of a queue wait from now on, because another row of their partition key runs or comes first.

    `id` and `machine` are those of the first of the `count` rows. Emitted by the picker that met the rows, or by the
    client that inserted them.
    """

    queue: str
    count: int
    key: str
    id: int
    machine: str


@dataclass(frozen=True, slots=True)
class RowsBlocked:
    """Due rows of a queue wait from now on for a slot of a concurrency limit, "name" or "name/partition".

    `id` and `machine` are those of the first of the `count` rows. Emitted by the picker that met the rows, or by the
    client that inserted them.
    """

    limit: str
    count: int
    queue: str
    id: int
    machine: str


@dataclass(frozen=True, slots=True)
class RowsThrottled:
    """Due rows of a queue wait from now on for a token of a rate limit, "name" or "name/partition".

    `wanted` rows needed a token: `granted` of them got one, `count` wait. `id` and `machine` are those of the first row
    that waits. Emitted by the picker that met the rows, or by the client that inserted them, which grants none.
    """

    limit: str
    count: int
    wanted: int
    granted: int
    queue: str
    id: int
    machine: str


@dataclass(frozen=True, slots=True)
class RowsUnblocked:
    """Rows that were blocked by a partition key or a limit are runnable again, unblocked by a pick or the reaper."""

    queue: str


@dataclass(frozen=True, slots=True)
class ClaimsReaped:
    """The reaper took back claims whose lease had expired: every few seconds, and as soon as a worker starts."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InstancesCollected:
    """The garbage collector deleted ended instances that were past their retention."""

    count: int


@dataclass(frozen=True, slots=True)
class AwaitTimedOut:
    """The timeout of an `Await` or a join has passed, and a worker has claimed the instance for its next step.

    `signals`: the names that it awaited; empty for a join.
    """

    id: int
    machine: str
    step: str
    signals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StaleOutcome:
    """An outcome was rejected: another worker had taken the claim over."""

    id: int
    machine: str
    step: str


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """A heartbeat, or a write of a checkpoint or an activity, found that another worker has taken a claim over.

    The step is interrupted, and an outcome that it still returns is dropped.
    """

    id: int
    machine: str
    step: str


@dataclass(frozen=True, slots=True)
class InstanceDeadLettered:
    """The reaper failed an instance after `max_crashes` crashes of its workers."""

    id: int
    machine: str
    step: str
    crashes: int


@dataclass(frozen=True, slots=True)
class UnknownStepsFound:
    """Due rows in the worker's queues belong to a machine, version or step that it does not have."""

    machine: str
    version: int
    step: str
    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class StateUndecodable:
    """The stored state of a row could not be decoded; the row was released, to be retried later."""

    id: int
    machine: str
    step: str
    error: str


@dataclass(frozen=True, slots=True)
class OutcomePostponed:
    """An outcome named a limit that is not declared, or a weight that its limit never grants.

    The row was put back; its step runs again later.
    """

    id: int
    machine: str
    step: str
    reason: str


@dataclass(frozen=True, slots=True)
class SignalRejected:
    """A signal was set aside: its payload does not fit its type, or cannot be decrypted. `id` is the instance's."""

    id: int
    machine: str
    signal: str
    reason: str


@dataclass(frozen=True, slots=True)
class EventLoopBlocked:
    """The event loop was blocked for `seconds`, most likely by a step that does not await."""

    seconds: float


Event: TypeAlias = (
    StepCommitted
    | RowsPicked
    | QueueLoadMeasured
    | QueueDrained
    | PartitionContended
    | RowsBlocked
    | RowsThrottled
    | RowsUnblocked
    | ClaimsReaped
    | InstancesCollected
    | AwaitTimedOut
    | StaleOutcome
    | ClaimLost
    | InstanceDeadLettered
    | UnknownStepsFound
    | StateUndecodable
    | OutcomePostponed
    | SignalRejected
    | EventLoopBlocked
)
Subscriber: TypeAlias = Callable[[Event], None]


class _Subscription:
    """One call of `subscribe`. `broken`: its subscriber has raised before."""

    __slots__ = ("broken", "call")

    def __init__(self, call: Subscriber) -> None:
        self.call = call
        self.broken = False


class Events:
    """The subscribers of one `Durable`."""

    __slots__ = ("_subscriptions", "active")

    def __init__(self) -> None:
        self._subscriptions: tuple[_Subscription, ...] = ()
        self.active = False

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event from now on. Returns a function that ends it."""
        subscription = _Subscription(subscriber)
        self._subscriptions = (*self._subscriptions, subscription)
        self.active = True

        def unsubscribe() -> None:
            self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)
            self.active = bool(self._subscriptions)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Call every subscriber."""
        for subscription in self._subscriptions:
            try:
                subscription.call(event)
            except BaseException:  # a SystemExit would end the event loop, and with it the worker
                if not subscription.broken:
                    subscription.broken = True
                    log.exception("a telemetry subscriber raised; its further errors are not logged")
