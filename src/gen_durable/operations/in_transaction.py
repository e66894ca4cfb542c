"""TransactionCalls: our calls on the caller's own connection, as a part of the caller's transaction.

In: a connection of one of the kinds in `pg.guests`, and what to insert, to signal or to cancel. Out: the answer, or an
error of our tree. What was written commits or rolls back with the caller; workers are notified by that commit.

Nothing is tried again here: the transaction is the caller's, and only the caller knows what else is in it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar, cast

from gen_durable.core.payloads import encrypted_signal, sealed_insert
from gen_durable.core.requests import to_error
from gen_durable.encryption import PayloadEncryption
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable, GenDurableError
from gen_durable.operations.insert import OnConflict, check_starts
from gen_durable.outcomes import Start
from gen_durable.pg.faults import server_error, sqlstate
from gen_durable.pg.foreign import run_awaiting, run_blocking
from gen_durable.store.statements import Statement, Statements
from gen_durable.store.text_params import TextStatements
from gen_durable.store.types import CancelTarget, Inserted, OutgoingSignal

T = TypeVar("T")


Steps = Generator[Statement[Any], Any, T]
"""What is to be asked, call by call; each is sent the answer to the one before."""


class TransactionCalls:
    """Runs calls of one `Durable` on connections that are not its own. It need not be open for that."""

    __slots__ = ("_calls", "_schema", "_seal")

    def __init__(self, calls: Statements, seal: PayloadEncryption | None) -> None:
        self._calls = TextStatements(calls)
        self._schema = calls.schema.name
        self._seal = seal

    async def insert(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict
    ) -> list[int | None]:
        """Insert them all; the answers are in the order of `starts`."""
        check_starts(starts, on_conflict)
        return await self._run(connection, self._insert(starts, on_conflict), "insert")

    def insert_blocking(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict
    ) -> list[int | None]:
        """As `insert`, on a connection that blocks."""
        check_starts(starts, on_conflict)
        return self._run_blocking(connection, self._insert(starts, on_conflict), "insert")

    async def signal(self, connection: object, delivery: OutgoingSignal) -> str:
        """Deliver a signal; tells what became of it."""
        return await self._run(connection, self._signal(delivery), "signal")

    def signal_blocking(self, connection: object, delivery: OutgoingSignal) -> str:
        """As `signal`, on a connection that blocks."""
        return self._run_blocking(connection, self._signal(delivery), "signal")

    async def cancel(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> CancelTarget:
        """Cancel an instance; tells what became of it. Its descendants follow after the commit, by the workers."""
        return await self._run(connection, self._cancel(instance, key, reason, cascade=cascade), "cancel")

    def cancel_blocking(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> CancelTarget:
        """As `cancel`, on a connection that blocks."""
        return self._run_blocking(connection, self._cancel(instance, key, reason, cascade=cascade), "cancel")

    def _insert(self, starts: Sequence[Start[Any]], on_conflict: OnConflict) -> Steps[list[int | None]]:
        if not starts:
            return []
        call = self._calls.calls.insert(starts, on_conflict)
        if self._seal is not None:
            ids = yield self._calls.allocate_ids(len(starts))
            call = sealed_insert(self._calls.calls, call, ids, self._seal)
        rows: list[Inserted] = yield self._calls.insert(call)
        return [row.id for row in rows]

    def _cancel(self, instance: int | None, key: bytes | None, reason: str, *, cascade: bool) -> Steps[CancelTarget]:
        (target,), _ = yield self._calls.cancel(instance, key, reason, cascade=cascade)
        return cast(CancelTarget, target)

    def _signal(self, delivery: OutgoingSignal) -> Steps[str]:
        if self._seal is not None:
            holder = delivery.target
            if holder is None and delivery.key is not None:
                holder = yield self._calls.id_of_key(delivery.key)
            if holder is None:
                return "no_target"
            delivery = encrypted_signal(delivery, holder, self._seal)
        ((_, verdict, _),) = yield self._calls.signal(delivery)
        return str(verdict)

    async def _run(self, connection: object, steps: Steps[T], what: str) -> T:
        answer: Any = None
        while True:
            try:
                call = steps.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            try:
                answer = call.read(await run_awaiting(connection, call))
            except GenDurableError:
                raise
            except Exception as error:
                raise self._told(error, what) from None

    def _run_blocking(self, connection: object, steps: Steps[T], what: str) -> T:
        answer: Any = None
        while True:
            try:
                call = steps.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            try:
                answer = call.read(run_blocking(connection, call))
            except GenDurableError:
                raise
            except Exception as error:
                raise self._told(error, what) from None

    def _told(self, error: Exception, what: str) -> GenDurableError:
        # The text of a wrapped error is not told: SQLAlchemy puts the statement and its parameters into it.
        said = server_error(error)
        code = sqlstate(said)
        if code is None:
            return DatabaseUnavailable(f"{what}: your connection could not be used ({type(error).__name__})")
        if code == "25P02":
            return DatabaseRefused(
                f"{what}: your transaction was aborted by an earlier error: roll back, or to a savepoint made before it"
            )
        return to_error(said, what, self._schema)
