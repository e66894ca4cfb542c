"""Jobs: machines with one step, written as a function.

`@job` turns a function of none or one typed argument, and `ctx` if it takes it, into a `Job`, which clients insert and
workers run. A job that returns is done; a job that raises is retried by its `RetryPolicy`, then it fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar, get_args, overload

from typing_extensions import TypeVar as TypeVarWithDefault

from gen_durable.context import Context
from gen_durable.durations import Duration
from gen_durable.errors import DefinitionError
from gen_durable.journal import HISTORY_KEEP, History, check_history_keep, check_history_option
from gen_durable.limits import StepLimit
from gen_durable.machines import (
    MachineSpec,
    StepSpec,
    check_step_limit,
    check_version,
    require_async_for_transaction,
    resolve_type_hints,
    to_declared_retention,
)
from gen_durable.retention import MachineRetention
from gen_durable.retry_policy import DEFAULT_POLICY, RetryPolicy, check_retry_policy
from gen_durable.validation import check_delay, check_name

A = TypeVar("A")
R = TypeVar("R")
A_contra = TypeVar("A_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVarWithDefault("C_co", covariant=True, default=Any)
"""The type that a call of the function returns: R, or a coroutine of R. It defaults, so `Job[A, R]` is enough."""

_FORMER_OPTIONS: Final = {
    "max_attempts": "retry=RetryPolicy(attempts=...)",
    "backoff": "retry=RetryPolicy(backoff=...)",
}


class Job(Generic[A_contra, R_co, C_co]):
    """A durable function: pass it to `insert` and to a `Worker`. A direct call runs the function, as in a unit test."""

    __slots__ = (
        "__gen_durable_step__",
        "__wrapped__",
        "fn",
        "takes_argument",
        "wants_context",
    )

    def __init__(self, fn: Callable[..., Any], spec: StepSpec) -> None:
        self.fn = fn
        self.__wrapped__ = fn
        self.__gen_durable_step__ = spec
        self.takes_argument, self.wants_context = _read_signature(fn, spec.machine.name)

    @property
    def name(self) -> str:
        """The name that rows store."""
        return self.__gen_durable_step__.machine.name

    @overload
    def __call__(self: Job[None, R_co, C_co], /) -> C_co: ...
    @overload
    def __call__(self: Job[None, R_co, C_co], ctx: Context, /) -> C_co: ...
    @overload
    def __call__(self, argument: A_contra, /) -> C_co: ...
    @overload
    def __call__(self, argument: A_contra, ctx: Context, /) -> C_co: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Job({self.name!r})"


class _TakesOnlyContext(Protocol[R_co]):
    """A function whose only parameter is named `ctx`.

    It overlaps with `Callable[[A], R]` on purpose: by its name, the parameter is not the job's argument.
    """

    def __call__(self, ctx: Context) -> R_co: ...


class _JobDecorator(Protocol):
    """The return type of `@job(...)`: it takes the function, async or not, with `ctx` or without."""

    @overload
    def __call__(self, fn: _TakesOnlyContext[Coroutine[Any, Any, R]], /) -> Job[None, R, Coroutine[Any, Any, R]]: ...  # type: ignore[overload-overlap]  # see _TakesOnlyContext
    @overload
    def __call__(self, fn: Callable[[A], Coroutine[Any, Any, R]], /) -> Job[A, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], Coroutine[Any, Any, R]], /) -> Job[A, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[[], Coroutine[Any, Any, R]], /) -> Job[None, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: _TakesOnlyContext[R], /) -> Job[None, R, R]: ...  # type: ignore[overload-overlap]  # see _TakesOnlyContext
    @overload
    def __call__(self, fn: Callable[[A], R], /) -> Job[A, R, R]: ...
    @overload
    def __call__(self, fn: Callable[[A, Context], R], /) -> Job[A, R, R]: ...
    @overload
    def __call__(self, fn: Callable[[], R], /) -> Job[None, R, R]: ...


@overload
def job(fn: _TakesOnlyContext[Coroutine[Any, Any, R]], /) -> Job[None, R, Coroutine[Any, Any, R]]: ...  # type: ignore[overload-overlap]  # see _TakesOnlyContext
@overload
def job(fn: Callable[[A], Coroutine[Any, Any, R]], /) -> Job[A, R, Coroutine[Any, Any, R]]: ...
@overload
def job(fn: Callable[[A, Context], Coroutine[Any, Any, R]], /) -> Job[A, R, Coroutine[Any, Any, R]]: ...
@overload
def job(fn: Callable[[], Coroutine[Any, Any, R]], /) -> Job[None, R, Coroutine[Any, Any, R]]: ...
@overload
def job(fn: _TakesOnlyContext[R], /) -> Job[None, R, R]: ...  # type: ignore[overload-overlap]  # see _TakesOnlyContext
@overload
def job(fn: Callable[[A], R], /) -> Job[A, R, R]: ...
@overload
def job(fn: Callable[[A, Context], R], /) -> Job[A, R, R]: ...
@overload
def job(fn: Callable[[], R], /) -> Job[None, R, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    version: int = 1,
    queue: str = "default",
    retry: RetryPolicy = DEFAULT_POLICY,
    timeout: Duration | None = None,
    limit: StepLimit | None = None,
    transactional: bool = False,
    history: History = "transitions",
    history_keep: int | None = HISTORY_KEEP,
    retention: MachineRetention = "worker",
) -> _JobDecorator: ...
def job(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    queue: str = "default",
    retry: RetryPolicy = DEFAULT_POLICY,
    timeout: Duration | None = None,
    limit: StepLimit | None = None,
    transactional: bool = False,
    history: History = "transitions",
    history_keep: int | None = HISTORY_KEEP,
    retention: MachineRetention = "worker",
    **former: Any,
) -> Any:
    """Make a durable job of a function of none or one argument, and `ctx` if it takes it.

    `retry` says how exceptions are retried (default: 20 attempts in about 2 h 40 min); then the job fails. A crash of
    its worker costs no attempt. The result is checked against the return annotation, if there is one.
    `timeout` bounds one attempt. `limit`, `transactional`: as for `step`. `version`, `history`, `history_keep`,
    `retention`: as for `Machine`.
    """

    def make_job(function: Callable[..., Any]) -> Job[Any, Any]:
        if not inspect.isfunction(function):
            raise DefinitionError(f"@job decorates a function, got {type(function).__name__}: put @job outermost")
        label = check_name(function.__name__ if name is None else name, "a job's name", DefinitionError)
        check_name(queue, f"the queue of job {label!r}", DefinitionError)
        _check_job_retry_policy(retry, f"the retry of job {label!r}")
        check_version(version, f"job {label!r}")
        check_history_option(history, f"job {label!r}")
        check_history_keep(history_keep, f"job {label!r}")
        seconds = None if timeout is None else check_delay(timeout, f"the timeout of job {label!r}", DefinitionError)
        check_step_limit(limit, f"the limit of job {label!r}")
        if transactional:
            require_async_for_transaction(function, f"job {label!r}")
        steps: dict[str, StepSpec] = {}
        kept = to_declared_retention(retention, f"job {label!r}")
        machine = MachineSpec(label, version, queue, steps, _read_job_type_hints, history, history_keep, kept)
        is_async = inspect.iscoroutinefunction(function)
        steps["run"] = StepSpec(machine, "run", (), seconds, function, is_async, limit, transactional, retry)
        return Job(function, steps["run"])

    for option in former:
        if option in _FORMER_OPTIONS:
            raise DefinitionError(f"@job has no option {option!r}: write {_FORMER_OPTIONS[option]}")
        raise TypeError(f"job() got an unexpected keyword argument {option!r}")
    return make_job if fn is None else make_job(fn)


def _check_job_retry_policy(retry: RetryPolicy, what: str) -> None:
    if retry is None:  # pyright: ignore[reportUnnecessaryComparison]  # what users pass is not checked
        raise DefinitionError(f"{what} must be a RetryPolicy, got None: write RetryPolicy(attempts=1) for no retries")
    check_retry_policy(retry, what)
    if retry.then is not None:
        raise DefinitionError(f"{what} has then=, but a job has only one step: write a Machine, or leave it out")


def _read_signature(function: Callable[..., Any], label: str) -> tuple[bool, bool]:
    """Whether a job's function takes an argument, and whether it takes `ctx`. Raises `DefinitionError`."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = [p for p in parameters if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]
    if others == positional:
        match [_is_context_parameter(p, function) for p in positional]:
            case []:
                return False, False
            case [True] if positional[0].name == "ctx":
                return False, True
            case [False] if positional[0].name != "ctx":
                return True, False
            case [False, True]:
                return True, True
            case _:
                pass
    raise DefinitionError(
        f"job {label!r} cannot have the signature {inspect.signature(function)}. A job takes no argument, one "
        "argument, `ctx: Context`, or one argument and `ctx: Context`. Put several values into a dataclass"
    )


def _is_context_parameter(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return parameter.name == "ctx"
    if isinstance(annotation, str):  # not evaluated: other names in it may be defined later
        if getattr(function, "__globals__", {}).get(annotation) is Context:
            return True
        words = {word.rpartition(".")[2] for word in annotation.replace("|", " ").replace("[", " ").split()}
        return "Context" in {word.strip("]") for word in words}
    return annotation is Context or Context in get_args(annotation)


def _read_job_type_hints(function: Callable[..., Any], label: str) -> tuple[object, object]:
    hints = resolve_type_hints(function, label)
    takes_argument, _ = _read_signature(function, label)
    argument = next(iter(inspect.signature(function).parameters)) if takes_argument else None
    return None if argument is None else hints.get(argument, Any), hints.get("return", Any)
