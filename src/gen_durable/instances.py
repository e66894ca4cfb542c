"""An instance as clients see it: its status, its row, and the result of waiting for it or cancelling it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeAlias, TypeVar

from gen_durable.errors import InputError
from gen_durable.json_codec import decode_untyped_json, decode_untyped_payload

R_co = TypeVar("R_co", covariant=True)


class Status(StrEnum):
    """The status of an instance; the database uses the same words."""

    RUNNABLE = "runnable"
    EXECUTING = "executing"
    AWAITING_SIGNAL = "awaiting_signal"
    AWAITING_CHILDREN = "awaiting_children"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """Read from the row of a newer version of gen_durable, which has more statuses."""

    @property
    def terminal(self) -> bool:
        """Whether the instance has ended."""
        return self in (Status.DONE, Status.FAILED, Status.CANCELLED)


STORED_STATUSES: Final = tuple(status for status in Status if status is not Status.UNKNOWN)
"""The statuses that this version writes, and that lists can be filtered by."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One row, as it was when it was read.

    `error_type` and `traceback` are those of the exception behind `last_error`. A list without payloads has no
    tracebacks. `problems` says what of the row cannot be read: a time outside of the years 1 to 9999 (given as the
    nearest end of that range), an unknown status, metadata that is no object. It is empty unless another program, or a
    newer version, has written the row.
    """

    id: int
    machine: str
    version: int
    step: str
    status: Status
    queue: str
    priority: int
    partition_key: str | None
    unique_key: bytes | None
    awaits: tuple[str, ...]
    attempt: int
    crashes: int
    claims: int
    seq: int
    last_error: str | None
    locked_by: str | None
    parent_id: int | None
    children_pending: int
    eligible_at: datetime
    await_deadline: datetime | None
    inserted_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    raw_state: bytes | None
    raw_result: bytes | None
    raw_metadata: bytes | None
    blocked_on: str | None
    due_at: datetime | None
    error_type: str | None = None
    traceback: str | None = None
    token_at: datetime | None = None
    rate_key: str | None = None
    children_needed: int | None = None
    step_errors: int = 0
    postponements: int = 0
    started_at: datetime | None = None
    problems: tuple[str, ...] = ()

    @property
    def state(self) -> Any:
        """The state as plain JSON values. Raises `InputError` if the instance was listed without payloads."""
        if self.raw_state is None:
            raise InputError(f"instance {self.id} was listed without its state: list(payloads=True), or get({self.id})")
        return decode_untyped_payload(self.raw_state)

    @property
    def result(self) -> Any:
        """The result as plain JSON values; None unless done."""
        return None if self.raw_result is None else decode_untyped_payload(self.raw_result)

    @property
    def has_previous_error(self) -> bool:
        """Whether `last_error` is from before a `retry` by an operator: no execution has failed since."""
        is_failing = self.status.terminal or self.step_errors > 0 or self.postponements > 0
        return self.last_error is not None and not is_failing

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that was passed on insert."""
        return {} if self.raw_metadata is None else decode_untyped_json(self.raw_metadata)

    def __repr__(self) -> str:
        return f"Instance(id={self.id}, {self.machine}.{self.step}, {self.status.value})"


@dataclass(frozen=True, slots=True)
class Finished(Generic[R_co]):
    """The instance is done, with this result."""

    id: int
    result: R_co


@dataclass(frozen=True, slots=True)
class Failed:
    """The instance has failed, with this error."""

    id: int
    error: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The instance was cancelled."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The result of a cancel; true if it cancelled anything.

    `was` is the status before the cancel. `ended` counts the instances (the target and its descendants) that were not
    executing and are cancelled now; `requested` counts those that are executing: their workers stop them.
    """

    id: int
    was: Status
    ended: int
    requested: int

    def __bool__(self) -> bool:
        return self.ended + self.requested > 0


@dataclass(frozen=True, slots=True)
class Pending:
    """The timeout of the wait has passed and the instance has not ended."""

    id: int


Ending: TypeAlias = "Finished[R_co] | Failed | Cancelled | Pending"
"""The results of `Handle.wait`."""
