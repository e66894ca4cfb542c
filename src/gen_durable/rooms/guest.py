"""Guest: our calls on the caller's own connection, as a part of the caller's transaction.

In: a connection of one of the kinds in `pg.guests`, and what to insert, to signal or to cancel. Out: the answer, or an
error of our tree. What was written commits or rolls back with the caller; workers are notified by that commit.

Nothing is tried again here: the transaction is the caller's, and only the caller knows what else is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from gen_durable.errors import DatabaseRefused, DatabaseUnavailable, GenDurableError
from gen_durable.outcomes import Start
from gen_durable.pg.faults import server_error, sqlstate
from gen_durable.pg.guests import run_awaiting, run_blocking
from gen_durable.rooms.ask import refused
from gen_durable.rooms.insert import OnConflict, check_starts
from gen_durable.store.calls import Call, Calls
from gen_durable.store.guests import GuestCalls
from gen_durable.store.rows import CancelTarget, Delivery

T = TypeVar("T")


class Guest:
    """Runs calls of one `Durable` on connections that are not its own. It need not be open for that."""

    __slots__ = ("_calls", "_schema")

    def __init__(self, calls: Calls) -> None:
        self._calls = GuestCalls(calls)
        self._schema = calls.schema.name

    async def insert(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict
    ) -> list[int | None]:
        """Insert them all; the answers are in the order of `starts`."""
        check_starts(starts, on_conflict)
        if not starts:
            return []
        rows = await self._run(connection, self._calls.insert(starts, on_conflict), "insert")
        return [row.id for row in rows]

    def insert_blocking(
        self, connection: object, starts: Sequence[Start[Any]], on_conflict: OnConflict
    ) -> list[int | None]:
        """As `insert`, on a connection that blocks."""
        check_starts(starts, on_conflict)
        if not starts:
            return []
        rows = self._run_blocking(connection, self._calls.insert(starts, on_conflict), "insert")
        return [row.id for row in rows]

    async def signal(self, connection: object, delivery: Delivery) -> str:
        """Deliver a signal; tells what became of it."""
        ((_, verdict, _),) = await self._run(connection, self._calls.signal(delivery), "signal")
        return verdict

    def signal_blocking(self, connection: object, delivery: Delivery) -> str:
        """As `signal`, on a connection that blocks."""
        ((_, verdict, _),) = self._run_blocking(connection, self._calls.signal(delivery), "signal")
        return verdict

    async def cancel(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> CancelTarget:
        """Cancel an instance; tells what became of it. Its descendants follow after the commit, by the workers."""
        call = self._calls.cancel(instance, key, reason, cascade=cascade)
        (target,), _ = await self._run(connection, call, "cancel")
        return target

    def cancel_blocking(
        self, connection: object, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> CancelTarget:
        """As `cancel`, on a connection that blocks."""
        call = self._calls.cancel(instance, key, reason, cascade=cascade)
        (target,), _ = self._run_blocking(connection, call, "cancel")
        return target

    async def _run(self, connection: object, call: Call[T], what: str) -> T:
        try:
            rows = await run_awaiting(connection, call)
        except GenDurableError:
            raise
        except Exception as error:
            raise self._told(error, what) from error
        return call.read(rows)

    def _run_blocking(self, connection: object, call: Call[T], what: str) -> T:
        try:
            rows = run_blocking(connection, call)
        except GenDurableError:
            raise
        except Exception as error:
            raise self._told(error, what) from error
        return call.read(rows)

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
        return refused(said, what, self._schema)
