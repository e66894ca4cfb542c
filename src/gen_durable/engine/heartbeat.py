"""Heartbeat: heartbeats from a thread of their own.

In: the holdings. Out: leases extended, and word of claims that were lost or are to be cancelled. The thread has its own
event loop and its own connection, so a step that blocks the worker's loop cannot lose its lease. It also measures how
long it is blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from gen_durable.engine.claims import ActiveClaim, ClaimTable
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.pg.faults import ConnectionLost, SqlError
from gen_durable.store.statements import Statements

log = logging.getLogger("gen_durable.keep")
BATCH: Final = 1000
LAG_TOLD: Final = 0.1


class Heartbeat:
    """Extends the leases of a worker's claims until stopped."""

    def __init__(
        self,
        target: Target,
        calls: Statements,
        holdings: ClaimTable,
        *,
        lease: float,
        interval: float,
        on_lost: Callable[[list[ActiveClaim]], None],
        on_asked: Callable[[dict[int, str]], None],
        on_lag: Callable[[float], None],
    ) -> None:
        self._target = target
        self._calls = calls
        self._holdings = holdings
        self._lease = lease
        self._interval = interval
        self._on_lost = on_lost
        self._on_asked = on_asked
        self._on_lag = on_lag
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._link: PersistentConnection | None = None
        self._failures = 0

    def start(self) -> None:
        """Begin beating; the caller's running loop is the one that is told of losses and watched for lag."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="gen_durable keep", daemon=True)
        self._thread.start()

    def halt(self) -> None:
        """Let the thread end by itself, without waiting for it."""
        self._stop.set()

    async def stop(self) -> None:
        """Stop after the beat under way."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, self._interval + 5)

    async def turn(self) -> list[ActiveClaim]:
        """One beat: extend what is older than a third of the lease; returns the claims that were lost."""
        if self._link is None:
            self._link = PersistentConnection(self._target)
        old = self._holdings.older_than(self._lease / 3)
        lost: list[ActiveClaim] = []
        for i in range(0, len(old), BATCH):
            batch = old[i : i + BATCH]
            began = time.monotonic()
            call = self._calls.heartbeat([(h.claim.id, h.claim.epoch) for h in batch], self._lease)
            # A beat that hangs is worth less than the next one on a new connection.
            gone = await self._link.run(call, timeout=self._interval)
            for held in batch:
                if held.claim.id in gone:
                    lost.append(held)
                else:
                    held.extended = began
        return lost

    async def look(self) -> dict[int, str]:
        """Which of the claims are to be cancelled, and why: for a worker that no notification has reached."""
        claims = sorted((h.claim.id, h.claim.epoch) for h in self._holdings.all())
        if not claims or self._link is None:
            return {}
        return await self._link.run(self._calls.cancel_requests(claims), timeout=self._interval)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._beat(loop))

    async def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self._measure(loop)
            try:
                lost = await self.turn()
                asked = await self.look()
                self._failures = 0
            except (ConnectionLost, SqlError) as error:
                lost, asked = [], {}
                self._failures += 1
                if self._failures == 1:
                    log.warning(
                        "heartbeats fail (%s), trying again",
                        error if isinstance(error, ConnectionLost) else type(error).__name__,
                    )
            if lost:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is gone
                    loop.call_soon_threadsafe(self._on_lost, lost)
            if asked:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._on_asked, asked)
            # Twice an interval, so that a claim made just after a beat is not forgotten for nearly two of them.
            rest = self._interval / 2 if not self._failures else min(0.1 * 2**self._failures, self._interval / 2)
            await asyncio.to_thread(self._stop.wait, max(0.0, rest - (time.monotonic() - began)))
        if self._link is not None:
            with contextlib.suppress(Exception):
                await self._link.close()

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = time.monotonic()

        def answer() -> None:
            lag = time.monotonic() - asked
            if lag > LAG_TOLD:
                self._on_lag(lag)

        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(answer)
