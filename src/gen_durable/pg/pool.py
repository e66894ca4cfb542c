"""Links lent out one call at a time: a few of our own, or those of a pool that the caller has made.

In: a `Statement`. Out: its answer. asyncpg's own pool resets a connection by a round trip at every release and may
be shared
with user code that holds it; ours does neither. There the last link used is used next, so few stay open under light
load. A pool that is lent to us is never closed, and no setting of its connections is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import asyncpg

from gen_durable.errors import ConfigError
from gen_durable.pg.connection import PersistentConnection, Target, has_news
from gen_durable.pg.faults import ConnectionLost, Fault, classify, lost

if TYPE_CHECKING:
    from gen_durable.store.statements import Statement

T = TypeVar("T")
DriverPool: TypeAlias = "asyncpg.Pool[Any]"


class Pool(ABC):
    """Where calls are run."""

    __slots__ = ()

    @abstractmethod
    async def run(self, call: Statement[T], *, timeout: float | None = None) -> T:
        """Run a call on a free connection. Raises `ConnectionLost`, or the server's own error."""

    @abstractmethod
    async def close(self) -> None:
        """Close what is ours."""

    async def run_safely(self, call: Statement[T], *, tries: int = 5) -> T:
        """Run a call that may be run twice (a read, or a write that knows itself again)."""
        pause = 0.05
        while True:
            try:
                return await self.run(call)
            except ConnectionLost:
                tries -= 1
                if tries <= 0:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


class OwnPool(Pool):
    """At most `size` links to one target."""

    __slots__ = ("_free", "_links", "_turn")

    def __init__(self, target: Target, size: int) -> None:
        self._links = [PersistentConnection(target) for _ in range(size)]
        self._free = list(self._links)
        self._turn = asyncio.Semaphore(size)

    async def run(self, call: Statement[T], *, timeout: float | None = None) -> T:
        """When the server has gone or is a standby now, no other link to it is kept."""
        async with self._turn:
            link = self._free.pop()
            try:
                return await link.run(call, timeout=timeout)
            except ConnectionLost as error:
                if error.server_left:
                    for other in self._free:
                        other.drop()
                raise
            finally:
                self._free.append(link)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links), return_exceptions=True)


class LentPool(Pool):
    """The caller's pool of asyncpg."""

    __slots__ = ("_pool",)

    def __init__(self, pool: DriverPool) -> None:
        if not isinstance(pool, asyncpg.Pool):
            raise ConfigError(f"pool= takes a pool of asyncpg, got {type(pool).__name__}")
        self._pool = pool

    async def run(self, call: Statement[T], *, timeout: float | None = None) -> T:
        """A connection found dead before anything was sent is given back, and another one taken."""
        connection = await self._acquire()
        try:
            rows = await connection.fetch(call.text, *call.args, timeout=timeout)
        except Exception as error:
            if classify(error) is Fault.GONE:
                raise lost(error) from error
            raise
        finally:
            await self._give_back(connection)
        return call.read(rows)

    async def close(self) -> None:
        """It is not ours to close."""

    async def _give_back(self, connection: Any) -> None:
        with contextlib.suppress(Exception):  # it died meanwhile, and the pool knows; what was answered is answered
            await self._pool.release(connection)

    async def _acquire(self) -> Any:
        for _ in range(self._pool.get_max_size() + 1):
            try:
                connection: Any = await self._pool.acquire()
            except asyncpg.InterfaceError as error:
                raise ConfigError(f"pool= cannot be used ({error}): open it before, and close it after") from error
            except Exception as error:
                raise ConnectionLost(error, sent=False) from error
            if has_news(connection):
                await asyncio.sleep(0.01)  # the driver reads it: an end, or a mere notice
            with contextlib.suppress(asyncpg.InterfaceError):  # the pool has heard of its end, and has taken it back
                if not connection.is_closed():
                    return connection
            await self._give_back(connection)
        raise ConnectionLost(ConnectionError("every connection of the pool was dead"), sent=False)
