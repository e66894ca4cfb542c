"""`Machine` and `@step`: state machines as users write them, and their specs.

`@step` marks a method and returns it unchanged; creating the class turns the marks into a `MachineSpec`, which clients
read to insert a row and workers to run it. A subclass gets copies of the steps it inherits, so that `Child.start` and
`Base.start` name different machines.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar, cast, get_args, get_origin, get_type_hints, overload

from gen_durable.context import Context
from gen_durable.durations import Duration
from gen_durable.errors import DefinitionError
from gen_durable.journal import HISTORY_KEEP, History, check_history_keep, check_history_option
from gen_durable.json_codec import JsonCodec, make_json_codec
from gen_durable.limits import Limit, StepLimit, parse_limit_argument
from gen_durable.outcomes import Await, Done, Fail, Next, Outcome, ScheduleChildren
from gen_durable.retention import MachineRetention, Retention, to_retention
from gen_durable.retry_policy import RetryPolicy, check_retry_policy
from gen_durable.step_after_retries import check_step_after_retries, find_name_of_step_after_retries
from gen_durable.validation import check_delay, check_name, check_positive_duration

ON_ERROR_TIMEOUT: Final = 60.0  # seconds
F = TypeVar("F", bound=Callable[[Any, Any, Context], Awaitable[Outcome[Any]] | Outcome[Any]])
"""The function of a step; `@step` preserves its type."""


@dataclass(frozen=True, slots=True)
class _StepDecoratorArguments:
    """The arguments of `@step`, until the class is created."""

    name: str
    aliases: tuple[str, ...]
    timeout: float | None
    limit: StepLimit | None
    transactional: bool
    retry: RetryPolicy | None


@dataclass(frozen=True)
class StepSpec:
    """One step of one machine: its stored name, its function, and the types of its state and result."""

    machine: MachineSpec
    name: str
    aliases: tuple[str, ...]
    timeout: float | None
    fn: Callable[..., Any]
    is_async: bool
    limit: StepLimit | None = None
    transactional: bool = False
    own_retry: RetryPolicy | None = None
    """The policy in `@step(retry=)` or `@job(retry=)`."""

    def limits_for(self, state: object) -> tuple[Limit, ...]:
        """The limits that the step runs under with this state."""
        if self.limit is None:
            return ()
        names = self.limit(state) if callable(self.limit) else self.limit
        return parse_limit_argument(names, f"the limit of step {self.label}")

    @cached_property
    def label(self) -> str:
        """The name of the step in messages."""
        return f"{self.machine.name}.{self.name}"

    @cached_property
    def retry(self) -> RetryPolicy | None:
        """The policy that the step, or else its machine, names."""
        return self.machine.retry if self.own_retry is None else self.own_retry

    @cached_property
    def step_after_retries(self) -> StepSpec | None:
        """The step that runs when the policy is used up. Under a policy of the machine, that step itself has none."""
        policy = self.retry
        if policy is None or policy.then is None:
            return None
        found = self.machine.find_step(find_name_of_step_after_retries(policy.then))
        return None if found is self else found

    @property
    def state_type(self) -> object:
        """The annotation of the state argument."""
        return self._state_and_result_types[0]

    @cached_property
    def state_codec(self) -> JsonCodec[Any]:
        """The codec of the state, from the annotation of the state argument."""
        return make_json_codec(self._state_and_result_types[0], f"the state of {self.label}")

    @cached_property
    def result_codec(self) -> JsonCodec[Any]:
        """The codec of the machine's result, from the step's return annotation."""
        return make_json_codec(self._state_and_result_types[1], f"the result of {self.label}")

    @cached_property
    def _state_and_result_types(self) -> tuple[object, object]:
        return self.machine.read_hints(self.fn, self.label)


@dataclass(frozen=True, eq=False)
class MachineSpec:
    """A machine's stored name and version, its queue, and its steps by name."""

    name: str
    version: int
    queue: str
    steps: dict[str, StepSpec]
    read_hints: Callable[[Callable[..., Any], str], tuple[object, object]]
    history: History = "transitions"
    history_keep: int | None = HISTORY_KEEP
    retention: Retention | None = None
    """None if the machine declares none: that of the worker applies."""
    retry: RetryPolicy | None = None
    on_error_timeout: float = ON_ERROR_TIMEOUT

    def find_step(self, step: str) -> StepSpec | None:
        """Find a step by its name or one of its aliases."""
        found = self.steps.get(step)
        if found is not None:
            return found
        return next((s for s in self.steps.values() if step in s.aliases), None)


