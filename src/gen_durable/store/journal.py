"""Statements of the journal: steps write checkpoints, activities and progress; clients read these and the history.

Every write carries the fence (id, epoch, seq) of its claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gen_durable.errors import DecodeError
from gen_durable.journal import Activity, Checkpoint, Progress, Transition
from gen_durable.store.python_range_times import clamped_time
from gen_durable.store.schema import Schema
from gen_durable.store.statements import PAGE_BYTES, Statement
from gen_durable.store.types import Row

CHECKPOINT_FORMAT: Final = 1
"""The format of checkpoints that this version writes, and the newest that it reads."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The row as a step received it. A write whose fence no longer matches the row is rejected."""

    id: int
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class ActivityRecord:
    """A finished call of an activity; it began `ago` seconds ago."""

    number: int
    name: str
    parameters: str
    result: str | None
    error: str | None
    ago: float
    duration: float
    attempt: int


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """A progress report of a step; id and epoch are its fence."""

    id: int
    epoch: int
    step: str
    branch: str
    fraction: float | None
    message: str | None
    detail: str | None


class JournalStatementBuilder:
    """The statements of the journal, for one schema. Writes return whether the fence matched."""

    __slots__ = (
        "_activities",
        "_activities_page",
        "_activity",
        "_checkpoint",
        "_checkpoint_of",
        "_clear",
        "_history",
        "_progress",
        "_report",
        "_trim",
    )

    def __init__(self, schema: Schema) -> None:
        s = f'"{schema.name}"'
        self._checkpoint = f"select {s}.record_checkpoint($1,$2,$3,$4,$5)"
        self._clear = f"select {s}.clear_checkpoint($1,$2,$3)"
        self._activity = f"select {s}.record_activity($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11)"
        self._activities_page = f"select {s}.activities_page($1,$2,$3,$4)"
        self._report = f"select locked from {s}.record_progress($1,$2,$3,$4,$5,$6,$7)"  # noqa: S608
        self._trim = f"select {s}.trim_history($1,$2,$3)"
        self._history = (
            f"select seq, step, outcome, next_step, attempt, {clamped_time('started_at')}, duration, waited, cause, "  # noqa: S608
            f"worker, error, error_type, traceback, state::text from {s}.history_of($1,$2,$3)"
        )
        self._activities = (
            f"select visit, step, name, attempt, {clamped_time('started_at')}, duration, error, parameters::text, "  # noqa: S608
            f"result::text from {s}.activities_of($1,$2,$3)"
        )
        self._checkpoint_of = (
            f"select format, version, {clamped_time('updated_at')}, value::text from {s}.checkpoint_of($1,$2)"  # noqa: S608
        )
        self._progress = (
            f"select step, branch, fraction, message, {clamped_time('updated_at')}, detail::text "  # noqa: S608
            f"from {s}.progress_of($1,$2)"
        )

    def activities_page(self, instance: int, visit: int, after: int) -> Statement[str | None]:
        """The next activities of a visit as JSON, after the number `after`: at most PAGE_BYTES, and at least one."""
        return Statement(self._activities_page, (instance, visit, after, PAGE_BYTES), lambda rows: rows[0][0])

    def record_checkpoint(self, fence: Fence, value: str) -> Statement[bool]:
        args = (fence.id, fence.epoch, fence.seq, value, CHECKPOINT_FORMAT)
        return Statement(self._checkpoint, args, lambda rows: rows[0][0] is not None)

    def clear_checkpoint(self, fence: Fence) -> Statement[bool]:
        return Statement(self._clear, (fence.id, fence.epoch, fence.seq), _decode_bool)

    def record_activity(self, fence: Fence, record: ActivityRecord) -> Statement[bool]:
        return Statement(
            self._activity,
            (
                fence.id,
                fence.epoch,
                fence.seq,
                record.number,
                record.name,
                record.parameters,
                record.result,
                record.error,
                record.ago,
                record.duration,
                record.attempt,
            ),
            _decode_bool,
        )

    def record_progress(self, reports: Sequence[ProgressReport]) -> Statement[set[int]]:
        """`reports` in the order of ids. Returns the ids whose rows were locked and therefore skipped."""
        return Statement(
            self._report,
            (
                [r.id for r in reports],
                [r.epoch for r in reports],
                [r.step for r in reports],
                [r.branch for r in reports],
                [r.fraction for r in reports],
                [r.message for r in reports],
                [r.detail for r in reports],
            ),
            lambda rows: {row[0] for row in rows},
        )

    def trim_history(self, lengths: Mapping[int, int], batch: int) -> Statement[list[int]]:
        """Delete old entries: `lengths` are how many outcomes to keep, by id. Returns ids with perhaps more."""
        args = (list(lengths), list(lengths.values()), batch)
        return Statement(self._trim, args, lambda rows: list(rows[0][0]))

    def history(self, instance: int | None, key: bytes | None, last: int | None = None) -> Statement[list[Transition]]:
        return Statement(
            self._history,
            (instance, key, last),
            lambda rows: [Transition(*_json_columns_to_bytes(row, 13)) for row in rows],
        )

    def activities(self, instance: int | None, key: bytes | None, last: int | None = None) -> Statement[list[Activity]]:
        return Statement(
            self._activities,
            (instance, key, last),
            lambda rows: [Activity(*_json_columns_to_bytes(row, 7)) for row in rows],
        )

    def checkpoint_of(self, instance: int | None, key: bytes | None) -> Statement[Checkpoint | None]:
        return Statement(self._checkpoint_of, (instance, key), _decode_checkpoint)

    def progress(self, instance: int | None, key: bytes | None) -> Statement[list[Progress]]:
        return Statement(
            self._progress, (instance, key), lambda rows: [Progress(*_json_columns_to_bytes(row, 5)) for row in rows]
        )


def check_checkpoint_format(written: int) -> None:
    """Raise `DecodeError` if a newer version of the library wrote the checkpoint."""
    if written > CHECKPOINT_FORMAT:
        raise DecodeError(
            f"a checkpoint was written by a newer gen_durable (format {written}, this one reads up to "
            f"{CHECKPOINT_FORMAT}): upgrade this one"
        )


def _decode_checkpoint(rows: Sequence[Row]) -> Checkpoint | None:
    if not rows:
        return None
    check_checkpoint_format(rows[0][0])
    return Checkpoint(*_json_columns_to_bytes(rows[0][1:], 2))


def _decode_bool(rows: Sequence[Row]) -> bool:
    return bool(rows[0][0])


def _json_columns_to_bytes(row: Row, first: int) -> list[Any]:
    """A row with the columns from `first` on, which are JSON, as bytes."""
    return [*row[:first], *(None if text is None else text.encode() for text in row[first:])]
