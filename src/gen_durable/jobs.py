"""Jobs: a machine with one step, written as a function.

In: a function of one typed argument, and `ctx` if it wants it. Out: a `Job`, to be inserted and given to a worker.
A job that returns is done; one that raises is tried again after `backoff(attempt)` until `max_attempts`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, overload

from gen_durable.context import Context
from gen_durable.errors import DefinitionError
from gen_durable.limits import check_delay, check_name
from gen_durable.machines import MachineSpec, StepSpec, resolve_hints

A = TypeVar("A")
R = TypeVar("R")

Backoff = Callable[[int], timedelta]
DEFAULT_MAX_ATTEMPTS = 20


class Cancel(Exception):
    """Raise this inside a job to fail it at once, without further attempts."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def backoff(
    attempt: int, *, base: timedelta = timedelta(seconds=1), cap: timedelta = timedelta(hours=1), jitter: float = 0.1
) -> timedelta:
    """How long to wait before the next attempt: doubling from `base` up to `cap`, plus up to `jitter` of it."""
    seconds = min(base.total_seconds() * 2.0 ** min(max(attempt, 0), 60), cap.total_seconds())
    return timedelta(seconds=seconds * (1 + random.uniform(0, jitter)))  # noqa: S311  # spreads retries, no secret


class Job(Generic[A, R]):
    """A durable function: give it to `insert` and to a `Worker`. Calling it calls the function, as in a unit test."""

    __slots__ = ("__gen_durable_step__", "__wrapped__", "backoff", "fn", "max_attempts", "wants_context")

    def __init__(self, fn: Callable[..., Any], spec: StepSpec, max_attempts: int, backoff: Backoff) -> None:
        self.fn = fn
        self.__wrapped__ = fn
        self.__gen_durable_step__ = spec
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.wants_context = len(inspect.signature(fn).parameters) == 2

    @property
    def name(self) -> str:
        """The durable name that rows have."""
        return self.__gen_durable_step__.machine.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


class _Decorator(Protocol):
    """What `@job(...)` gives: it takes the function, async or not, with ctx or without."""

    @overload
    def __call__(self, fn: Callable[[A], Awaitable[R]], /) -> Job[A, R]: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], Awaitable[R]], /) -> Job[A, R]: ...
    @overload
    def __call__(self, fn: Callable[[A], R], /) -> Job[A, R]: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], R], /) -> Job[A, R]: ...


@overload
def job(fn: Callable[[A], Awaitable[R]], /) -> Job[A, R]: ...
@overload
def job(fn: Callable[[A, Context], Awaitable[R]], /) -> Job[A, R]: ...
@overload
def job(fn: Callable[[A], R], /) -> Job[A, R]: ...
@overload
def job(fn: Callable[[A, Context], R], /) -> Job[A, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    version: int = 1,
    queue: str = "default",
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    backoff: Backoff = backoff,
    timeout: timedelta | None = None,
) -> _Decorator: ...
def job(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    queue: str = "default",
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    backoff: Backoff = backoff,
    timeout: timedelta | None = None,
) -> Any:
    """Make a durable job of a function of one argument (and `ctx`, if it takes a second)."""

    def make(function: Callable[..., Any]) -> Job[Any, Any]:
        if not inspect.isfunction(function):
            raise DefinitionError(f"@job goes on a function, got {type(function).__name__}: put @job outermost")
        label = check_name(name or function.__name__, "a job's name", DefinitionError)
        check_name(queue, f"the queue of job {label!r}", DefinitionError)
        if not isinstance(max_attempts, int) or max_attempts < 1:
            raise DefinitionError(f"max_attempts of job {label!r} must be 1 or more, got {max_attempts!r}")
        if not isinstance(version, int) or not 1 <= version <= 2_147_483_647:
            raise DefinitionError(f"the version of job {label!r} must be an int from 1 on, got {version!r}")
        if len(inspect.signature(function).parameters) not in (1, 2):
            raise DefinitionError(
                f"job {label!r} must take one argument, or one and ctx, not {inspect.signature(function)}: "
                "gather several values in a dataclass"
            )
        seconds = check_delay(timeout, f"the timeout of job {label!r}") if timeout is not None else None
        steps: dict[str, StepSpec] = {}
        machine = MachineSpec(label, version, queue, steps, _read_job_hints)
        spec = StepSpec(machine, "run", (), seconds, function, inspect.iscoroutinefunction(function))
        steps["run"] = spec
        made: Job[Any, Any] = Job(function, spec, max_attempts, backoff)
        return made

    return make if fn is None else make(fn)


def _read_job_hints(function: Callable[..., Any], label: str) -> tuple[object, object]:
    hints = resolve_hints(function, label)
    argument = next(iter(inspect.signature(function).parameters))
    return hints.get(argument, Any), hints.get("return", Any)


