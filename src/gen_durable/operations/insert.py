"""Insert: new instances become rows, in one statement: all or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from gen_durable.core.services import Services
from gen_durable.core.start_and_signal_encryption import encrypt_insert_statement
from gen_durable.encryption import PayloadEncryption
from gen_durable.errors import InputError, TooLarge
from gen_durable.pg.sqlstate_errors import IdTaken
from gen_durable.starts import Start
from gen_durable.store.blocked_rows import BlockedRows, merge_blocked_rows
from gen_durable.store.statements import Statement
from gen_durable.store.types import InsertResult
from gen_durable.validation import MAX_BATCH

OnConflict: TypeAlias = Literal["raise", "skip", "existing"]
ID_DRAWS: Final = 3  # how often a call with a codec draws ids


async def insert(services: Services, starts: Sequence[Start[Any]], on_conflict: OnConflict) -> list[int | None]:
    """Insert instances, and wake their queues. Returns the ids in the order of `starts`; None for a skipped one."""
    check_starts(starts, on_conflict)
    if not starts:
        return []
    statement = services.statements.insert(starts, on_conflict)
    # A second try after a lost answer finds the rows of the first by their keys; without keys it could insert twice.
    may_run_twice = on_conflict == "existing" and all(start.unique_key is not None for start in starts)
    if services.encryption is None:
        rows = await services.statement_runner.run(statement, "insert", may_run_twice=may_run_twice)
    else:
        rows = await _insert_encrypted(
            services, statement, len(starts), services.encryption, may_run_twice=may_run_twice
        )
    new: dict[str, int] = {}
    for start, row in zip(starts, rows, strict=True):
        if row.new:
            new[start.queue] = new.get(start.queue, 0) + 1
    for queue, count in new.items():
        services.notifier.wake(queue, count)
    if services.events.active:
        for blocked in blocked_rows_of_insert(starts, rows):
            services.events.emit(blocked.to_event())
    return [row.id for row in rows]


async def _insert_encrypted(
    services: Services,
    statement: Statement[list[InsertResult]],
    count: int,
    encryption: PayloadEncryption,
    *,
    may_run_twice: bool,
) -> list[InsertResult]:
    """Insert states that are encrypted for their instances, so that the ids come first.

    Ids that cannot be used any more are drawn again: a first try whose answer was lost has used them up, or the
    sequence was set back.
    """
    runner, statements = services.statement_runner, services.statements
    for draws_left in range(ID_DRAWS - 1, -1, -1):
        ids = await runner.run(statements.allocate_ids(count), "insert", may_run_twice=True)
        encrypted = encrypt_insert_statement(statements, statement, ids, encryption)
        try:
            return await runner.run(encrypted, "insert", may_run_twice=may_run_twice)
        except IdTaken:
            if draws_left == 0:
                raise
    raise AssertionError("unreachable")


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
