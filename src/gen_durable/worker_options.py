"""The options of a worker. A value or a combination that cannot work raises `ConfigError` when the worker is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypedDict, cast

from gen_durable.durations import Duration
from gen_durable.errors import ConfigError
from gen_durable.instances import Instance
from gen_durable.retention import Retention, to_retention
from gen_durable.unknown_options import unknown_option_error
from gen_durable.validation import check_delay, check_name, check_positive_duration

MIN_MAX_CRASHES: Final = 3
MAX_CLAIMS: Final = 50_000  # half of what one call takes (require_max_elements.sql): queues also claim ahead
OnDeadLetter: TypeAlias = Callable[[Instance], Awaitable[None] | None]
"""The hook that a worker calls with an instance which its reaper has failed after `max_crashes`."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as a worker serves it: how many steps run at a time, and how picks are shared out.

    With `fair_by="tenant"` picks go round the tenants that have due rows, by the group given on insert
    (`group=("tenant", "acme")`): a tenant with a million rows does not hold up the others. Priorities come first.
    """

    concurrency: int
    fair_by: str | None = None

    def __post_init__(self) -> None:
        _check_int_at_least("Queue(concurrency)", self.concurrency, 1)
        if self.fair_by is not None:
            check_name(self.fair_by, "Queue(fair_by=)", ConfigError)


class WorkerKeywordArguments(TypedDict, total=False):
    """The keyword arguments of `Worker` beside its queues; `WorkerOptions` has the defaults."""

    lease_ttl: Duration
    heartbeat_interval: Duration
    max_loop_block: Duration
    poll_interval: Duration
    max_poll_interval: Duration
    reap_interval: Duration | None
    gc_interval: Duration | None
    gc_retention: Duration | Retention | None
    gc_batch: int
    prefetch: int | None
    min_demand: int
    drain_timeout: Duration
    cancel_timeout: Duration
    max_crashes: int | None
    on_dead_letter: OnDeadLetter | None
    run_ahead_time: Duration
    run_ahead_steps: int
    flush_batch: int
    threads: int | None


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """All options of a worker, checked. Durations are stored as `timedelta`."""

    queues: Mapping[str, int | Queue] = field(default_factory=lambda: {"default": 10})
    lease_ttl: timedelta = timedelta(seconds=15)
    heartbeat_interval: timedelta = timedelta(seconds=5)
    max_loop_block: timedelta = timedelta(minutes=5)
    poll_interval: timedelta = timedelta(seconds=1)
    max_poll_interval: timedelta = timedelta(seconds=5)
    reap_interval: timedelta | None = timedelta(seconds=5)
    gc_interval: timedelta | None = timedelta(seconds=60)
    gc_retention: timedelta | Retention | None = field(default_factory=Retention)
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
        for name in (
            "lease_ttl",
            "heartbeat_interval",
            "max_loop_block",
            "poll_interval",
            "max_poll_interval",
            "cancel_timeout",
        ):
            _replace_seconds_by_timedelta(self, name, check_positive_duration)
        for name in ("reap_interval", "gc_interval"):
            if getattr(self, name) is not None:
                _replace_seconds_by_timedelta(self, name, check_positive_duration)
        for name in ("drain_timeout", "run_ahead_time"):
            _replace_seconds_by_timedelta(self, name, check_delay)
        if self.gc_retention is not None and not isinstance(self.gc_retention, Retention):
            _replace_seconds_by_timedelta(self, "gc_retention", check_delay)
        for name in ("gc_batch", "min_demand", "flush_batch"):
            _check_int_at_least(name, getattr(self, name), 1)
        _check_int_at_least("run_ahead_steps", self.run_ahead_steps, 0)
        for name, least in (("prefetch", 0), ("threads", 1)):
            if getattr(self, name) is not None:
                _check_int_at_least(name, getattr(self, name), least)
        if self.max_crashes is not None:
            _check_int_at_least("max_crashes", self.max_crashes, 1)
            if self.max_crashes < MIN_MAX_CRASHES:
                raise ConfigError(
                    f"max_crashes must be at least {MIN_MAX_CRASHES}, got {self.max_crashes}: an instance that crashed "
                    "beside another one runs apart from the third time on"
                )
        if self.on_dead_letter is not None and not callable(self.on_dead_letter):
            raise ConfigError(f"on_dead_letter must be a function of one instance, got {self.on_dead_letter!r}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.heartbeat_interval * 3 > self.lease_ttl:
            raise ConfigError(
                f"heartbeat_interval ({self.heartbeat_interval}) must be at most a third of lease_ttl "
                f"({self.lease_ttl}): a claim must survive two missed heartbeats"
            )
        if self.max_poll_interval < self.poll_interval:
            raise ConfigError(
                f"max_poll_interval ({self.max_poll_interval}) must not be below poll_interval ({self.poll_interval}): "
                "it is the ceiling that idle polling backs off to"
            )
        claims = sum(self.concurrency_by_queue.values()) + (self.prefetch or 0) * len(self.queues)
        if claims > MAX_CLAIMS:
            raise ConfigError(
                f"the queues can hold {claims:,} rows (concurrency + prefetch), a worker at most {MAX_CLAIMS:,}: "
                "use several workers"
            )
        for name, slots in self.concurrency_by_queue.items():
            rows = slots + (self.prefetch or 0)
            if self.min_demand > rows:
                raise ConfigError(
                    f"min_demand ({self.min_demand}) is above the {rows} rows that queue {name!r} can hold "
                    "(concurrency + prefetch): it would never pick"
                )

    @classmethod
    def from_keyword_arguments(
        cls, queues: Mapping[str, int | Queue] | None, settings: WorkerKeywordArguments
    ) -> WorkerOptions:
        """The options of `Worker(queues=..., **settings)`, with numbers of seconds read as durations."""
        for name in settings:
            if name not in WorkerKeywordArguments.__annotations__:
                raise unknown_option_error("Worker", [name], WorkerKeywordArguments.__annotations__, ConfigError)
        checked = cast("dict[str, Any]", settings)  # __post_init__ turns numbers of seconds into timedelta
        return cls(**checked) if queues is None else cls(queues=dict(queues), **checked)

    @property
    def concurrency_by_queue(self) -> dict[str, int]:
        """The concurrency of each queue."""
        return {name: q.concurrency if isinstance(q, Queue) else q for name, q in self.queues.items()}

    @property
    def group_kind_by_queue(self) -> dict[str, str]:
        """The kind of group that each fair queue goes round by."""
        return {name: q.fair_by for name, q in self.queues.items() if isinstance(q, Queue) and q.fair_by is not None}

    @property
    def retention(self) -> Retention:
        """`gc_retention` by status."""
        return to_retention(self.gc_retention, "gc_retention")


def _check_queues(queues: Mapping[str, int | Queue]) -> None:
    if not isinstance(queues, Mapping):
        raise ConfigError(f"queues must map names to concurrency, as in {{'default': 10}}, got {type(queues).__name__}")
    for name, slots in queues.items():
        check_name(name, "a queue's name", ConfigError)
        if not isinstance(slots, Queue):
            _check_int_at_least(f"the concurrency of queue {name!r}", slots, 1)


def _replace_seconds_by_timedelta(options: object, name: str, check: Callable[..., float]) -> None:
    """Replace a checked duration of a frozen dataclass by its `timedelta`."""
    seconds = check(getattr(options, name), name, ConfigError)
    object.__setattr__(options, name, timedelta(seconds=seconds))


def _check_int_at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least} on, got {value!r}")
