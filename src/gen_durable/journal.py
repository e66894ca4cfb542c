"""The words of the journal: what happened to an instance, and what its steps did on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_args

from gen_durable.codec import decode_payload
from gen_durable.errors import DefinitionError, InputError

History: TypeAlias = Literal["off", "transitions", "states"]
"""What is kept of a machine's committed outcomes: nothing, a light row for each, or the state with it."""


def check_history(history: History, what: str) -> History:
    """The `history` of a machine or job."""
    if history not in get_args(History):
        raise DefinitionError(f"the history of {what} must be 'off', 'transitions' or 'states', got {history!r}")
    return history


def check_last(last: int | None) -> int | None:
    """How many of the last ones are to be read."""
    if last is not None and (not isinstance(last, int) or isinstance(last, bool) or not 0 <= last < 2**31):
        raise InputError(f"last must be a whole number from 0 on, got {last!r}")
    return last


@dataclass(frozen=True, slots=True)
class Transition:
    """One committed outcome: which step ran, what it decided, where that led.

    `seq` counts outcomes from 1. `next_step` is None at the end. `raw_state` is there with history="states": the state
    after the outcome.
    """

    seq: int
    step: str
    outcome: str
    next_step: str | None
    attempt: int
    started_at: datetime
    duration: float
    worker: str | None
    error: str | None = field(repr=False)
    raw_state: bytes | None = field(repr=False)

    @property
    def state(self) -> Any:
        """The state after the outcome as plain JSON values; None unless the machine keeps states."""
        return None if self.raw_state is None else decode_payload(self.raw_state)


@dataclass(frozen=True, slots=True)
class Activity:
    """One call of an activity that has ended: well, with a result, or with an error.

    `visit` numbers the visit of a step that it belongs to: the `seq` of the outcome that led there. `attempt` counts
    the calls of the same name before it, in that visit.
    """

    visit: int
    name: str
    attempt: int
    started_at: datetime
    duration: float
    error: str | None = field(repr=False)
    raw_parameters: bytes = field(repr=False)
    raw_result: bytes | None = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether it is finished: within its visit it is not called again."""
        return self.error is None

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments of the call by parameter name, as plain JSON values."""
        return dict(decode_payload(self.raw_parameters))

    @property
    def result(self) -> Any:
        """What it returned, as plain JSON values."""
        return None if self.raw_result is None else decode_payload(self.raw_result)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a step has put by for its next execution; `version` counts those that it has written in this visit."""

    version: int
    updated_at: datetime
    raw_value: bytes = field(repr=False)

    @property
    def value(self) -> Any:
        """The value as plain JSON values."""
        return decode_payload(self.raw_value)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step has come, by its own last word."""

    step: str
    branch: str
    fraction: float | None
    message: str | None = field(repr=False)
    updated_at: datetime
    raw_detail: bytes | None = field(repr=False)

    @property
    def detail(self) -> Any:
        """The detail as plain JSON values."""
        return None if self.raw_detail is None else decode_payload(self.raw_detail)