@overload
def step(fn: F, /) -> F: ...
@overload
def step(
    *,
    name: str | None = None,
    aliases: Iterable[str] = (),
    timeout: Duration | None = None,
    limit: StepLimit | None = None,
    transactional: bool = False,
    retry: RetryPolicy | None = None,
) -> Callable[[F], F]: ...
def step(
    fn: F | None = None,
    /,
    *,
    name: str | None = None,
    aliases: Iterable[str] = (),
    timeout: Duration | None = None,
    limit: StepLimit | None = None,
    transactional: bool = False,
    retry: RetryPolicy | None = None,
) -> F | Callable[[F], F]:
    """Mark a method as a step of its machine.

    `name` is the name stored in rows (default: the method's name); `aliases` are former names that stored rows may
    still have; `timeout` bounds one execution, which then counts as raising `StepTimeout`; `limit` names the limits of
    the step: `"stripe"`, `("stripe", "eu")`, a list of two, or a function of the state that returns one of these;
    `transactional` provides `ctx.connection`, whose writes commit together with the outcome or not at all; `retry`
    says how exceptions are retried, in place of the policy of the machine.
    """

    def mark(function: F) -> F:
        plain: object = function  # narrowed instead of `function`, whose type must stay the user's
        if not inspect.isfunction(plain):
            raise DefinitionError(f"@step decorates a method, got {type(plain).__name__}: put @step outermost")
        durable = check_name(plain.__name__ if name is None else name, "a step's name", DefinitionError)
        old = tuple(check_name(a, f"an alias of step {durable!r}", DefinitionError) for a in aliases)
        what = f"the timeout of step {durable!r}"
        seconds = None if timeout is None else check_delay(timeout, what, DefinitionError)
        check_step_limit(limit, f"the limit of step {durable!r}")
        if transactional:
            require_async_for_transaction(plain, f"step {durable!r}")
        policy = check_retry_policy(retry, f"the retry of step {durable!r}")
        cast(Any, function).__gen_durable_step__ = _StepDecoratorArguments(
            durable, old, seconds, limit, transactional, policy
        )
        return function

    return mark if fn is None else mark(fn)


