"""Jobs: a machine with one step, written as a function.

In: a function of one typed argument, and `ctx` if it wants it. Out: a `Job`, to be inserted and given to a worker.
A job that returns is done; one that raises is tried again after `backoff(attempt)` until `max_attempts`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar, overload

from typing_extensions import TypeVar as TypeVarWithDefault

from gen_durable.backoff import backoff
from gen_durable.context import Context
from gen_durable.durations import Duration
from gen_durable.errors import DefinitionError
from gen_durable.journal import History, check_history
from gen_durable.limits import StepLimit
from gen_durable.machines import MachineSpec, StepSpec, check_limit, check_transactional, check_version, resolve_hints
from gen_durable.validation import check_delay, check_name

A = TypeVar("A")
R = TypeVar("R")
A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVarWithDefault("C_co", covariant=True, default=Any)
"""What calling the function gives: R, or a coroutine of it. `Job[A, R]` is enough where nobody calls it."""

Backoff = Callable[[int], Duration]
DEFAULT_MAX_ATTEMPTS = 20


class Abort(Exception):
    """Raise this inside a job to fail it at once, without further attempts."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Job(Generic[A_contra, R_co, C_co]):
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

    @overload
    def __call__(self, argument: A_contra, /) -> C_co: ...
    @overload
    def __call__(self, argument: A_contra, ctx: Context, /) -> C_co: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


class _Decorator(Protocol):
    """What `@job(...)` gives: it takes the function, async or not, with ctx or without."""

    @overload
    def __call__(self, fn: Callable[[A], Coroutine[Any, Any, R]], /) -> Job[A, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], Coroutine[Any, Any, R]], /) -> Job[A, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[[A], R], /) -> Job[A, R, R]: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], R], /) -> Job[A, R, R]: ...


@overload
def job(fn: Callable[[A], Coroutine[Any, Any, R]], /) -> Job[A, R, Coroutine[Any, Any, R]]: ...
@overload
def job(fn: Callable[[A, Context], Coroutine[Any, Any, R]], /) -> Job[A, R, Coroutine[Any, Any, R]]: ...
@overload
def job(fn: Callable[[A], R], /) -> Job[A, R, R]: ...
@overload
def job(fn: Callable[[A, Context], R], /) -> Job[A, R, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    version: int = 1,
    queue: str = "default",
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    backoff: Backoff = backoff,
    timeout: Duration | None = None,
    limit: StepLimit | None = None,
    transactional: bool = False,
    history: History = "transitions",
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
    timeout: Duration | None = None,
    limit: StepLimit | None = None,
    transactional: bool = False,
    history: History = "transitions",
) -> Any:
    """Make a durable job of a function of one argument (and `ctx`, if it takes a second)."""

    def make(function: Callable[..., Any]) -> Job[Any, Any]:
        if not inspect.isfunction(function):
            raise DefinitionError(f"@job goes on a function, got {type(function).__name__}: put @job outermost")
        label = check_name(function.__name__ if name is None else name, "a job's name", DefinitionError)
        check_name(queue, f"the queue of job {label!r}", DefinitionError)
        if not isinstance(max_attempts, int) or isinstance(max_attempts, bool) or max_attempts < 1:
            raise DefinitionError(f"max_attempts of job {label!r} must be 1 or more, got {max_attempts!r}")
        check_version(version, f"job {label!r}")
        check_history(history, f"job {label!r}")
        _check_signature(function, label)
        seconds = None if timeout is None else check_delay(timeout, f"the timeout of job {label!r}", DefinitionError)
        check_limit(limit, f"the limit of job {label!r}")
        if transactional:
            check_transactional(function, f"job {label!r}")
        steps: dict[str, StepSpec] = {}
        machine = MachineSpec(label, version, queue, steps, _read_job_hints, history)
        spec = StepSpec(
            machine, "run", (), seconds, function, inspect.iscoroutinefunction(function), limit, transactional
        )
        steps["run"] = spec
        made: Job[Any, Any] = Job(function, spec, max_attempts, backoff)
        return made

    return make if fn is None else make(fn)


def _check_signature(function: Callable[..., Any], label: str) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    positional = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if len(parameters) not in (1, 2) or not positional:
        raise DefinitionError(
            f"job {label!r} must take one argument, or one and ctx, not {inspect.signature(function)}: "
            "gather several values in a dataclass"
        )
    if len(parameters) == 2 and parameters[1].default is not inspect.Parameter.empty and parameters[1].name != "ctx":
        raise DefinitionError(
            f"job {label!r} takes {parameters[1].name!r} with a default, but a second argument is the context: "
            "gather several values in a dataclass"
        )


def _read_job_hints(function: Callable[..., Any], label: str) -> tuple[object, object]:
    hints = resolve_hints(function, label)
    argument = next(iter(inspect.signature(function).parameters))
    return hints.get(argument, Any), hints.get("return", Any)
