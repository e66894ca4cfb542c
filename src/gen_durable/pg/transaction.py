"""A transaction that user code writes in, and that our own calls end.

In: a link that nobody else uses meanwhile. Out: the driver's connection, for the user; calls of ours, behind a
savepoint, so that one that is refused leaves the user's writes as they are; a commit, or a rollback.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gen_durable.pg.connection import PersistentConnection, RunStatement
from gen_durable.pg.faults import ConnectionLost, Fault, classify, lost

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.transaction import Transaction as DriverTransaction

    from gen_durable.store.statements import Statement

T = TypeVar("T")
U = TypeVar("U")
UNDO_TIMEOUT: Final = 2.0


class Transaction:
    """An open transaction. Whoever made it calls `commit` or `undo` in the end."""

    __slots__ = ("_inner", "_link", "connection")

    def __init__(
        self, link: PersistentConnection, connection: asyncpg.Connection[Any], inner: DriverTransaction
    ) -> None:
        self._link = link
        self._inner = inner
        self.connection = connection

    @classmethod
    async def begin(cls, link: PersistentConnection) -> Transaction:
        """Begin on a link. What an earlier user of it has SET is forgotten. Raises `ConnectionLost`."""
        connection = await link.raw()
        # The driver's own transaction: inside it `connection.transaction()` of the user makes a savepoint.
        inner = connection.transaction()
        try:
            with link.watched():
                await inner.start()
                # Inside: behind a pooler the transaction may be on another server connection than what came before.
                await connection.execute("reset all")
        except Exception as error:
            link.drop()
            raise ConnectionLost(error, sent=False) from error
        except BaseException:
            link.drop()
            raise
        return cls(link, connection, inner)

    @property
    def is_open(self) -> bool:
        """Whether it is still open: the user may have ended it by a statement."""
        return self.connection.is_in_transaction()

    async def within(self, work: Callable[[RunStatement], Awaitable[T]]) -> T:
        """Run calls of ours, all of them or none. Raises `ConnectionLost`, or the server's own error."""

        async def ask(call: Statement[U]) -> U:
            return call.read(await self.connection.fetch(call.text, *call.args))

        try:
            with self._link.watched():
                async with self.connection.transaction():
                    return await work(ask)
        except Exception as error:
            if classify(error) is Fault.GONE:
                raise lost(error) from error
            raise

    async def commit(self) -> None:
        """Commit. After a `ConnectionLost` it is unknown whether that was done; after a server's error it was not."""
        try:
            with self._link.watched():
                await self._inner.commit()
        except Exception as error:
            if classify(error) is Fault.GONE:
                self._link.drop()
                raise lost(error) from error
            raise
        except BaseException:
            self._link.drop()
            raise

    async def undo(self) -> bool:
        """Roll back; a connection that cannot any more is thrown away, and the server rolls back. Tells which."""
        try:
            async with asyncio.timeout(UNDO_TIMEOUT):
                await self._inner.rollback()
        except Exception:
            self._link.drop()
            return False
        except BaseException:
            self._link.drop()
            raise
        return True

    def drop(self) -> None:
        """Roll back without waiting for anything, by throwing the connection away."""
        with contextlib.suppress(Exception):
            self._link.drop()