class Machine:
    """A durable state machine: subclass it, and write its steps as methods marked with `@step`.

    `self` holds services (an HTTP client, settings), never state: steps receive and return their state.
    Class arguments: `name` (default: the class's name), `version` (default 1), `queue` (default "default"), `history`:
    "off", "transitions" (default: a small row for each outcome) or "states" (with the state), and `history_keep`: how
    many of its newest outcomes, and the activities of these, an instance keeps at least (default 1,000; None: all), and
    `retention`: how long ended instances are kept, a duration, a `Retention` or None for good (default: as the worker's
    `gc_retention` says). Workers declare it in the database when they start.

    `retry` is the policy of the steps that name none. A machine with neither a policy nor an `on_error` has the default
    policy: 20 attempts in about 2 h 40 min. `on_error_timeout` bounds one call of `on_error` (default: a minute).
    Subclasses inherit both.
    """

    __gen_durable__: ClassVar[MachineSpec]

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = "default",
        history: History = "transitions",
        history_keep: int | None = HISTORY_KEEP,
        retry: RetryPolicy | None = None,
        on_error_timeout: Duration | None = None,
        retention: MachineRetention = "worker",
    ) -> None:
        super().__init_subclass__()
        earlier = cls.__dict__.get("__gen_durable__")
        if earlier is not None:  # @dataclass(slots=True) creates the class again, without the class arguments
            name, version, queue = earlier.name, earlier.version, earlier.queue
            history, history_keep = earlier.history, earlier.history_keep
            retention = "worker" if earlier.retention is None else earlier.retention
        label = check_name(cls.__name__ if name is None else name, "a machine's name", DefinitionError)
        check_name(queue, f"the queue of machine {label!r}", DefinitionError)
        check_version(version, f"machine {label!r}")
        check_history_option(history, f"machine {label!r}")
        check_history_keep(history_keep, f"machine {label!r}")
        steps: dict[str, StepSpec] = {}
        policy, timeout = _resolve_retry_and_on_error_timeout(cls, label, retry, on_error_timeout)
        kept = to_declared_retention(retention, f"machine {label!r}")
        spec = MachineSpec(
            label, version, queue, steps, _read_state_and_result_types, history, history_keep, kept, policy, timeout
        )  # fmt: skip
        for attribute, function, mark in _find_and_check_steps(cls, earlier):
            own = function if attribute in cls.__dict__ else _copy_inherited_step_into_class(cls, attribute, function)
            _check_step_signature(own, f"{label}.{mark.name}")
            is_async = inspect.iscoroutinefunction(own)
            one = StepSpec(
                spec, mark.name, mark.aliases, mark.timeout, own, is_async, mark.limit, mark.transactional, mark.retry
            )
            for taken in (mark.name, *mark.aliases):
                if spec.find_step(taken) is not None:
                    raise DefinitionError(f"machine {label!r} has two steps with the name or alias {taken!r}")
            steps[mark.name] = one
            cast(Any, own).__gen_durable_step__ = one
        for one in steps.values():
            check_step_after_retries(cls, one)
        cls.__gen_durable__ = spec

    def on_error(self, state: Any, ctx: Context, error: Exception) -> Awaitable[Outcome[Any]] | Outcome[Any]:
        """Called after a step raised, timed out, or returned an invalid outcome, once its retries are used up.

        Return any outcome, such as `Retry(state, delay=backoff(ctx.step_errors))` or `Fail(error)`. With an `on_error`
        of its own a machine retries only what a `retry=` names. It may be `async def`, or `def`, which runs in a
        thread. If it raises, or takes longer than `on_error_timeout`, the instance fails.
        """
        return Fail(error)

    def on_cancel(self, state: Any, ctx: Context, reason: str) -> Awaitable[None] | None:
        """Called when the instance is cancelled while one of its steps runs, after that step was stopped.

        Use it to clean up, within the worker's `cancel_timeout`; an exception is only logged. It may be `async def`, or
        `def`, which runs in a thread. It is not called for an instance that is not executing: such an instance is
        cancelled without a worker.
        """


def _find_and_check_steps(
    cls: type, earlier: MachineSpec | None
) -> Iterable[tuple[str, types.FunctionType, _StepDecoratorArguments]]:
    """The steps of a class, base classes first, in the order they are written."""
    attributes = dict.fromkeys(a for base in reversed(cls.__mro__) for a in base.__dict__)
    for attribute in attributes:
        function: object = inspect.getattr_static(cls, attribute)
        kind = type(function)
        if kind in (staticmethod, classmethod) and hasattr(cast(Any, function).__func__, "__gen_durable_step__"):
            raise DefinitionError(f"@step decorates a method, but {attribute!r} is a {kind.__name__}")
        if not isinstance(function, types.FunctionType):
            continue
        mark = getattr(function, "__gen_durable_step__", None)
        if isinstance(mark, StepSpec):
            if attribute in cls.__dict__ and mark.machine is not earlier:
                raise DefinitionError(
                    f"{cls.__name__}.{attribute} is the step {mark.label} of another machine: inherit from its class"
                )
            mark = _StepDecoratorArguments(
                mark.name, mark.aliases, mark.timeout, mark.limit, mark.transactional, mark.own_retry
            )
        if isinstance(mark, _StepDecoratorArguments):
            yield attribute, function, mark
        elif _overrides_step_of_base_class(cls, attribute):
            raise DefinitionError(
                f"{cls.__name__}.{attribute} overrides a step but is none: mark it with @step as well, or rename it"
            )


