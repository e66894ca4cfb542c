"""Events: what the engine tells whoever listens.

In: one frozen value per event. Out: a call to each subscriber, which can never break the engine: an exception in a
subscriber is logged once and dropped. With no subscriber an event is not even made (`if events.active`).
Events carry ids and names, never payloads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

log = logging.getLogger("gen_durable.telemetry")


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step ran and its outcome is committed."""

    id: int
    machine: str
    version: int
    step: str
    outcome: str
    attempt: int
    duration: float


@dataclass(frozen=True, slots=True)
class RowsPicked:
    """A pick was made for a queue: how many rows came of how many asked for."""

    queue: str
    count: int
    demand: int
    worker: str


@dataclass(frozen=True, slots=True)
class QueueSaturation:
    """How full a queue is on this worker, told at each pick."""

    queue: str
    in_flight: int
    buffer: int
    concurrency: int
    prefetch: int


@dataclass(frozen=True, slots=True)
class QueueDrained:
    """A queue was shut down: rows given back unstarted, and steps still under way at the end of the drain."""

    queue: str
    released: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class PartitionContended:
    """Due rows were passed over because their partition key was busy."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class RowsBlocked:
    """Due rows wait for a slot of a concurrency limit from now on. `limit` is "name" or "name/partition"."""

    limit: str
    count: int


@dataclass(frozen=True, slots=True)
class RowsThrottled:
    """Due rows wait for a token of a rate limit from now on. `limit` is "name" or "name/partition"."""

    limit: str
    count: int


@dataclass(frozen=True, slots=True)
class RowsUnblocked:
    """Rows that have waited for a partition key or a limit came back into a queue, found by a pick or a sweep."""

    queue: str


@dataclass(frozen=True, slots=True)
class ClaimsReaped:
    """Claims whose lease had run out were taken back."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InstancesCollected:
    """Ended instances past their retention were deleted."""

    count: int


@dataclass(frozen=True, slots=True)
class StaleOutcome:
    """An outcome came too late: the claim had been taken over. It changed nothing."""

    id: int
    machine: str
    step: str


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """A heartbeat found a claim taken over; its task is cancelled."""

    id: int
    machine: str
    step: str


@dataclass(frozen=True, slots=True)
class InstanceDeadLettered:
    """A row that kept killing its workers was failed for good."""

    id: int
    machine: str
    step: str
    crashes: int


@dataclass(frozen=True, slots=True)
class UnknownStepsFound:
    """Due rows wait in our queues for a machine, version or step that this worker was not given."""

    machine: str
    version: int
    step: str
    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class StateUndecodable:
    """A row's stored state does not fit the code; the row was put back, to be tried again later."""

    id: int
    machine: str
    step: str
    error: str


@dataclass(frozen=True, slots=True)
class EventLoopBlocked:
    """The event loop was blocked for this many seconds, most likely by a step that does not await."""

    seconds: float


Event: TypeAlias = (
    StepCommitted
    | RowsPicked
    | QueueSaturation
    | QueueDrained
    | PartitionContended
    | RowsBlocked
    | RowsThrottled
    | RowsUnblocked
    | ClaimsReaped
    | InstancesCollected
    | StaleOutcome
    | ClaimLost
    | InstanceDeadLettered
    | UnknownStepsFound
    | StateUndecodable
    | EventLoopBlocked
)
Subscriber: TypeAlias = Callable[[Event], None]


class _Subscription:
    """One call of `subscribe`, and whether its subscriber has raised before."""

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
        """Tell every subscriber."""
        for subscription in self._subscriptions:
            try:
                subscription.call(event)
            except Exception:
                if not subscription.broken:
                    subscription.broken = True
                    log.exception("a telemetry subscriber raised; its further errors are not logged")
