"""Insert: new instances become rows, in one statement: all or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gen_durable.core.insert_runner import OnConflict
from gen_durable.core.services import Services
from gen_durable.errors import InputError, TooLarge
from gen_durable.starts import Start
from gen_durable.store.blocked_rows import BlockedRows, merge_blocked_rows
from gen_durable.store.types import InsertResult
from gen_durable.validation import MAX_BATCH


async def insert(services: Services, starts: Sequence[Start[Any]], on_conflict: OnConflict) -> list[int | None]:
    """Insert instances, and wake the queues of those that no worker has claimed yet.

    Returns the ids in the order of `starts`; None for a skipped one.
    """
    check_starts(starts, on_conflict)
    if not starts:
        return []
    rows = await services.insert_runner.insert(starts, on_conflict)
    new: dict[str, int] = {}
    for start, row in zip(starts, rows, strict=True):
        if row.new and not row.is_claimed:
            new[start.queue] = new.get(start.queue, 0) + 1
    for queue, count in new.items():
        services.notifier.wake(queue, count)
    if services.events.active:
        for blocked in blocked_rows_of_insert(starts, rows):
            services.events.emit(blocked.to_event())
    return [row.id for row in rows]


def blocked_rows_of_insert(starts: Sequence[Start[Any]], rows: Sequence[InsertResult]) -> list[BlockedRows]:
    """The new rows that wait for a gate: the client reports them, since picks do not meet them before it is free."""
    return merge_blocked_rows(
        BlockedRows(row.blocked_on, start.queue, 1, row.id, start.step.machine.name)
        for start, row in zip(starts, rows, strict=True)
        if row.id is not None and row.blocked_on is not None
    )


def check_starts(starts: Sequence[Start[Any]], on_conflict: OnConflict) -> None:
    """Raise `InputError` or `TooLarge` for what cannot be inserted, before the database is touched."""
    if on_conflict not in ("raise", "skip", "existing"):
        raise InputError(f"on_conflict must be 'raise', 'skip' or 'existing', got {on_conflict!r}")
    if len(starts) > MAX_BATCH:
        raise TooLarge(f"insert_many got {len(starts):,} instances, at most {MAX_BATCH:,} go in one call")
    for start in starts:
        if not isinstance(start, Start):
            raise InputError(f"insert_many takes Start(...) values, got {type(start).__name__}")