def _resolve_retry_and_on_error_timeout(
    cls: type[Machine], label: str, retry: RetryPolicy | None, on_error_timeout: Duration | None
) -> tuple[RetryPolicy | None, float]:
    """The policy and the timeout of `on_error`: as given, else as the nearest base class has them."""
    specs = (base.__dict__.get("__gen_durable__") for base in cls.__mro__)
    nearest: MachineSpec | None = next((spec for spec in specs if spec is not None), None)
    policy = check_retry_policy(retry, f"the retry of machine {label!r}")
    if policy is None and nearest is not None:
        policy = nearest.retry
    if on_error_timeout is not None:
        what = f"the on_error_timeout of machine {label!r}"
        return policy, check_positive_duration(on_error_timeout, what, DefinitionError)
    return policy, ON_ERROR_TIMEOUT if nearest is None else nearest.on_error_timeout


def _overrides_step_of_base_class(cls: type, attribute: str) -> bool:
    found = (base.__dict__.get(attribute) for base in cls.__mro__)
    return any(isinstance(getattr(f, "__gen_durable_step__", None), (StepSpec, _StepDecoratorArguments)) for f in found)


def _copy_inherited_step_into_class(cls: type, attribute: str, function: types.FunctionType) -> types.FunctionType:
    twin = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__annotations__ = function.__annotations__
    twin.__qualname__ = f"{cls.__qualname__}.{function.__name__}"
    twin.__doc__ = function.__doc__
    twin.__module__ = function.__module__
    setattr(cls, attribute, twin)
    return twin


def _check_step_signature(function: Callable[..., object], label: str) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) != 3 or len(parameters) != 3:
        raise DefinitionError(f"step {label} must take (self, state, ctx), not {inspect.signature(function)}")


def check_step_limit(limit: StepLimit | None, what: str) -> None:
    """Check the limit of a step or job, unless it is a function."""
    if limit is not None and not callable(limit):
        parse_limit_argument(limit, what, DefinitionError)


def require_async_for_transaction(function: Callable[..., Any], what: str) -> None:
    """Raise `DefinitionError` unless the function is `async def`: its transaction is an asyncpg connection."""
    if not inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"{what} is transactional, so it must be `async def`: its transaction is an asyncpg connection of the "
            "worker's loop, which a thread cannot use"
        )


def to_declared_retention(retention: MachineRetention, what: str) -> Retention | None:
    """The declared retention of a machine or job; None for "worker"."""
    return None if retention == "worker" else to_retention(retention, f"the retention of {what}", DefinitionError)


def check_version(version: int, what: str) -> int:
    """Check the version of a machine or job: it is stored as an int4."""
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 2_147_483_647:
        raise DefinitionError(f"the version of {what} must be an int from 1 on, got {version!r}")
    return version


def resolve_type_hints(function: Callable[..., Any], label: str) -> dict[str, Any]:
    """The annotations of a step or job as objects."""
    try:
        return get_type_hints(function)
    except NameError as error:
        raise DefinitionError(
            f"{label} has an annotation that cannot be resolved: {error}. "
            "Types named in a step's annotations must be importable at module level"
        ) from error


def _read_state_and_result_types(function: Callable[..., Any], label: str) -> tuple[object, object]:
    hints = resolve_type_hints(function, label)
    state_name = list(inspect.signature(function).parameters)[1]
    return hints.get(state_name, Any), _result_type_of_return_hint(hints.get("return", Any))


def _result_type_of_return_hint(annotation: object) -> object:
    """R of `Outcome[R]`; for a union of outcomes, the R that they share, else Any."""
    origin = get_origin(annotation)
    if origin in (Outcome, Done, Next, Await, ScheduleChildren):
        return get_args(annotation)[0]
    found = [_result_type_of_return_hint(part) for part in get_args(annotation)] if origin is not None else []
    named = [one for one in found if one is not Any]
    return named[0] if named and all(one == named[0] for one in named) else Any
