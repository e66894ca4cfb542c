"""A few links, lent out one call at a time.

In: a `Call`. Out: its answer. asyncpg's own pool resets a connection by a round trip at every release and may be shared
with user code that holds it; this one does neither. The last link used is used next, so few stay open under light load.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from gen_durable.pg.faults import ConnectionLost
from gen_durable.pg.link import Link, Target

if TYPE_CHECKING:
    from gen_durable.store.calls import Call

T = TypeVar("T")


class Pool:
    """At most `size` links to one target."""

    __slots__ = ("_free", "_links", "_turn", "target")

    def __init__(self, target: Target, size: int) -> None:
        self.target = target
        self._links = [Link(target) for _ in range(size)]
        self._free = list(self._links)
        self._turn = asyncio.Semaphore(size)

    async def run(self, call: Call[T], *, timeout: float | None = None) -> T:
        """Run a call on a free link. When the server has gone or is a standby now, no other link to it is kept."""
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

    async def run_safely(self, call: Call[T], *, tries: int = 5) -> T:
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

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links), return_exceptions=True)
