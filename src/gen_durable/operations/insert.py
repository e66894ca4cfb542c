"""Inserter: new instances become rows.

In: `Start` values, and what to do about a unique key that is taken. Out: an id for each, None for one that was skipped;
and a ring in every queue that got rows. All or none: one call is one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from gen_durable.core.payloads import sealed_insert
from gen_durable.core.requests import Requests
from gen_durable.encryption import PayloadEncryption
from gen_durable.errors import InputError, TooLarge
from gen_durable.outcomes import Start
from gen_durable.store.statements import Statements
from gen_durable.store.types import Inserted
from gen_durable.validation import MAX_BATCH

OnConflict: TypeAlias = Literal["raise", "skip", "existing"]


class Inserter:
    """Inserts for one `Durable`."""

    __slots__ = ("_ask", "_calls", "_ring", "_seal")

    def __init__(
        self, ask: Requests, calls: Statements, ring: Callable[[str, int], None], seal: PayloadEncryption | None
    ) -> None:
        self._ask = ask
        self._calls = calls
        self._ring = ring
        self._seal = seal

    async def starts(self, starts: Sequence[Start[Any]], on_conflict: OnConflict) -> list[int | None]:
        """Inserter them all; the answers are in the order of `starts`."""
        check_starts(starts, on_conflict)
        if not starts:
            return []
        call = self._calls.insert(starts, on_conflict)
        if self._seal is not None:
            ids = await self._ask.run(self._calls.allocate_ids(len(starts)), "insert", safe=True)
            call = sealed_insert(self._calls, call, ids, self._seal)
        keyed = all(start.unique_key is not None for start in starts)
        # A second try after a lost answer finds the first one's rows by their keys; without keys it might insert twice.
        rows = await self._ask.run(call, "insert", safe=keyed and on_conflict == "existing")
        self._ring_for(starts, rows)
        return [row.id for row in rows]

    def _ring_for(self, starts: Sequence[Start[Any]], rows: list[Inserted]) -> None:
        counts: dict[str, int] = {}
        for start, row in zip(starts, rows, strict=True):
            if row.new:
                counts[start.queue] = counts.get(start.queue, 0) + 1
        for queue, count in counts.items():
            self._ring(queue, count)


def check_starts(starts: Sequence[Start[Any]], on_conflict: OnConflict) -> None:
    """Refuse what cannot be inserted, before the database is touched."""
    if on_conflict not in ("raise", "skip", "existing"):
        raise InputError(f"on_conflict must be 'raise', 'skip' or 'existing', got {on_conflict!r}")
    if len(starts) > MAX_BATCH:
        raise TooLarge(f"insert_many got {len(starts):,} instances, at most {MAX_BATCH:,} go in one call")
    for start in starts:
        if not isinstance(start, Start):
            raise InputError(f"insert_many takes Start(...) values, got {type(start).__name__}")
