"""Runs inserts: small ones without unique keys in groups, the others as they come."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias

from gen_durable.core.call_grouper import CallGrouper
from gen_durable.core.hand_off import HandOffTarget
from gen_durable.core.start_and_signal_encryption import encrypt_insert_statement
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.encryption import PayloadEncryption
from gen_durable.errors import DatabaseUnavailable
from gen_durable.pg.error_classifier import ConnectionLost, SqlError
from gen_durable.pg.sqlstate_errors import IdTaken
from gen_durable.starts import Start
from gen_durable.store.hand_off import HandOffStatementBuilder
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
        self,
        statements: StatementBuilder,
        statement_runner: StatementRunner,
        encryption: PayloadEncryption | None,
        find_hand_off_target: Callable[[], HandOffTarget | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._statements = statements
        self._statement_runner = statement_runner
        self._encryption = encryption
        self._hand_off_statements = HandOffStatementBuilder(statements.schema)
        self._find_hand_off_target = find_hand_off_target

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
        results = await self._insert(calls[0] if len(calls) == 1 else join_encoded_starts(calls), "raise")
        ends = accumulate(len(call.states) for call in calls)
        return [results[end - len(call.states) : end] for call, end in zip(calls, ends, strict=True)]

    async def run_alone(self, call: EncodedStarts) -> list[InsertResult]:
        return await self._insert(call, "raise")

    def may_run_twice(self, call: EncodedStarts) -> bool:
        """Without keys it could insert twice."""
        return False

    async def _insert(self, encoded: EncodedStarts, on_conflict: OnConflict) -> list[InsertResult]:
        statement = self._statements.insert_encoded(encoded, on_conflict)
        # A second try after a lost answer finds the rows of the first by their keys.
        may_run_twice = on_conflict == "existing" and all(start.unique_key is not None for start in encoded.starts)
        if self._encryption is None:
            return await self._run(statement, encoded, may_run_twice=may_run_twice)
        return await self._insert_encrypted(statement, encoded, self._encryption, may_run_twice=may_run_twice)

    async def _run(
        self, statement: Statement[list[InsertResult]], encoded: EncodedStarts, *, may_run_twice: bool
    ) -> list[InsertResult]:
        if (target := self._find_hand_off_target()) is not None:
            handed_off = await self._hand_off(target, statement, encoded.starts)
            if handed_off is not None:
                return handed_off
        return await self._statement_runner.run(statement, "insert", may_run_twice=may_run_twice)

    async def _hand_off(
        self, target: HandOffTarget, statement: Statement[list[InsertResult]], starts: Sequence[Start[Any]]
    ) -> list[InsertResult] | None:
        """Insert, and let a worker of this process claim the rows with it. Returns None if nothing was executed."""
        rows_by_queue: dict[str, int] = {}
        for start in starts:
            if start.unique_key is not None or start.delay or start.schedule_at is not None:
                return None  # it may wait for the holder of its key, or is not due yet
            rows_by_queue[start.queue] = rows_by_queue.get(start.queue, 0) + 1
        add_pick = functools.partial(self._hand_off_statements.insert_and_pick, statement)
        task = target.start_hand_off(rows_by_queue, add_pick)
        if task is None:
            return None
        try:
            results, claimed = await asyncio.shield(task)
        except ConnectionLost as error:
            if not error.sent:
                return None
            message = f"insert: {error.problem}; it may or may not have been executed"
            raise DatabaseUnavailable(message) from error
        except SqlError:
            return None  # the insert alone succeeds, or gets its own error
        return [row._replace(is_claimed=True) if row.id in claimed else row for row in results]

    async def _insert_encrypted(
        self,
        statement: Statement[list[InsertResult]],
        encoded: EncodedStarts,
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
            ids = await runner.run(statements.allocate_ids(len(encoded.states)), "insert", may_run_twice=True)
            encrypted = encrypt_insert_statement(statements, statement, ids, encryption)
            try:
                return await self._run(encrypted, encoded, may_run_twice=may_run_twice)
            except IdTaken:
                if draws_left == 0:
                    raise
        raise AssertionError("unreachable")
