"""Calls on the caller's own connection, as a part of the caller's transaction.

Their writes commit or roll back with the caller, and workers are notified after the commit. No statement is retried:
the transaction may contain other work of the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, cast

from gen_durable.core.insert_runner import OnConflict
from gen_durable.core.services import Services
from gen_durable.core.start_and_signal_encryption import encrypt_insert_statement, encrypt_signal_for_target
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable, GenDurableError, InputError
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.operations.insert import blocked_rows_of_insert, check_starts
from gen_durable.operations.start_or_update import follow_ups_of, start_or_update_statements
from gen_durable.pg.caller_connection import (
    listen_for_sqlalchemy_commits,
    run_on_async_connection,
    run_on_blocking_connection,
    try_call_after_django_commit,
)
from gen_durable.pg.error_classifier import sqlstate_of, unwrap_driver_error
from gen_durable.pg.sqlstate_errors import to_library_error
from gen_durable.starts import Start
from gen_durable.store.caller_statements import CallerStatementBuilder
from gen_durable.store.start_or_update import StartOrUpdate, StartOrUpdateResult
from gen_durable.store.statements import Statement
from gen_durable.store.types import CancelResult, FollowUps, InsertResult, OutgoingSignal, Row

log = get_escaping_logger("gen_durable.notifier")
T = TypeVar("T")

Notify: TypeAlias = Literal["after_commit", "in_transaction", "never"]

CallStatements = Generator[Statement[Any], Any, T]
"""The statements of a call: each is sent the answer to the one before; the generator returns the call's answer."""
RunOnConnection = Callable[[object, Statement[Any]], Awaitable[Sequence[Row]]]


