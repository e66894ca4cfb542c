"""The options of a worker, checked when it is made: a combination that cannot work is refused with the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias, TypedDict

from gen_durable.errors import ConfigError
from gen_durable.instances import Instance
from gen_durable.validation import check_name

DAY: Final = timedelta(days=1)
OnDeadLetter: TypeAlias = Callable[[Instance], Awaitable[None] | None]
"""What a worker calls with an instance that its reaper has failed after `max_crashes`."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as a worker serves it: how many steps run at a time, and whose turns it takes.

    With `fair_by="tenant"` picks go round the tenants that have work, by the group that rows were given on insert
    (`group=("tenant", "acme")`): one with a million rows does not hold up another's one. Priorities come first.
    """

    concurrency: int
    fair_by: str | None = None

    def __post_init__(self) -> None:
        _check_int("Queue(concurrency)", self.concurrency, 1)
        if self.fair_by is not None:
            check_name(self.fair_by, "Queue(fair_by=)", ConfigError)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended instances are kept, by how they ended. None keeps them for good."""

    done: timedelta | None = DAY
    failed: timedelta | None = DAY
    cancelled: timedelta | None = DAY

    def __post_init__(self) -> None:
        for status in ("done", "failed", "cancelled"):
            if getattr(self, status) is not None:
                _check_not_negative(f"the retention of {status} instances", getattr(self, status))


class WorkerSettings(TypedDict, total=False):
    """The keyword arguments of `Worker` beside its queues; see `WorkerOptions` for what each means."""

    lease_ttl: timedelta
    heartbeat_interval: timedelta
    poll_interval: timedelta
    max_poll_interval: timedelta
    reap_interval: timedelta | None
    gc_interval: timedelta | None
    gc_retention: timedelta | Retention | None
    gc_batch: int
    prefetch: int | None
    min_demand: int
    drain_timeout: timedelta
    cancel_timeout: timedelta
    max_crashes: int | None
    on_dead_letter: OnDeadLetter | None
    run_ahead_time: timedelta
    run_ahead_steps: int
    flush_batch: int
    threads: int | None


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Everything that a worker can be told. The defaults suit most."""

    queues: Mapping[str, int | Queue] = field(default_factory=lambda: {"default": 10})
    lease_ttl: timedelta = timedelta(seconds=15)
    heartbeat_interval: timedelta = timedelta(seconds=5)
    poll_interval: timedelta = timedelta(seconds=1)
    max_poll_interval: timedelta = timedelta(seconds=5)
    reap_interval: timedelta | None = timedelta(seconds=5)
    gc_interval: timedelta | None = timedelta(seconds=60)
    gc_retention: timedelta | Retention | None = DAY
    gc_batch: int = 10_000
    prefetch: int | None = None
    min_demand: int = 1
    drain_timeout: timedelta = timedelta(seconds=5)
    cancel_timeout: timedelta = timedelta(seconds=5)
    max_crashes: int | None = None
    on_dead_letter: OnDeadLetter | None = None
    run_ahead_time: timedelta = timedelta(milliseconds=100)
    run_ahead_steps: int = 32
    flush_batch: int = 500
    threads: int | None = None

    def __post_init__(self) -> None:
        _check_queues(self.queues)
        for name in ("lease_ttl", "heartbeat_interval", "poll_interval", "max_poll_interval", "cancel_timeout"):
            _check_positive(name, getattr(self, name))
        for name in ("reap_interval", "gc_interval"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        for name in ("drain_timeout", "run_ahead_time"):
            _check_not_negative(name, getattr(self, name))
        if self.gc_retention is not None and not isinstance(self.gc_retention, Retention):
            _check_not_negative("gc_retention", self.gc_retention)
        for name in ("gc_batch", "min_demand", "flush_batch"):
            _check_int(name, getattr(self, name), 1)
        _check_int("run_ahead_steps", self.run_ahead_steps, 0)
        for name, least in (("prefetch", 0), ("max_crashes", 1), ("threads", 1)):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), least)
        if self.on_dead_letter is not None and not callable(self.on_dead_letter):
            raise ConfigError(f"on_dead_letter must be a function of one instance, got {self.on_dead_letter!r}")
        if self.heartbeat_interval * 3 > self.lease_ttl:
            raise ConfigError(
                f"heartbeat_interval ({self.heartbeat_interval}) must be at most a third of lease_ttl "
                f"({self.lease_ttl}): a claim must survive two missed beats"
            )
        if self.max_poll_interval < self.poll_interval:
            raise ConfigError(
                f"max_poll_interval ({self.max_poll_interval}) must not be below poll_interval ({self.poll_interval}): "
                "it is the ceiling that idle polling backs off to"
            )
        for name, slots in self.slots.items():
            rows = slots + (self.prefetch or 0)
            if self.min_demand > rows:
                raise ConfigError(
                    f"min_demand ({self.min_demand}) is above the {rows} rows that queue {name!r} can hold "
                    "(concurrency + prefetch): it would never pick"
                )

    @property
    def slots(self) -> dict[str, int]:
        """The concurrency of each queue."""
        return {name: q.concurrency if isinstance(q, Queue) else q for name, q in self.queues.items()}

    @property
    def fair(self) -> dict[str, str]:
        """The queues that take turns, and by what."""
        return {name: q.fair_by for name, q in self.queues.items() if isinstance(q, Queue) and q.fair_by is not None}

    @property
    def retention(self) -> Retention:
        """`gc_retention` by status."""
        if isinstance(self.gc_retention, Retention):
            return self.gc_retention
        return Retention(self.gc_retention, self.gc_retention, self.gc_retention)


def _check_queues(queues: Mapping[str, int | Queue]) -> None:
    if not isinstance(queues, Mapping):
        raise ConfigError(f"queues must map names to concurrency, as in {{'default': 10}}, got {type(queues).__name__}")
    for name, slots in queues.items():
        check_name(name, "a queue's name", ConfigError)
        if not isinstance(slots, Queue):
            _check_int(f"the concurrency of queue {name!r}", slots, 1)


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise ConfigError(f"{name} must be a timedelta, got {value!r}: write timedelta(seconds=...)")
    if value <= timedelta(0):
        raise ConfigError(f"{name} must be above zero, got {value}")


def _check_not_negative(name: str, value: object) -> None:
    if not isinstance(value, timedelta):
        raise ConfigError(f"{name} must be a timedelta, got {value!r}: write timedelta(seconds=...)")
    if value < timedelta(0):
        raise ConfigError(f"{name} must not be negative, got {value}")


def _check_int(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least} on, got {value!r}")
