"""Machines and their steps, as written by users.

In: a class with `@step` methods. Out: a `MachineSpec`, which the client reads to write a row and the worker to run it.
The decorator returns the function it was given, with a mark on it; making the class turns marks into `StepSpec`s.
A subclass gets copies of the steps it inherits, so that `Child.start` and `Base.start` name different machines.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast, get_args, get_origin, get_type_hints, overload

from gen_durable.codec import Codec, codec_for
from gen_durable.context import Context
from gen_durable.durations import Duration
from gen_durable.errors import DefinitionError
from gen_durable.journal import History, check_history
from gen_durable.limits import Limit, StepLimit, limits_of
from gen_durable.outcomes import Await, Done, Fail, Next, Outcome, ScheduleChildren
from gen_durable.validation import check_delay, check_name

F = TypeVar("F", bound=Callable[[Any, Any, Context], Awaitable[Outcome[Any]] | Outcome[Any]])
"""The function of a step, whose type `@step` keeps as it is."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """What `@step` was told, until the class is made."""

    name: str
    aliases: tuple[str, ...]
    timeout: float | None
    limit: StepLimit | None
    transactional: bool


@dataclass(frozen=True)
class StepSpec:
    """One step of one machine: its durable name, its function, and the types of what it takes and gives."""

    machine: MachineSpec
    name: str
    aliases: tuple[str, ...]
    timeout: float | None
    fn: Callable[..., Any]
    is_async: bool
    limit: StepLimit | None = None
    transactional: bool = False

    def limits_for(self, state: object) -> tuple[Limit, ...]:
        """What the step runs under, with this state."""
        if self.limit is None:
            return ()
        names = self.limit(state) if callable(self.limit) else self.limit
        return limits_of(names, f"the limit of step {self.label}")

    @cached_property
    def label(self) -> str:
        """How the step is called in messages."""
        return f"{self.machine.name}.{self.name}"

    @cached_property
    def state_codec(self) -> Codec[Any]:
        """How the step's state is stored, from the annotation of its state argument."""
        return codec_for(self._hints[0], f"the state of {self.label}")

    @cached_property
    def result_codec(self) -> Codec[Any]:
        """How the machine's result is stored, from the step's return annotation."""
        return codec_for(self._hints[1], f"the result of {self.label}")

    @cached_property
    def _hints(self) -> tuple[object, object]:
        return self.machine.read_hints(self.fn, self.label)


@dataclass(frozen=True, eq=False)
class MachineSpec:
    """A machine's durable name and version, its queue, and its steps by name."""

    name: str
    version: int
    queue: str
    steps: dict[str, StepSpec]
    read_hints: Callable[[Callable[..., Any], str], tuple[object, object]]
    history: History = "transitions"

    def find(self, step: str) -> StepSpec | None:
        """A step by its name or by one of its old names."""
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
) -> F | Callable[[F], F]:
    """Mark a method as a step of its machine.

    `name` is what rows call it (default: the method's name); `aliases` are names that live rows may still have from
    before a renaming; `timeout` bounds one execution and reaches `on_error` as a `StepTimeout`; `limit` names what it
    runs under: `"stripe"`, `("stripe", "eu")`, a list of two, or a function of the state that gives one of these;
    `transactional` gives it `ctx.connection`, whose writes commit together with its outcome or not at all.
    """

    def mark(function: F) -> F:
        plain: object = function  # narrowed in its place: the type of `function` is the user's and is kept
        if not inspect.isfunction(plain):
            raise DefinitionError(f"@step goes on a method, got {type(plain).__name__}: put @step outermost")
        durable = check_name(plain.__name__ if name is None else name, "a step's name", DefinitionError)
        old = tuple(check_name(a, f"an alias of step {durable!r}", DefinitionError) for a in aliases)
        what = f"the timeout of step {durable!r}"
        seconds = None if timeout is None else check_delay(timeout, what, DefinitionError)
        check_limit(limit, f"the limit of step {durable!r}")
        if transactional:
            check_transactional(plain, f"step {durable!r}")
        cast(Any, function).__gen_durable_step__ = _Mark(durable, old, seconds, limit, transactional)
        return function

    return mark if fn is None else mark(fn)


