"""The journal of an instance as clients read it: transitions, activities, the checkpoint and progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from gen_durable.errors import DecodeError, DefinitionError, InputError
from gen_durable.json_codec import decode_untyped_payload

History: TypeAlias = Literal["off", "transitions", "states"]
"""The history that a machine keeps: nothing, a small row per committed outcome, or such a row with the state."""
Cause: TypeAlias = Literal["start", "next", "signal", "deadline", "children", "retry", "crash", "operator", "parent"]
"""What made an execution run: the start of the instance, the step before it, a signal, the timeout of a wait, its
children, a retry of the step, a crash of the worker before, or an operator who retried the instance. A cancel of a
waiting instance has "operator" or, if it follows from that of another instance, "parent"."""
HISTORY_KEEP: Final = 1000
"""How many of its newest outcomes the history of an instance keeps by default."""


def check_history_option(history: History, what: str) -> History:
    """Check the `history` of a machine or job."""
    if history not in get_args(History):
        raise DefinitionError(f"the history of {what} must be 'off', 'transitions' or 'states', got {history!r}")
    return history


def check_history_keep(length: int | None, what: str) -> int | None:
    """Check the `history_keep` of a machine or job."""
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or not 1 <= length < 2**31):
        raise DefinitionError(f"the history_keep of {what} must be a whole number from 1 on, or None, got {length!r}")
    return length


def check_last_argument(last: int | None) -> int | None:
    """Check `last`, the number of newest entries to read."""
    if last is not None and (not isinstance(last, int) or isinstance(last, bool) or not 0 <= last < 2**31):
        raise InputError(f"last must be a whole number from 0 on, got {last!r}")
    return last


@dataclass(frozen=True, slots=True)
class Transition:
    """One committed outcome of a step; or a cancel, retry or crash that happened without one.

    `seq` counts outcomes from 1. `outcome` is its name, such as "Next". A crash whose row ran again is "Crashed" with a
    `next_step`, a retry by an operator "Retried", a cancel of a waiting instance "Cancel": these have the `seq` of the
    outcome before them. `next_step` is None at the end. `waited` is how many seconds passed between becoming due and
    being started, `cause` what made the execution run. `error_type` and `traceback` are those of the exception behind
    `error`, also of one that `on_error` has handled. `raw_state` is the state after the outcome, if the machine has
    `history="states"`.
    """

    seq: int
    step: str
    outcome: str
    next_step: str | None
    attempt: int
    started_at: datetime
    duration: float
    waited: float
    cause: Cause
    worker: str | None
    error: str | None = field(repr=False)
    error_type: str | None
    traceback: str | None = field(repr=False)
    raw_state: bytes | None = field(repr=False)

    @property
    def state(self) -> Any:
        """The state after the outcome as plain JSON values; None unless the machine keeps states."""
        return None if self.raw_state is None else decode_untyped_payload(self.raw_state)


@dataclass(frozen=True, slots=True)
class Activity:
    """One finished call of an activity, with its result or its error.

    `visit` is the visit of the step that ran it: the `seq` of the outcome that led to the step. `attempt` counts
    earlier calls of the same name in that visit.
    """

    visit: int
    step: str
    name: str
    attempt: int
    started_at: datetime
    duration: float
    error: str | None = field(repr=False)
    raw_parameters: bytes = field(repr=False)
    raw_result: bytes | None = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether the call succeeded: later executions of the visit return its result."""
        return self.error is None

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments of the call by parameter name, as plain JSON values."""
        found = decode_untyped_payload(self.raw_parameters)
        if not isinstance(found, dict):
            raise DecodeError(f"the stored parameters of activity {self.name!r} are not an object")
        return cast("dict[str, Any]", found)

    @property
    def result(self) -> Any:
        """The return value as plain JSON values; None if the call raised."""
        return None if self.raw_result is None else decode_untyped_payload(self.raw_result)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The value that a step stored for its next execution; `version` counts the checkpoints of this visit."""

    version: int
    updated_at: datetime
    raw_value: bytes = field(repr=False)

    @property
    def value(self) -> Any:
        """The value as plain JSON values."""
        return decode_untyped_payload(self.raw_value)


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest progress report of a step, or of one of its branches."""

    step: str
    branch: str
    fraction: float | None
    message: str | None = field(repr=False)
    updated_at: datetime
    raw_detail: bytes | None = field(repr=False)

    @property
    def detail(self) -> Any:
        """The detail as plain JSON values."""
        return None if self.raw_detail is None else decode_untyped_payload(self.raw_detail)