class CallerTransactionCalls:
    """Runs calls of one `Durable`, open or not, on connections of its callers."""

    __slots__ = ("_encryption", "_has_warned", "_schema", "_services", "_statements")

    def __init__(self, services: Services) -> None:
        self._services = services
        self._statements = CallerStatementBuilder(services.statements)
        self._schema = services.schema.name
        self._encryption = services.encryption
        self._has_warned = False

    async def insert(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict, notify: Notify
    ) -> list[int | None]:
        """Insert instances. Returns their ids in the order of `starts`."""
        return await self._run_statements(
            connection, self._insert_statements(connection, starts, on_conflict, notify), "insert"
        )

    def insert_blocking(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict, notify: Notify
    ) -> list[int | None]:
        """As `insert`, on a blocking connection."""
        return self._run_statements_blocking(
            connection, self._insert_statements(connection, starts, on_conflict, notify), "insert"
        )

    async def signal(self, connection: object, outgoing: OutgoingSignal, notify: Notify) -> str:
        """Deliver a signal. Returns the verdict of `signal.sql`."""
        return await self._run_statements(connection, self._signal_statements(connection, outgoing, notify), "signal")

    def signal_blocking(self, connection: object, outgoing: OutgoingSignal, notify: Notify) -> str:
        """As `signal`, on a blocking connection."""
        return self._run_statements_blocking(
            connection, self._signal_statements(connection, outgoing, notify), "signal"
        )

    async def start_or_update(
        self, connection: object, call: StartOrUpdate, notify: Notify, operation: str
    ) -> StartOrUpdateResult:
        """Deliver a signal or start, or debounce."""
        statements = self._start_or_update_statements(connection, call, notify)
        return await self._run_statements(connection, statements, operation)

    def start_or_update_blocking(
        self, connection: object, call: StartOrUpdate, notify: Notify, operation: str
    ) -> StartOrUpdateResult:
        """As `start_or_update`, on a blocking connection."""
        return self._run_statements_blocking(
            connection, self._start_or_update_statements(connection, call, notify), operation
        )

    async def cancel(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, notify: Notify, *, cascade: bool
    ) -> CancelResult:
        """Cancel an instance. Its descendants are cancelled after the commit."""
        statements = self._cancel_statements(connection, instance, key, reason, notify, cascade=cascade)
        return await self._run_statements(connection, statements, "cancel")

    def cancel_blocking(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, notify: Notify, *, cascade: bool
    ) -> CancelResult:
        """As `cancel`, on a blocking connection."""
        statements = self._cancel_statements(connection, instance, key, reason, notify, cascade=cascade)
        return self._run_statements_blocking(connection, statements, "cancel")

    def _insert_statements(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict, notify: Notify
    ) -> CallStatements[list[int | None]]:
        check_starts(starts, on_conflict)
        if not starts:
            return []
        statement = self._statements.statements.insert(starts, on_conflict)
        if self._encryption is not None:
            ids = yield self._statements.allocate_ids(len(starts))
            statement = encrypt_insert_statement(self._statements.statements, statement, ids, self._encryption)
        rows: list[InsertResult]
        rows, transaction = yield self._statements.insert(statement, notify=notify == "in_transaction")
        if notify == "after_commit":
            queues = frozenset(start.queue for start, row in zip(starts, rows, strict=True) if row.new)
            blocked = blocked_rows_of_insert(starts, rows) if self._services.events.active else ()
            self._notify_after_commit(connection, transaction, FollowUps(queues, blocked=tuple(blocked)))
        return [row.id for row in rows]

    def _cancel_statements(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, notify: Notify, *, cascade: bool
    ) -> CallStatements[CancelResult]:
        target, follow_ups, transaction = yield self._statements.cancel(
            instance, key, reason, cascade=cascade, notify=notify == "in_transaction"
        )
        if notify == "after_commit":
            self._notify_after_commit(connection, transaction, follow_ups)
        return cast(CancelResult, target)

    def _signal_statements(self, connection: object, outgoing: OutgoingSignal, notify: Notify) -> CallStatements[str]:
        if self._encryption is not None:
            target = outgoing.target
            if target is None and outgoing.key is not None:
                target = yield self._statements.live_id_of_key(outgoing.key)
            if target is None:
                return "no_target"
            outgoing = encrypt_signal_for_target(outgoing, target, self._encryption)
        (_, verdict, woken_queue), transaction = yield self._statements.signal(
            outgoing, notify=notify == "in_transaction"
        )
        if notify == "after_commit" and woken_queue is not None:
            self._notify_after_commit(connection, transaction, FollowUps(frozenset({woken_queue})))
        return str(verdict)

    def _start_or_update_statements(
        self, connection: object, call: StartOrUpdate, notify: Notify
    ) -> CallStatements[StartOrUpdateResult]:
        result = yield from start_or_update_statements(
            call,
            self._encryption,
            partial(self._statements.start_or_update, notify=notify == "in_transaction"),
            self._statements.allocate_ids,
        )
        if notify == "after_commit":
            self._notify_after_commit(connection, result.transaction, follow_ups_of(result))
        return result

    def _notify_after_commit(self, connection: object, transaction: int | None, follow_ups: FollowUps) -> None:
        """Have workers notified once the caller's transaction has been committed."""
        if transaction is None or not follow_ups:
            return
        watcher = self._services.caller_transaction_watcher
        if watcher is None:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "workers are not notified of calls with connection=, because this client is not open; they find "
                    "the work when they poll. Open the client, or pass notify='in_transaction' or 'never'"
                )
        elif not try_call_after_django_commit(connection, partial(watcher.act_on_follow_ups, follow_ups)):
            watcher.act_after_commit(transaction, follow_ups)
            listen_for_sqlalchemy_commits(connection, watcher.check_transactions_soon)

    async def _run_statements(
        self,
        connection: object,
        statements: CallStatements[T],
        operation: str,
        run_statement: RunOnConnection = run_on_async_connection,
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
                raise self._to_library_error(error, operation) from None

    def _run_statements_blocking(self, connection: object, statements: CallStatements[T], operation: str) -> T:
        # The same call: with a runner that blocks, its coroutine never suspends, so one `send` runs it to its end.
        call = self._run_statements(connection, statements, operation, _run_without_suspending)
        try:
            call.send(None)
        except StopIteration as end:
            return cast(T, end.value)
        raise AssertionError("a call on a blocking connection was suspended")

    def _to_library_error(self, error: Exception, operation: str) -> GenDurableError:
        if isinstance(error, GenDurableError):
            return error
        # Not the text of a wrapped error: SQLAlchemy puts the statement and its parameters into it.
        original = unwrap_driver_error(error)
        code = sqlstate_of(original)
        if code is None:
            return DatabaseUnavailable(f"{operation}: your connection could not be used ({type(error).__name__})")
        if code == "25P02":
            return DatabaseRefused(
                f"{operation}: your transaction was aborted by an earlier error: roll back, or to a savepoint made "
                "before it"
            )
        return to_library_error(original, operation, self._schema)


def check_notify(notify: Notify, connection: object) -> None:
    """Raise `InputError` for a `notify=` that has no meaning."""
    if notify not in ("after_commit", "in_transaction", "never"):
        raise InputError(f"notify must be 'after_commit', 'in_transaction' or 'never', got {notify!r}")
    if connection is None and notify != "after_commit":
        raise InputError("notify= is for calls with connection=: without it workers are notified after the commit")


async def _run_without_suspending(connection: object, statement: Statement[Any]) -> Sequence[Row]:
    return run_on_blocking_connection(connection, statement)