class Machine:
    """A durable state machine: subclass it, and write its steps as methods marked with `@step`.

    `self` holds services (an HTTP client, settings), never state: state is what steps take and return.
    Class arguments: `name` (default: the class's name), `version` (default 1), `queue` (default "default"), `history`:
    "off", "transitions" (default: a light row for each outcome) or "states" (with the state).
    """

    __gen_durable__: ClassVar[MachineSpec]

    def __init_subclass__(
        cls, *, name: str | None = None, version: int = 1, queue: str = "default", history: History = "transitions"
    ) -> None:
        super().__init_subclass__()
        earlier = cls.__dict__.get("__gen_durable__")
        if earlier is not None:  # made again, as @dataclass(slots=True) does without repeating the class arguments
            name, version, queue, history = earlier.name, earlier.version, earlier.queue, earlier.history
        label = check_name(cls.__name__ if name is None else name, "a machine's name", DefinitionError)
        check_name(queue, f"the queue of machine {label!r}", DefinitionError)
        check_version(version, f"machine {label!r}")
        check_history(history, f"machine {label!r}")
        steps: dict[str, StepSpec] = {}
        spec = MachineSpec(label, version, queue, steps, _read_step_hints, history)
        for attribute, function, mark in _marked(cls, earlier):
            own = function if attribute in cls.__dict__ else _copy(cls, attribute, function)
            _check_signature(own, f"{label}.{mark.name}")
            is_async = inspect.iscoroutinefunction(own)
            one = StepSpec(spec, mark.name, mark.aliases, mark.timeout, own, is_async, mark.limit, mark.transactional)
            for taken in (mark.name, *mark.aliases):
                if spec.find(taken) is not None:
                    raise DefinitionError(f"machine {label!r} has two steps that answer to the name {taken!r}")
            steps[mark.name] = one
            cast(Any, own).__gen_durable_step__ = one
        cls.__gen_durable__ = spec

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Any]:
        """Called when a step raised, timed out, or returned something unusable. Default: the instance fails.

        Return any outcome: `Retry(state, delay=backoff(ctx.attempt))` to try again, `Fail(error)` to give up.
        """
        return Fail(error)

    async def on_cancel(self, state: Any, ctx: Context, reason: str) -> None:
        """Called when the instance is cancelled while one of its steps runs, after that step was stopped.

        For cleaning up: it has `cancel_timeout` of its worker for that, and what it raises is only logged. One that
        waits for something is cancelled without a worker, and without this.
        """


def _marked(cls: type, earlier: MachineSpec | None) -> Iterable[tuple[str, types.FunctionType, _Mark]]:
    """The steps of a class, base classes first, in the order they are written."""
    attributes = dict.fromkeys(a for base in reversed(cls.__mro__) for a in base.__dict__)
    for attribute in attributes:
        function: object = inspect.getattr_static(cls, attribute)
        kind = type(function)
        if kind in (staticmethod, classmethod) and hasattr(cast(Any, function).__func__, "__gen_durable_step__"):
            raise DefinitionError(f"@step goes on a method, but {attribute!r} is a {kind.__name__}")
        if not isinstance(function, types.FunctionType):
            continue
        mark = getattr(function, "__gen_durable_step__", None)
        if isinstance(mark, StepSpec):
            if attribute in cls.__dict__ and mark.machine is not earlier:
                raise DefinitionError(
                    f"{cls.__name__}.{attribute} is the step {mark.label} of another machine: inherit from its class"
                )
            mark = _Mark(mark.name, mark.aliases, mark.timeout, mark.limit, mark.transactional)
        if isinstance(mark, _Mark):
            yield attribute, function, mark
        elif _was_step(cls, attribute):
            raise DefinitionError(
                f"{cls.__name__}.{attribute} overrides a step but is none: mark it with @step as well, or rename it"
            )


def _was_step(cls: type, attribute: str) -> bool:
    found = (base.__dict__.get(attribute) for base in cls.__mro__)
    return any(isinstance(getattr(f, "__gen_durable_step__", None), (StepSpec, _Mark)) for f in found)


def _copy(cls: type, attribute: str, function: types.FunctionType) -> types.FunctionType:
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


def _check_signature(function: Callable[..., object], label: str) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) != 3 or len(parameters) != 3:
        raise DefinitionError(f"step {label} must take (self, state, ctx), not {inspect.signature(function)}")


def check_limit(limit: StepLimit | None, what: str) -> None:
    """The limit of a step or job, as far as it is known when it is written."""
    if limit is not None and not callable(limit):
        limits_of(limit, what, DefinitionError)


def check_transactional(function: Callable[..., Any], what: str) -> None:
    """A transaction is the worker's own asyncpg connection, which has to be awaited."""
    if not inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"{what} is transactional, so it must be `async def`: its transaction is an asyncpg connection of the "
            "worker's loop, which a thread cannot use"
        )


def check_version(version: int, what: str) -> int:
    """Versions of machines and jobs fit the database's int."""
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= 2_147_483_647:
        raise DefinitionError(f"the version of {what} must be an int from 1 on, got {version!r}")
    return version


def resolve_hints(function: Callable[..., Any], label: str) -> dict[str, Any]:
    """The annotations of a step or job as objects."""
    try:
        return get_type_hints(function)
    except NameError as error:
        raise DefinitionError(
            f"{label} has an annotation that cannot be resolved: {error}. "
            "Types named in a step's annotations must be importable at module level"
        ) from error


def _read_step_hints(function: Callable[..., Any], label: str) -> tuple[object, object]:
    hints = resolve_hints(function, label)
    state_name = list(inspect.signature(function).parameters)[1]
    return hints.get(state_name, Any), _result_type(hints.get("return", Any))


def _result_type(annotation: object) -> object:
    """R of `Outcome[R]`; of a union of outcomes, the first R that says something."""
    origin = get_origin(annotation)
    if origin in (Outcome, Done, Next, Await, ScheduleChildren):
        return get_args(annotation)[0]
    if origin is not None:
        for part in get_args(annotation):
            found = _result_type(part)
            if found is not Any:
                return found
    return Any
