"""Run statements on any free connection of a pool: our own, or one that the caller passes as `pool=`.

asyncpg's own pool resets a connection by a round trip at every release and may be shared with user code that keeps
connections; `OwnPool` does neither. It reuses the connection that was used last, so few stay open under light load. The
caller's pool is never closed, and no setting of its connections is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import asyncpg

from gen_durable.backoff import GrowingPauses
from gen_durable.errors import ConfigError
from gen_durable.pg.error_classifier import ConnectionLost, FaultKind, classify_error, to_connection_lost
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection, has_unread_input

if TYPE_CHECKING:
    from gen_durable.store.statements import Statement

T = TypeVar("T")
DriverPool: TypeAlias = "asyncpg.Pool[Any]"


class Pool(ABC):
    """Runs statements, each on a free connection."""

    __slots__ = ()

    @abstractmethod
    async def run(self, statement: Statement[T], *, timeout: float | None = None) -> T:
        """Run a statement on a free connection. Raises `ConnectionLost`, or the server's own error."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections that this pool has opened."""

    async def run_idempotent(self, statement: Statement[T], *, tries: int = 5) -> T:
        """Run an idempotent statement (a read, or a write that recognises its repetition) until it gets a result."""
        pauses = GrowingPauses(0.05, 1.0)
        while True:
            try:
                return await self.run(statement)
            except ConnectionLost:
                tries -= 1
                if tries <= 0:
                    raise
            await asyncio.sleep(pauses.next_seconds())


class OwnPool(Pool):
    """At most `size` connections to one target."""

    __slots__ = ("_available", "_connections", "_free")

    def __init__(self, target: ConnectionTarget, size: int) -> None:
        self._connections = [PersistentConnection(target) for _ in range(size)]
        self._free = list(self._connections)
        self._available = asyncio.Semaphore(size)

    async def run(self, statement: Statement[T], *, timeout: float | None = None) -> T:
        """If the server shuts down or is a standby now, the idle connections to it are dropped, too."""
        async with self._available:
            connection = self._free.pop()
            try:
                return await connection.run(statement, timeout=timeout)
            except ConnectionLost as error:
                if error.is_server_unusable:
                    for other in self._free:
                        other.drop()
                raise
            finally:
                self._free.append(connection)

    async def close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections), return_exceptions=True)


class CallerPool(Pool):
    """The caller's asyncpg pool."""

    __slots__ = ("_pool",)

    def __init__(self, pool: DriverPool) -> None:
        if not isinstance(pool, asyncpg.Pool):
            raise ConfigError(
                f"pool= takes an asyncpg pool, got {type(pool).__name__}. Pass the result of asyncpg.create_pool()."
            )
        self._pool = pool

    async def run(self, statement: Statement[T], *, timeout: float | None = None) -> T:
        """A connection found dead before anything was sent is released, and another one acquired."""
        connection = await self._acquire_live()
        try:
            rows = await connection.fetch(statement.text, *statement.args, timeout=timeout)
        except Exception as error:
            if classify_error(error) is FaultKind.GONE:
                raise to_connection_lost(error) from error
            raise
        finally:
            await self._release(connection)
        return statement.read(rows)

    async def close(self) -> None:
        """Does nothing: the caller closes its own pool."""

    async def _release(self, connection: Any) -> None:
        with contextlib.suppress(Exception):  # it died after its result arrived; the pool notices
            await self._pool.release(connection)

    async def _acquire_live(self) -> Any:
        for _ in range(self._pool.get_max_size() + 1):
            try:
                connection: Any = await self._pool.acquire()
            except asyncpg.InterfaceError as error:
                raise ConfigError(
                    f"pool= is not open ({error}). Open it before Durable starts, and close it after Durable closes."
                ) from error
            except Exception as error:
                raise ConnectionLost(error, sent=False) from error
            if has_unread_input(connection):
                await asyncio.sleep(0.01)  # let the driver read it: the end of the connection, or a notice
            with contextlib.suppress(asyncpg.InterfaceError):  # the pool has noticed its end and taken it back
                if not connection.is_closed():
                    return connection
            await self._release(connection)
        raise ConnectionLost(ConnectionError("every connection of the pool was dead"), sent=False)
