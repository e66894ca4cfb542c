"""The six outcomes that a step can return.

An outcome is a value that says what the row becomes; nothing happens until the worker commits it. A step returns
`Outcome[R]`, where R is the result type of the machine's `Done`. `Outcome` is covariant, and an outcome that leads to a
step has that step's R, so a type checker follows the result through the whole machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Never, TypeAlias, TypeVar, final, overload

from typing_extensions import TypeIs

from gen_durable.durations import Duration
from gen_durable.errors import InvalidOutcome
from gen_durable.limits import LimitNames, parse_limit_argument
from gen_durable.starts import BoundStep, Start, to_step_spec
from gen_durable.stored_exceptions import describe_error
from gen_durable.unknown_options import option_names, unknown_option_error
from gen_durable.validation import (
    MAX_CHILDREN,
    MAX_SPAWNED,
    check_delay,
    check_name,
    check_priority,
    check_text_key,
)

if TYPE_CHECKING:
    from gen_durable.signals import Signal

S = TypeVar("S")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

OnChildFailure: TypeAlias = Literal["wait", "wake", "cancel_rest"]


@final
class Unchanged:
    """The type of `UNCHANGED`: leave the row's value as it is."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()


class Outcome(Generic[R_co]):
    """The return type of a step: one of `Next`, `Retry`, `Await`, `ScheduleChildren`, `Done`, `Fail`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


@final
class Next(Outcome[R_co]):
    """Go to another step. Its state is committed first; the attempt counter starts again at 0.

    `limit` overrides the step's `@step(limit=)`; `[]` means no limit. `spawn` lists instances to start with this
    commit, without waiting for them; one whose unique key is taken is skipped.
    """

    __slots__ = ("delay", "limits", "partition_key", "priority", "queue", "run_ahead", "spawn", "state", "step")
    __match_args__ = ("step", "state")

    def __init__(
        self,
        step: BoundStep[S, R_co],
        state: S,
        *,
        delay: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        partition_key: str | Unchanged | None = UNCHANGED,
        limit: LimitNames | None = None,
        run_ahead: bool = True,
        spawn: Iterable[Start[Any]] = (),
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option_error("Next", unknown, option_names(Next))
        self.step = to_step_spec(step, "Next")
        self.state: object = state
        self.delay = check_delay(delay, "Next(delay=)") if delay is not None else 0.0
        self.queue = check_name(queue, "Next(queue=)") if queue is not None else None
        self.priority = check_priority(priority) if priority is not None else None
        self.partition_key = (
            check_text_key(partition_key, "Next(partition_key=)") if isinstance(partition_key, str) else partition_key
        )
        self.limits = parse_limit_argument(limit, "Next(limit=)") if limit is not None else None
        self.run_ahead = run_ahead
        self.spawn = _check_spawned(spawn, "Next(spawn=)") if spawn else ()


@final
class Retry(Outcome[Never]):
    """Run the same step again, now or after `delay`; the attempt counter goes up by one."""

    __slots__ = ("delay", "state")
    __match_args__ = ("state", "delay")

    def __init__(self, state: object, delay: Duration = 0, **unknown: Never) -> None:
        if unknown:
            raise unknown_option_error("Retry", unknown, option_names(Retry))
        self.state = state
        self.delay = check_delay(delay, "Retry(delay=)")


@final
class Await(Outcome[R_co]):
    """Wait for a signal, or any of several, without holding a worker; then run `then` (or this same step again).

    With a `timeout` the step also runs if no signal arrives in time; `ctx.timed_out` is then true.
    """

    __slots__ = ("names", "state", "then", "timeout")
    __match_args__ = ("names", "then", "state")

    @overload
    def __init__(
        self: Await[Never],
        signals: Signal[Any] | Iterable[Signal[Any]],
        *,
        state: object,
        timeout: Duration | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        signals: Signal[Any] | Iterable[Signal[Any]],
        *,
        then: BoundStep[S, R_co],
        state: S,
        timeout: Duration | None = None,
    ) -> None: ...
    def __init__(
        self,
        signals: Signal[Any] | Iterable[Signal[Any]],
        *,
        then: object = None,
        state: object,
        timeout: Duration | None = None,
        **unknown: object,
    ) -> None:
        if unknown:
            raise unknown_option_error("Await", unknown, option_names(Await))
        self.names = _parse_awaited_signals(signals)
        self.then = to_step_spec(then, "Await(then=)") if then is not None else None
        self.state = state
        self.timeout = check_delay(timeout, "Await(timeout=)") if timeout is not None else None


@final
class ScheduleChildren(Outcome[R_co]):
    """Start a batch of children and wait until every one has ended; then run `then` with `ctx.children`.

    Pass a large batch as a generator: it is consumed in parts after the step has returned.

    `join` decides when `then` runs: "all" when every child has ended in any way; "any" or a number when that many are
    done, or when too few are left to reach it. After `timeout` it runs in any case. `on_child_failure`: "wait" treats
    a failed or cancelled child as ended, "wake" runs `then` at the first one, "cancel_rest" also cancels the others.
    `cancel_rest=True` cancels the remaining children whenever `then` runs before all have ended; otherwise they
    continue, and `ctx.children` shows their status at that time.
    """

    __slots__ = ("cancel_rest", "children", "needed", "on_child_failure", "state", "then", "timeout")
    __match_args__ = ("children", "then", "state")

    def __init__(
        self,
        children: Iterable[Start[Any]],
        *,
        then: BoundStep[S, R_co],
        state: S,
        join: Literal["all", "any"] | int = "all",
        timeout: Duration | None = None,
        on_child_failure: OnChildFailure = "wait",
        cancel_rest: bool = False,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option_error("ScheduleChildren", unknown, option_names(ScheduleChildren))
        if not isinstance(children, Iterable):
            raise InvalidOutcome(
                f"ScheduleChildren takes a list of Start(...) values, got {type(children).__name__}: "
                "write [Start(Pack.pack, state)]"
            )
        self.children: Iterable[Start[Any]] = children
        if isinstance(children, Sized):  # not a generator: raise where the outcome is created
            self.children = tuple(children)
            check_child_count(len(self.children))
            for child in self.children:
                check_child(child)
            if isinstance(join, int) and 0 < len(self.children) < join:
                raise InvalidOutcome(
                    f"ScheduleChildren(join={join}) can never be reached by {len(self.children)} children"
                )
        self.then = to_step_spec(then, "ScheduleChildren(then=)")
        self.state: object = state
        self.needed = _children_needed(join)
        self.timeout = check_delay(timeout, "ScheduleChildren(timeout=)") if timeout is not None else None
        if on_child_failure not in ("wait", "wake", "cancel_rest"):
            raise InvalidOutcome(
                f"ScheduleChildren(on_child_failure=) takes 'wait', 'wake' or 'cancel_rest', got {on_child_failure!r}"
            )
        self.on_child_failure: OnChildFailure = on_child_failure
        self.cancel_rest = bool(cancel_rest)


def _children_needed(join: object) -> int | None:
    """How many children must be done, or None if all must have ended."""
    if join == "all":
        return None
    if join == "any":
        return 1
    if not isinstance(join, int) or isinstance(join, bool) or not 1 <= join <= MAX_CHILDREN:
        raise InvalidOutcome(f"ScheduleChildren(join=) takes 'all', 'any' or a number from 1 on, got {join!r}")
    return join


def check_child(child: object) -> None:
    """Check one child of `ScheduleChildren`."""
    if not isinstance(child, Start):
        raise InvalidOutcome(
            f"ScheduleChildren takes Start(...) values, got {type(child).__name__}: write Start(Pack.pack, state)"
        )


def check_child_count(count: int) -> None:
    """Check the number of children of one outcome."""
    if count > MAX_CHILDREN:
        raise InvalidOutcome(
            f"ScheduleChildren got {count:,} children, at most {MAX_CHILDREN:,} are allowed at once: "
            "start them in several rounds, or let children start children"
        )


@final
class Done(Outcome[R_co]):
    """End the instance as done, with a result.

    `spawn` lists instances to start with this commit; one whose unique key is taken is skipped.
    """

    __slots__ = ("result", "spawn")
    __match_args__ = ("result",)

    @overload
    def __init__(self: Done[None], *, spawn: Iterable[Start[Any]] = ()) -> None: ...
    @overload
    def __init__(self, result: R_co, *, spawn: Iterable[Start[Any]] = ()) -> None: ...
    def __init__(self, result: object = None, *, spawn: Iterable[Start[Any]] = (), **unknown: object) -> None:
        if unknown:
            raise unknown_option_error("Done", unknown, option_names(Done))
        self.result = result
        self.spawn = _check_spawned(spawn, "Done(spawn=)") if spawn else ()


@final
class Fail(Outcome[Never]):
    """End the instance as failed; the reason is stored in `last_error`.

    `Fail(error)` also stores the class and the traceback of the exception.
    """

    __slots__ = ("error", "reason")
    __match_args__ = ("reason",)

    def __init__(self, reason: str | BaseException) -> None:
        self.error = None if isinstance(reason, str) else reason
        self.reason = reason if isinstance(reason, str) else describe_error(reason)


AnyOutcome: TypeAlias = "Next[Any] | Retry | Await[Any] | ScheduleChildren[Any] | Done[Any] | Fail"


OUTCOMES: Final = (Next, Retry, Await, ScheduleChildren, Done, Fail)


def is_outcome(value: object) -> TypeIs[AnyOutcome]:
    """Whether a value is an outcome."""
    return isinstance(value, OUTCOMES)


def _check_spawned(starts: Iterable[Start[Any]], where: str) -> tuple[Start[Any], ...]:
    several = tuple(starts) if isinstance(starts, Iterable) else (starts,)
    for start in several:
        if not isinstance(start, Start):
            raise InvalidOutcome(f"{where} takes a list of Start(...) values, got {type(start).__name__}")
    if len(several) > MAX_SPAWNED:
        raise InvalidOutcome(
            f"{where} got {len(several):,} instances, at most {MAX_SPAWNED:,} are allowed: start one that starts others"
        )
    return several


def _parse_awaited_signals(signals: Signal[Any] | Iterable[Signal[Any]]) -> tuple[str, ...]:
    from gen_durable.signals import Signal  # not at the top: an import cycle through context

    several = tuple(signals) if isinstance(signals, Iterable) else (signals,)
    for signal in several:
        if not isinstance(signal, Signal):
            raise InvalidOutcome(f"Await takes Signal values, got {type(signal).__name__}: declare Signal(name, type)")
    if not several:
        raise InvalidOutcome("Await needs at least one signal to wait for")
    return tuple(sorted({signal.name for signal in several}))
