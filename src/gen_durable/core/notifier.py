"""Notifier: tell pickers that a queue has work.

In: names of queues in which rows became runnable. Out: local pickers are poked at once; other processes by NOTIFY, in a
transaction of its own (NOTIFY at commit takes a lock on the whole database), at most one at a time, coalesced by queue.
Some bells are no queues, and no queue is named so: "!42" says that children of instance 42 are to be cancelled, and
"!" that somebody's are, which this process sees to; "!WORKER" tells a worker to look which of its claims are. Only the
commit of a guest sends "!42" by NOTIFY: all who hear it see to it, and each takes what the others have not.
Notifications only make things faster: every row is also found by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from gen_durable.core.background import BackgroundTask
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.pg.faults import ConnectionLost, SqlError
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statements

log = logging.getLogger("gen_durable.wake")
CROWDED_PAUSE: Final = 0.5
BELL: Final = "!"


class Sleeper(Protocol):
    """A picker that can be poked."""

    def poke(self, queue: str) -> int:
        """There is work in `queue`. Returns how many more rows the picker could take."""
        ...


class Notifier:
    """The doorbell of one `Durable`."""

    def __init__(self, pool: Pool, calls: Statements, on_cascade: Callable[[int | None], None]) -> None:
        self._pool = pool
        self._calls = calls
        self._on_cascade = on_cascade
        self._workers: dict[str, Callable[[], None]] = {}
        self._sleepers: list[Sleeper] = []
        self._wanted: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._crowded: dict[str, float] = {}

    def join(self, sleeper: Sleeper) -> None:
        self._sleepers.append(sleeper)

    def leave(self, sleeper: Sleeper) -> None:
        self._sleepers.remove(sleeper)

    def join_worker(self, name: str, look: Callable[[], None]) -> None:
        """A worker of this process begins; `look` is called when it is to look which claims are to be cancelled."""
        self._workers[name] = look

    def leave_worker(self, name: str) -> None:
        self._workers.pop(name, None)

    def hear(self, bell: str | None) -> None:
        """A bell was rung elsewhere; None: some may have been missed, so all workers of this process are to look."""
        if bell is not None and (whose := bell.removeprefix(BELL)).isdecimal():
            self._on_cascade(int(whose))
            return
        for name, look in self._workers.items():
            if bell is None or bell == f"{BELL}{name}":
                look()

    def poke_local(self, queue: str) -> int:
        """Poke the pickers of this process; returns how many rows they could take."""
        return sum(sleeper.poke(queue) for sleeper in self._sleepers)

    def ring(self, queue: str, count: int = 1) -> None:
        """`count` rows became runnable in a queue: poke here, and tell others what is more than we can take."""
        if queue.startswith(BELL):
            self._ring_bell(queue)
            return
        if self.poke_local(queue) < count:
            self._tell(queue)

    def _ring_bell(self, bell: str) -> None:
        whose = bell.removeprefix(BELL)
        if whose == "" or whose.isdecimal():  # the name of a worker is not: it has a host and a process
            self._on_cascade(int(whose) if whose else None)
        elif whose in self._workers:
            self.hear(bell)
        else:
            self._tell(bell)

    def ring_all(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.ring(queue)

    def crowded(self, queue: str) -> None:
        """A pick came back full: there is more here than we can take. Others are told now and then."""
        now = time.monotonic()
        if now - self._crowded.get(queue, 0.0) >= CROWDED_PAUSE:
            self._crowded[queue] = now
            self._tell(queue)

    def _tell(self, queue: str) -> None:
        self._wanted.add(queue)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._notify(), name="gen_durable notify")

    async def _notify(self) -> None:
        try:
            while self._wanted:
                queues, self._wanted = self._wanted, set()
                try:
                    await self._pool.run(self._calls.notify(sorted(queues)))
                except (ConnectionLost, SqlError) as error:
                    log.debug("a notification was not sent (%s); polling finds the work", type(error).__name__)
        finally:
            self._task = None

    async def close(self) -> None:
        """Let the notification under way finish, but not for long."""
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=1)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


class Listener(BackgroundTask):
    """LISTEN on a direct connection; after every new connection all queues are poked, for what was missed."""

    def __init__(self, target: Target, channel: str, on_queue: Callable[[str | None], None]) -> None:
        super().__init__("listener")
        self._link = PersistentConnection(target)
        self._channel = channel
        self._on_queue = on_queue
        self.listening = asyncio.Event()

    async def stop(self) -> None:
        """Stop listening, also in the middle of connecting."""
        await super().stop()
        self._link.close_soon()

    async def turn(self) -> float:
        """Listen until the connection breaks."""
        connection = await self._link.connect()
        broken = asyncio.Event()

        def ended(_connection: object) -> None:
            broken.set()

        connection.add_termination_listener(ended)
        await connection.add_listener(self._channel, self._heard)
        self.listening.set()
        self._on_queue(None)
        try:
            while not broken.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(10):
                        await broken.wait()
                if not broken.is_set():
                    await connection.fetchval("select 1", timeout=5)
        finally:
            self.listening.clear()
            self._link.drop()
        raise ConnectionLost(ConnectionError("the listening connection was closed"), sent=False)

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        if isinstance(payload, str):
            self._on_queue(payload)
