"""A few connections for outcomes that must not delay the batches: opened when needed, closed when idle.

An outcome whose row is locked waits at the server for up to a second, and a large fan-out writes for seconds. Each try
has a connection of its own, so one that waits does not hold up the others. Guarded by
tests/engine/test_slow_commit_connections.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection

IDLE_SECONDS: Final = 10.0


class SlowCommitConnections:
    """At most `size` connections, each used by one task at a time."""

    __slots__ = ("_closing", "_free", "_in_use", "_semaphore", "_target", "_timer")

    def __init__(self, target: ConnectionTarget, size: int) -> None:
        self._target = target
        self._semaphore = asyncio.Semaphore(size)
        self._free: list[PersistentConnection] = []
        self._in_use: set[PersistentConnection] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def are_all_in_use(self) -> bool:
        """Every connection is in use."""
        return self._semaphore.locked()

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self._free) + len(self._in_use)

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[PersistentConnection]:
        """A connection of one's own, as soon as one is free."""
        async with self._semaphore:
            connection = self._free.pop() if self._free else PersistentConnection(self._target)
            self._in_use.add(connection)
            try:
                yield connection
            finally:
                self._in_use.discard(connection)
                self._free.append(connection)
                self._schedule_idle_close()

    def _schedule_idle_close(self) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle_connections)

    def _close_idle_connections(self) -> None:
        idle, self._free = self._free, []
        for connection in idle:
            task = asyncio.get_running_loop().create_task(connection.close(), name="gen_durable close")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection."""
        self._cancel_timer()
        connections = [*self._free, *self._in_use]
        await asyncio.gather(*(c.close() for c in connections), *self._closing, return_exceptions=True)

    def terminate(self) -> None:
        """Close every connection without waiting for the server."""
        self._cancel_timer()
        for connection in (*self._free, *self._in_use):
            connection.terminate()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
