"""`Start`, the description of an instance to start, and `to_step_spec`, which reads the step or job that a user passed.

Both check their arguments without I/O. Clients insert `Start` values; outcomes carry them as children and spawns.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, cast, final, overload

from typing_extensions import TypedDict, Unpack

from gen_durable.durations import Duration
from gen_durable.errors import GenDurableError, InputError, InvalidOutcome, TooLarge
from gen_durable.json_codec import encode_metadata
from gen_durable.limits import Limit, LimitNames, parse_limit_argument
from gen_durable.signals import SignalMessage
from gen_durable.unknown_options import option_names, unknown_option_error
from gen_durable.validation import (
    check_delay,
    check_name,
    check_priority,
    check_schedule_moment,
    check_text_key,
    to_stored_group,
    to_stored_key,
)

if TYPE_CHECKING:
    from gen_durable.context import Context
    from gen_durable.jobs import Job
    from gen_durable.machines import StepSpec
    from gen_durable.outcomes import Outcome

S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

BoundStep: TypeAlias = "Callable[[S, Context], Awaitable[Outcome[R]] | Outcome[R]]"
"""A step as passed inside a machine: `self.ship`."""
Startable: TypeAlias = "Callable[[Any, S, Context], Awaitable[Outcome[R]] | Outcome[R]] | Job[S, R]"
"""A step or job as passed from outside: `Checkout.start`, `greet`."""

Scope: TypeAlias = Literal[
    "runnable", "executing", "awaiting_signal", "awaiting_children", "done", "failed", "cancelled"
]
LIVE: Final[tuple[Scope, ...]] = ("runnable", "executing", "awaiting_signal", "awaiting_children")
FOREVER: Final[tuple[Scope, ...]] = (*LIVE, "done", "failed", "cancelled")
Unique: TypeAlias = Literal["live", "forever"]
MAX_FIRST_SIGNALS: Final = 1000
_NO_OPTIONS: Final = (0, None, None, None, None, None, None, None, None, None)


class StartOptions(TypedDict, total=False):
    """The keyword arguments of `Start`, for calls that pass them on."""

    queue: str | None
    priority: int
    partition_key: str | None
    delay: Duration | None
    schedule_at: datetime | None
    unique_key: str | bytes | None
    unique: Unique | None
    unique_scope: Iterable[Scope] | None
    keep: Duration | None
    limit: LimitNames | None
    group: tuple[str, str] | None
    metadata: Mapping[str, Any] | None
    signals: Iterable[SignalMessage]


@final
class Start(Generic[R_co]):
    """An instance to start: for `insert_many`, `ScheduleChildren`, `spawn` and `or_start`.

    `state` may be left out for a job without an argument. `unique` says how long the instance holds its `unique_key`:
    "live" (default) until it ends, "forever" also afterwards; then retention spares its row. `unique_scope`, a list of
    statuses, says it in detail. `keep` is how long the row is kept after its end, in place of the retention. `limit`
    replaces the `@step(limit=)` of the first step; `[]`
    means none. `group` is the instance's group in a fair queue: `("tenant", "acme")`. `metadata` is stored for
    filters, `{"order": 42}`; the engine does not read it. `signals` are in its inbox from the beginning, in their
    order: `signals=[payment.of(Paid(100))]`; an instance that is not started, because its key is taken, gets none.
    """

    __slots__ = (
        "delay",
        "group",
        "has_options",
        "keep",
        "limits",
        "metadata",
        "partition_key",
        "priority",
        "queue",
        "schedule_at",
        "signals",
        "state",
        "step",
        "unique_key",
        "unique_scope",
    )

    priority: int
    partition_key: str | None
    delay: float
    schedule_at: datetime | None
    unique_key: bytes | None
    unique_scope: tuple[Scope, ...]
    keep: float | None
    limits: tuple[Limit, ...]
    group: str | None
    metadata: str | None
    signals: tuple[SignalMessage, ...]
    has_options: bool  # any of the above but limits differs from its default: a batch without options skips its columns

    @overload
    def __init__(
        self,
        step: Startable[S, R_co],
        state: S,
        *,
        queue: str | None = None,
        priority: int = 0,
        partition_key: str | None = None,
        delay: Duration | None = None,
        schedule_at: datetime | None = None,
        unique_key: str | bytes | None = None,
        unique: Unique | None = None,
        unique_scope: Iterable[Scope] | None = None,
        keep: Duration | None = None,
        limit: LimitNames | None = None,
        group: tuple[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        signals: Iterable[SignalMessage] = (),
    ) -> None: ...
    @overload
    def __init__(self, step: Startable[None, R_co], **options: Unpack[StartOptions]) -> None: ...
    def __init__(
        self,
        step: Startable[Any, R_co],
        state: object = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        partition_key: str | None = None,
        delay: Duration | None = None,
        schedule_at: datetime | None = None,
        unique_key: str | bytes | None = None,
        unique: Unique | None = None,
        unique_scope: Iterable[Scope] | None = None,
        keep: Duration | None = None,
        limit: LimitNames | None = None,
        group: tuple[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        signals: Iterable[SignalMessage] = (),
        **unknown: object,
    ) -> None:
        if unknown:
            raise unknown_option_error("insert (or Start)", unknown, option_names(Start))
        self.step = spec = to_step_spec(step, "Start", InputError)
        self.state = state
        self.queue = check_name(queue, "queue") if queue is not None else spec.machine.queue
        options = (priority, partition_key, delay, schedule_at, unique_key, unique, unique_scope, keep, group, metadata)
        self.has_options = options != _NO_OPTIONS or type(priority) is not int or signals != ()
        if self.has_options:
            self.priority = check_priority(priority)
            self.partition_key = check_text_key(partition_key, "partition_key") if partition_key is not None else None
            if delay is not None and schedule_at is not None:
                raise InputError("give either delay or schedule_at, not both")
            self.delay = check_delay(delay, "delay") if delay is not None else 0.0
            self.schedule_at = check_schedule_moment(schedule_at, "schedule_at") if schedule_at is not None else None
            self.unique_key = to_stored_key(unique_key, "unique_key") if unique_key is not None else None
            self.unique_scope = _resolve_unique_scope(self.unique_key, unique, unique_scope)
            self.keep = check_delay(keep, "keep") if keep is not None else math.inf if unique == "forever" else None
            self.group = to_stored_group(group) if group is not None else None
            self.metadata = encode_metadata(metadata) if metadata else None
            self.signals = _check_first_signals(signals) if signals != () else ()
        else:
            self.priority, self.delay, self.unique_scope, self.signals = 0, 0.0, (), ()
            self.partition_key = self.schedule_at = self.unique_key = self.keep = self.group = self.metadata = None
        self.limits = parse_limit_argument(limit, "limit") if limit is not None else spec.limits_for(state)

    def __repr__(self) -> str:
        return f"Start({self.step.machine.name}.{self.step.name})"


def to_step_spec(step: object, where: str, error: type[GenDurableError] = InvalidOutcome) -> StepSpec:
    """The spec of a step or job; raises `error`, naming `where` it was passed, for any other value."""
    spec = getattr(step, "__gen_durable_step__", None)
    if spec is not None and hasattr(spec, "machine"):
        return cast("StepSpec", spec)
    from gen_durable.outcomes import Outcome  # here, not above: outcomes imports this module

    if inspect.iscoroutine(step):
        step.close()
        raise error(f"{where} got a step that was called: pass the step itself, as in Next(self.ship, state)")
    if isinstance(step, Outcome):
        raise error(f"{where} got the outcome of a step that was called: pass the step itself")
    name = getattr(step, "__name__", None)
    if callable(step) and name is not None:
        raise error(f"{where} got {name!r}, which is not a step: decorate it with @step or @job")
    raise error(f"{where} takes a step such as self.ship, Checkout.start or a @job, got {type(step).__name__}")


def _check_first_signals(signals: Iterable[SignalMessage]) -> tuple[SignalMessage, ...]:
    if not isinstance(signals, Iterable):
        raise InputError(f"signals takes a list such as [payment.of(Paid(100))], got {type(signals).__name__}")
    several = tuple(signals)
    if len(several) > MAX_FIRST_SIGNALS:
        raise TooLarge(f"an instance is inserted with at most {MAX_FIRST_SIGNALS:,} signals, got {len(several):,}")
    for message in several:
        if not isinstance(message, SignalMessage):
            raise InputError(f"signals takes values such as payment.of(Paid(100)), got {type(message).__name__}")
    return several


def _resolve_unique_scope(key: bytes | None, unique: Unique | None, scope: Iterable[Scope] | None) -> tuple[Scope, ...]:
    """The statuses in which an instance holds its key. Raises `InputError`."""
    if key is None and unique is None and scope is None:
        return ()
    if unique not in (None, "live", "forever"):
        raise InputError(f"unique must be 'live' or 'forever', got {unique!r}")
    if unique is not None and scope is not None:
        raise InputError("give either unique or unique_scope, not both")
    if key is None:
        if unique == "forever":
            raise InputError("unique='forever' needs a unique_key")
        return ()
    if scope is not None:
        return _check_unique_scope(scope)
    return FOREVER if unique == "forever" else LIVE


def _check_unique_scope(scope: Iterable[Scope]) -> tuple[Scope, ...]:
    if not isinstance(scope, Iterable):
        raise InputError(f"unique_scope takes a list of statuses, got {type(scope).__name__}")
    several = tuple(dict.fromkeys(scope))
    for status in several:
        if status not in FOREVER:
            raise InputError(f"unique_scope names {status!r}, which is no status: use some of {', '.join(FOREVER)}")
    if "runnable" not in several:
        raise InputError(
            "unique_scope must include 'runnable', the status in which every instance starts: "
            "a conflict that appears later could not be reported to the caller of insert"
        )
    return several
