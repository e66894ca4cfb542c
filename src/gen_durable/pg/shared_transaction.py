"""A transaction that user code writes in and the engine commits.

The user gets the driver's connection. The engine's own statements run behind a savepoint, so a rejected one leaves the
user's writes intact. No other task may use the connection meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gen_durable.pg.error_classifier import ConnectionLost, FaultKind, classify_error, to_connection_lost
from gen_durable.pg.persistent_connection import PersistentConnection, RunStatement

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.transaction import Transaction as DriverTransaction

    from gen_durable.store.statements import Statement

T = TypeVar("T")
U = TypeVar("U")
ROLLBACK_TIMEOUT: Final = 2.0


class SharedTransaction:
    """An open transaction. The caller of `begin` ends it with `commit`, `rollback` or `drop`."""

    __slots__ = ("_connection", "_inner", "driver_connection")

    def __init__(
        self, connection: PersistentConnection, driver_connection: asyncpg.Connection[Any], inner: DriverTransaction
    ) -> None:
        self._connection = connection
        self._inner = inner
        self.driver_connection = driver_connection

    @classmethod
    async def begin(cls, connection: PersistentConnection) -> SharedTransaction:
        """Begin a transaction with the engine's settings, without those of earlier steps. Raises `ConnectionLost`."""
        driver_connection = await connection.connect()
        # The driver's own transaction: inside it `connection.transaction()` of the user makes a savepoint.
        inner = driver_connection.transaction(isolation="read_committed")
        try:
            with connection.watch_server():
                await inner.start()
                # Inside the transaction: behind a pooler an earlier statement may reach another server connection.
                await driver_connection.execute(f"reset all;{connection.settings_script}")
        except Exception as error:
            connection.drop()
            raise ConnectionLost(error, sent=False) from error
        except BaseException:
            connection.drop()
            raise
        return cls(connection, driver_connection, inner)

    @property
    def is_open(self) -> bool:
        """Whether the transaction is still open: the user may have ended it by a statement."""
        return self.driver_connection.is_in_transaction()

    async def run_in_savepoint(self, work: Callable[[RunStatement], Awaitable[T]]) -> T:
        """Run the engine's statements, all of them or none. Raises `ConnectionLost`, or the server's own error."""

        async def run(statement: Statement[U]) -> U:
            return statement.read(await self.driver_connection.fetch(statement.text, *statement.args))

        try:
            with self._connection.watch_server():
                async with self.driver_connection.transaction():
                    return await work(run)
        except Exception as error:
            if classify_error(error) is FaultKind.GONE:
                raise to_connection_lost(error) from error
            raise

    async def commit(self) -> None:
        """Commit. After `ConnectionLost` it is unknown whether the commit happened; after a server error it did not."""
        try:
            with self._connection.watch_server():
                await self._inner.commit()
        except Exception as error:
            if classify_error(error) is FaultKind.GONE:
                self._connection.drop()
                raise to_connection_lost(error) from error
            raise
        except BaseException:
            self._connection.drop()
            raise

    async def rollback(self) -> bool:
        """Roll back. Returns False if that failed and the connection was dropped, so that the server rolls back."""
        try:
            async with asyncio.timeout(ROLLBACK_TIMEOUT):
                await self._inner.rollback()
        except Exception:
            self._connection.drop()
            return False
        except BaseException:
            self._connection.drop()
            raise
        return True

    def drop_connection(self) -> None:
        """Roll back without waiting, by dropping the connection."""
        with contextlib.suppress(Exception):
            self._connection.drop()
