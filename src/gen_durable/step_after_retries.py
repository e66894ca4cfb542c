"""The step that `RetryPolicy(then=)` leads to: its name, and the checks of it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union, cast, get_args, get_origin

from gen_durable.errors import DefinitionError
from gen_durable.json_codec import type_name

if TYPE_CHECKING:
    from gen_durable.machines import StepSpec


def check_step_after_retries(cls: type, spec: StepSpec) -> None:
    """Check the `then=` of a step's policy: another step of the same machine, which takes the same state."""
    then = None if spec.retry is None else spec.retry.then
    if then is None:
        return
    where = f"RetryPolicy(then=) of step {spec.label}"
    if not isinstance(then, str) and not _is_step_of_class(cls, then):
        raise DefinitionError(
            f"{where} must be a step of the same machine: a method with @step that stands above it in the class, "
            "or the name of a step as a text"
        )
    name = find_name_of_step_after_retries(then)
    if spec.machine.find_step(name) is None:
        raise DefinitionError(f"{where} leads to {name!r}: machine {spec.machine.name!r} has no such step")
    if spec.step_after_retries is None and spec.own_retry is not None:
        raise DefinitionError(f"{where} leads to the step itself, so it would never end")
    try:
        _ = spec.state_type, spec.step_after_retries.state_type if spec.step_after_retries is not None else None
    except DefinitionError:
        return  # a type that is defined later: the registry of a worker checks again
    check_state_of_step_after_retries(spec)


def check_state_of_step_after_retries(spec: StepSpec) -> None:
    """Raise `DefinitionError` unless the `then=` of the step's policy takes the state of the step."""
    target = spec.step_after_retries
    if target is None or target.state_type is Any or target.state_type == spec.state_type:
        return
    if set(_union_members(spec.state_type)) <= set(_union_members(target.state_type)):
        return
    raise DefinitionError(
        f"RetryPolicy(then=) of step {spec.label} leads to {target.label}, which takes "
        f"{type_name(target.state_type)} and not {type_name(spec.state_type)}: it is given the state of the failed step"
    )


def find_name_of_step_after_retries(then: Callable[..., Any] | str) -> str:
    """The stored name of the step that `RetryPolicy(then=)` refers to."""
    return then if isinstance(then, str) else cast(Any, then).__gen_durable_step__.name


def _union_members(type_: object) -> tuple[object, ...]:
    return get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)


def _is_step_of_class(cls: type, function: Callable[..., Any]) -> bool:
    is_marked = hasattr(function, "__gen_durable_step__")
    return is_marked and any(function is own for base in cls.__mro__ for own in base.__dict__.values())
