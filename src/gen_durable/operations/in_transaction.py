"""Calls on the caller's own connection, as a part of the caller's transaction.

Their writes commit or roll back with the caller, and the commit notifies the workers. No statement is retried: the
transaction may contain other work of the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar, cast

from gen_durable.core.claim_encryption import encrypted_insert, encrypted_signal
from gen_durable.core.services import Services
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable, GenDurableError
from gen_durable.operations.insert import OnConflict, check_starts
from gen_durable.pg.caller_connection import run_awaiting, run_blocking
from gen_durable.pg.faults import sqlstate, unwrap_driver_error
from gen_durable.pg.sqlstate_errors import to_error
from gen_durable.starts import Start
from gen_durable.store.statements import Statement
from gen_durable.store.text_params import TextStatements
from gen_durable.store.types import CancelResult, InsertResult, OutgoingSignal, Row

T = TypeVar("T")

CallStatements = Generator[Statement[Any], Any, T]
"""The statements of a call: each is sent the answer to the one before; the generator returns the call's answer."""
RunOnConnection = Callable[[object, Statement[Any]], Awaitable[Sequence[Row]]]


class TransactionCalls:
    """Runs calls of one `Durable`, open or not, on connections of its callers."""

    __slots__ = ("_encryption", "_schema", "_statements")

    def __init__(self, services: Services) -> None:
        self._statements = TextStatements(services.statements)
        self._schema = services.schema.name
        self._encryption = services.encryption

    async def insert(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict
    ) -> list[int | None]:
        """Insert instances. Returns their ids in the order of `starts`."""
        check_starts(starts, on_conflict)
        return await self._run(connection, self._insert(starts, on_conflict), "insert")

    def insert_blocking(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict
    ) -> list[int | None]:
        """As `insert`, on a blocking connection."""
        check_starts(starts, on_conflict)
        return self._run_blocking(connection, self._insert(starts, on_conflict), "insert")

    async def signal(self, connection: object, outgoing: OutgoingSignal) -> str:
        """Deliver a signal. Returns the verdict of `signal.sql`."""
        return await self._run(connection, self._signal(outgoing), "signal")

    def signal_blocking(self, connection: object, outgoing: OutgoingSignal) -> str:
        """As `signal`, on a blocking connection."""
        return self._run_blocking(connection, self._signal(outgoing), "signal")

    async def cancel(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> CancelResult:
        """Cancel an instance. Workers cancel its descendants after the commit."""
        return await self._run(connection, self._cancel(instance, key, reason, cascade=cascade), "cancel")

    def cancel_blocking(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> CancelResult:
        """As `cancel`, on a blocking connection."""
        return self._run_blocking(connection, self._cancel(instance, key, reason, cascade=cascade), "cancel")

    def _insert(self, starts: Sequence[Start[Any]], on_conflict: OnConflict) -> CallStatements[list[int | None]]:
        if not starts:
            return []
        statement = self._statements.statements.insert(starts, on_conflict)
        if self._encryption is not None:
            ids = yield self._statements.allocate_ids(len(starts))
            statement = encrypted_insert(self._statements.statements, statement, ids, self._encryption)
        rows: list[InsertResult] = yield self._statements.insert(statement)
        return [row.id for row in rows]

    def _cancel(
        self, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> CallStatements[CancelResult]:
        (target,), _ = yield self._statements.cancel(instance, key, reason, cascade=cascade)
        return cast(CancelResult, target)

    def _signal(self, outgoing: OutgoingSignal) -> CallStatements[str]:
        if self._encryption is not None:
            target = outgoing.target
            if target is None and outgoing.key is not None:
                target = yield self._statements.id_of_key(outgoing.key)
            if target is None:
                return "no_target"
            outgoing = encrypted_signal(outgoing, target, self._encryption)
        ((_, verdict, _),) = yield self._statements.signal(outgoing)
        return str(verdict)

    async def _run(
        self,
        connection: object,
        statements: CallStatements[T],
        operation: str,
        run_statement: RunOnConnection = run_awaiting,
    ) -> T:
        answer: Any = None
        while True:
            try:
                statement = statements.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            try:
                answer = statement.read(await run_statement(connection, statement))
            except Exception as error:
                raise self._to_error(error, operation) from None

    def _run_blocking(self, connection: object, statements: CallStatements[T], operation: str) -> T:
        # The same call: with a runner that blocks, its coroutine never suspends, so one `send` runs it to its end.
        call = self._run(connection, statements, operation, _run_without_suspending)
        try:
            call.send(None)
        except StopIteration as end:
            return cast(T, end.value)
        raise AssertionError("a call on a blocking connection was suspended")

    def _to_error(self, error: Exception, operation: str) -> GenDurableError:
        if isinstance(error, GenDurableError):
            return error
        # Not the text of a wrapped error: SQLAlchemy puts the statement and its parameters into it.
        original = unwrap_driver_error(error)
        code = sqlstate(original)
        if code is None:
            return DatabaseUnavailable(f"{operation}: your connection could not be used ({type(error).__name__})")
        if code == "25P02":
            return DatabaseRefused(
                f"{operation}: your transaction was aborted by an earlier error: roll back, or to a savepoint made "
                "before it"
            )
        return to_error(original, operation, self._schema)


async def _run_without_suspending(connection: object, statement: Statement[Any]) -> Sequence[Row]:
    return run_blocking(connection, statement)
