"""QueueSlots: the slots of a queue, who runs in them, and who waits for one.

In: claims as they come in, and what becomes of each: it waits for a commit, it goes on, it has ended. Out: one task for
each claim that is begun, and a word whenever there may be room for more.

This room owns the invariant that no more steps of a queue run at once than it has slots, also while slots are lent
(tests/worker/test_saturated.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from gen_durable.engine.claims import ActiveClaim
from gen_durable.pg.faults import loggable

log = logging.getLogger("gen_durable.worker")
MAX_PICK: Final = 1000
AHEAD: Final = 0.04
MAX_AHEAD: Final = 1000


class QueueSlots:
    """One queue of one worker: its slots, what runs in them, and what is buffered behind them.

    Unless told how many rows to prefetch, a lane takes as many as it will begin within AHEAD seconds at its present
    pace: hundreds of short steps, or not one long one. So buffered rows are never held back from other workers.
    """

    __slots__ = (
        "_asked",
        "_pace",
        "_prefetch",
        "ahead",
        "buffer",
        "concurrency",
        "lent",
        "name",
        "poked",
        "running",
        "started",
        "waiting",
    )

    def __init__(self, name: str, concurrency: int, prefetch: int | None) -> None:
        self.name = name
        self.concurrency = concurrency
        self.running = 0
        self.started = 0
        self.lent = 0  # slots of claims that wait for a commit and will go on after it
        self.waiting: deque[asyncio.Future[None]] = deque()  # claims that want theirs back
        self.buffer: deque[ActiveClaim] = deque()
        self.poked = True
        self.ahead = prefetch or 0
        self._prefetch = prefetch
        self._pace = 0.0
        self._asked = time.monotonic()

    @property
    def room(self) -> int:
        """How many more rows the lane can hold."""
        return self.concurrency + self.ahead - self.running - self.lent - len(self.buffer)

    @property
    def brisk(self) -> bool:
        """Whether steps are so short that a slot lent for the time of a commit comes back at once."""
        return self._prefetch is None and self.ahead >= self.concurrency

    def demand(self, least: int) -> int:
        """How many rows to ask for now; 0: it is not worth a statement yet."""
        room = self.room
        hungry = not self.buffer and self.running < self.concurrency
        return min(room, MAX_PICK) if room >= (least if hungry else max(least, self.ahead // 2)) else 0

    def paced(self) -> None:
        """Take the pace since the last pick, and with it how far to look ahead."""
        now = time.monotonic()
        pace = self.started / max(now - self._asked, 1e-4)
        self._pace = (self._pace + pace) / 2
        self._asked, self.started = now, 0
        if self._prefetch is None:
            self.ahead = min(int(self._pace * AHEAD), MAX_AHEAD)


class Slots:
    """All lanes of one worker. `tasks` is the worker's: it waits for them when it drains."""

    __slots__ = ("_claim", "_give_back", "_lanes", "_loop", "_on_free", "_tasks", "stopping")

    def __init__(
        self,
        lanes: Mapping[str, QueueSlots],
        tasks: set[asyncio.Task[None]],
        *,
        claim: Callable[[ActiveClaim], Coroutine[Any, Any, None]],
        give_back: Callable[[ActiveClaim, str], None],
        on_free: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()  # asking for it costs a system call: not for every claim
        self._lanes = lanes
        self._tasks = tasks
        self._claim = claim
        self._give_back = give_back
        self._on_free = on_free
        self.stopping = False

    def take(self, held: ActiveClaim) -> None:
        """A claim came in: start it if there is a slot, else buffer it."""
        lane = self._lanes[held.claim.queue]
        if lane.running < lane.concurrency:
            self._start(lane, held)
        else:
            lane.buffer.append(held)

    def drop(self, held: ActiveClaim) -> None:
        """A claim that has not begun is ours no more."""
        lane = self._lanes[held.claim.queue]
        if held in lane.buffer:
            lane.buffer.remove(held)

    def lend(self, held: ActiveClaim) -> None:
        """A claim waits for its commit. While steps are short another may have its slot meanwhile."""
        lane = self._lanes[held.claim.queue]
        lane.started += 1  # the next step of a claim is as much work as the first of another
        if lane.brisk:
            held.slot = False
            lane.running -= 1
            lane.lent += 1
            self._fill(lane)
            self._on_free()

    async def take_back(self, held: ActiveClaim) -> None:
        """A claim goes on: it needs a slot again, and comes before those that have not begun."""
        if held.slot:
            return
        lane = self._lanes[held.claim.queue]
        if lane.running < lane.concurrency:
            lane.running += 1
        else:
            turn: asyncio.Future[None] = self._loop.create_future()
            lane.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    lane.running -= 1  # it had been given just now
                raise
        lane.lent -= 1
        held.slot = True

    def _start(self, lane: QueueSlots, held: ActiveClaim) -> None:
        lane.running += 1
        lane.started += 1
        held.in_thread = not held.entry.spec.is_async
        task = self._loop.create_task(self._claim(held))
        held.task = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(lane, held, done))

    def _ended(self, lane: QueueSlots, held: ActiveClaim, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if held.slot:
            lane.running -= 1
        else:
            lane.lent -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            # Where it happened, and its kind: its words may quote a payload, in the log as in last_error.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("instance %d: %s\n%s", held.claim.id, loggable(error), frames)
            self._give_back(held, f"an error of the engine: {loggable(error)}")
        self._fill(lane)
        self._on_free()

    def _fill(self, lane: QueueSlots) -> None:
        """Give free slots to claims that wait for theirs to come back, then to buffered ones."""
        while lane.running < lane.concurrency:
            if lane.waiting:
                turn = lane.waiting.popleft()
                if not turn.done():
                    lane.running += 1
                    turn.set_result(None)
            elif lane.buffer and not self.stopping:
                self._start(lane, lane.buffer.popleft())
            else:
                return
