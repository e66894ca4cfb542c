"""An instance as a test sees it. The `str` of a `Snapshot` is one sentence; `details` has the rest of the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_never

from gen_durable.instances import Status
from gen_durable.json_codec import decode_untyped_json
from gen_durable.store.row_decoder import decode_status

SHOWN = 500
"""How many characters of a state or result a message quotes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One instance at one time."""

    id: int
    machine: str
    version: int
    step: str
    status: Status
    queue: str
    partition_key: str | None
    unique_key: bytes | None
    awaits: tuple[str, ...]
    attempt: int
    crashes: int
    last_error: str | None
    locked_by: str | None
    children_pending: int
    due_in: timedelta | None
    """When the clock makes it run: zero or less is now. `None` if only an event can, or if it has ended."""
    inbox: tuple[str, ...]
    """The names of the received signals that are not consumed, oldest first."""
    raw_state: str
    raw_result: str | None

    @property
    def label(self) -> str:
        """The current step, for messages."""
        return f"{self.machine}.{self.step}"

    @property
    def state(self) -> Any:
        """The state as plain JSON values."""
        return decode_untyped_json(self.raw_state)

    @property
    def result(self) -> Any:
        """The result as plain JSON values, or None if the instance is not done."""
        return None if self.raw_result is None else decode_untyped_json(self.raw_result)

    @property
    def doing(self) -> str:
        """The current activity, as the end of a sentence that begins with the instance."""
        match self.status:
            case Status.RUNNABLE:
                return f"is due {_describe_due_time(self.due_in)}"
            case Status.EXECUTING:
                return f"is executing, claimed by {self.locked_by}"
            case Status.AWAITING_SIGNAL:
                names = " or ".join(repr(name) for name in self.awaits)
                return f"waits for signal {names}, {_describe_await_deadline(self.due_in)}"
            case Status.AWAITING_CHILDREN:
                return f"waits for {self.children_pending} children, {_describe_await_deadline(self.due_in)}"
            case Status.DONE:
                return f"is done with {shorten_for_message(self.raw_result or 'null')}"
            case Status.FAILED:
                return f"has failed: {self.last_error}"
            case Status.CANCELLED:
                return f"was cancelled: {self.last_error}"
            case Status.UNKNOWN:
                return "has a status of a newer version of gen_durable"
        assert_never(self.status)

    @property
    def details(self) -> str:
        """The rest of the row, one fact per line."""
        facts = [
            f"step {self.label}, version {self.version}, attempt {self.attempt}, queue {self.queue!r}",
            f"state {shorten_for_message(self.raw_state)}",
        ]
        if self.unique_key is not None:
            facts.append(f"unique key {self.unique_key.decode(errors='replace')!r}")
        if self.partition_key is not None:
            facts.append(f"partition key {self.partition_key!r}")
        if self.inbox:
            facts.append(f"inbox {', '.join(self.inbox)}")
        if self.crashes:
            facts.append(f"crashes {self.crashes}")
        if self.last_error is not None:
            facts.append(f"last error {self.last_error}")
        return "\n".join(f"  {fact}" for fact in facts)

    def __str__(self) -> str:
        tail = f" (attempt {self.attempt}, last error {self.last_error})" if self._has_failed_before else ""
        return f"instance {self.id} ({self.label}) {self.doing}{tail}"

    @property
    def _has_failed_before(self) -> bool:
        return not self.status.terminal and (self.attempt > 0 or self.last_error is not None)


def decode_snapshot(row: Sequence[Any]) -> Snapshot:
    """Read a row of `sql/instance_snapshots.sql`."""
    return Snapshot(
        id=row[0],
        machine=row[1],
        version=row[2],
        step=row[3],
        status=decode_status(row[4]),
        queue=row[5],
        partition_key=row[6],
        unique_key=row[7],
        awaits=tuple(row[8] or ()),
        attempt=row[9],
        crashes=row[10],
        last_error=row[11],
        locked_by=row[12],
        children_pending=row[13],
        due_in=None if row[14] is None else timedelta(seconds=row[14]),
        inbox=tuple(row[15]),
        raw_state=row[16],
        raw_result=row[17],
    )


def shorten_for_message(text: str) -> str:
    """A text for a message, cut after 500 characters."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


def _describe_due_time(due_in: timedelta | None) -> str:
    if due_in is None or due_in <= timedelta(0):
        return "now"
    return f"in {_format_duration(due_in)}"


def _describe_await_deadline(due_in: timedelta | None) -> str:
    if due_in is None:
        return "without a deadline"
    if due_in <= timedelta(0):
        return "with a deadline that is due now"
    return f"for another {_format_duration(due_in)}"


def _format_duration(length: timedelta) -> str:
    seconds = float(f"{length.total_seconds():.3g}")  # rounds 59 min 59.99 s to an hour
    return f"{seconds:g} s" if seconds < 60 else str(timedelta(seconds=seconds))
