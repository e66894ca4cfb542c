"""Runs inserts: small ones without unique keys in groups, the others as they come."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias

from gen_durable.core.call_grouper import CallGrouper
from gen_durable.core.start_and_signal_encryption import encrypt_insert_statement
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.encryption import PayloadEncryption
from gen_durable.errors import DatabaseUnavailable
from gen_durable.pg.sqlstate_errors import IdTaken
from gen_durable.starts import Start
from gen_durable.store.blocking_insert import insert_blocking_busy, unblock_new_rows
from gen_durable.store.start_encoder import EncodedStarts, encode_starts, join_encoded_starts
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import InsertResult

OnConflict: TypeAlias = Literal["raise", "skip", "existing"]
ID_DRAWS: Final = 3  # how often a call with a codec draws ids
MAX_GROUPED_STARTS: Final = 20  # of one call; a larger one has a transaction of its own
MAX_GROUPED_BYTES: Final = 10_000  # of the payloads of one call


class InsertRunner(CallGrouper[EncodedStarts, list[InsertResult]]):
    """Runs the inserts of one `Durable`.

    Instances without a unique key wait for no other transaction, so they may share one.
    """

    def __init__(
        self, statements: StatementBuilder, statement_runner: StatementRunner, encryption: PayloadEncryption | None
    ) -> None:
        super().__init__()
        self._statements = statements
        self._statement_runner = statement_runner
        self._encryption = encryption

    async def insert(self, starts: Sequence[Start[Any]], on_conflict: OnConflict) -> list[InsertResult]:
        """Insert instances, all or none. Returns a result for each. Raises `EncodeError` before anything is sent."""
        encoded = encode_starts(starts)
        if (
            len(starts) <= MAX_GROUPED_STARTS
            and encoded.size <= MAX_GROUPED_BYTES
            and all(start.unique_key is None for start in starts)
        ):
            return await self.run(encoded)
        return await self._insert(encoded, on_conflict)

    async def run_together(self, calls: Sequence[EncodedStarts]) -> list[list[InsertResult]]:
        results = await self._insert_grouped(calls[0] if len(calls) == 1 else join_encoded_starts(calls))
        ends = accumulate(len(call.states) for call in calls)
        return [results[end - len(call.states) : end] for call, end in zip(calls, ends, strict=True)]

    async def run_alone(self, call: EncodedStarts) -> list[InsertResult]:
        return await self._insert_grouped(call)

    def may_run_twice(self, call: EncodedStarts) -> bool:
        """Without keys it could insert twice."""
        return False

    async def _insert_grouped(self, encoded: EncodedStarts) -> list[InsertResult]:
        """Insert rows that come in one by one: those of a busy key or limit as blocked, so that no pick has to."""
        if self._encryption is not None or not any(start.partition_key or start.limits for start in encoded.starts):
            return await self._insert(encoded, "raise")
        rows = await self._statement_runner.run(insert_blocking_busy(self._statements, encoded), "insert")
        if any(row.blocked_on is not None for row in rows):
            # The rows are committed, so the call does not fail with a lost connection; unblock_missed_rows looks later.
            with suppress(DatabaseUnavailable):
                await self._statement_runner.run(unblock_new_rows(self._statements, rows), "insert", may_run_twice=True)
        return rows

    async def _insert(self, encoded: EncodedStarts, on_conflict: OnConflict) -> list[InsertResult]:
        statement = self._statements.insert_encoded(encoded, on_conflict)
        # A second try after a lost answer finds the rows of the first by their keys.
        may_run_twice = on_conflict == "existing" and all(start.unique_key is not None for start in encoded.starts)
        if self._encryption is None:
            return await self._statement_runner.run(statement, "insert", may_run_twice=may_run_twice)
        return await self._insert_encrypted(
            statement, len(encoded.states), self._encryption, may_run_twice=may_run_twice
        )

    async def _insert_encrypted(
        self,
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
        runner, statements = self._statement_runner, self._statements
        for draws_left in range(ID_DRAWS - 1, -1, -1):
            ids = await runner.run(statements.allocate_ids(count), "insert", may_run_twice=True)
            encrypted = encrypt_insert_statement(statements, statement, ids, encryption)
            try:
                return await runner.run(encrypted, "insert", may_run_twice=may_run_twice)
            except IdTaken:
                if draws_left == 0:
                    raise
        raise AssertionError("unreachable")
