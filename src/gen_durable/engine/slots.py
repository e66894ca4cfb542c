"""The concurrency slots of each queue, the claims that run in them, and the buffer of claims behind them.

No more steps of a queue run at once than it has slots, also while slots are lent (tests/worker/test_saturated.py).
`changed` wakes the picker whenever it may be able to take more rows.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

from gen_durable.core.notifier import Notifier
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.tasks import TaskSet

MAX_PICK: Final = 1000
PREFETCH_SECONDS: Final = 0.04
MAX_PREFETCH: Final = 1000
NEVER: Final = float("inf")


class Runner(Protocol):
    """Runs a claim in its slot: the `ClaimRunner`, which this module must not import."""

    def run(self, active: ActiveClaim, /) -> Coroutine[Any, Any, None]: ...

    def handle_engine_error(self, active: ActiveClaim, error: BaseException, /) -> None: ...


class QueueSlots:
    """The slots of one queue of one worker, its buffer, and when to pick from it next.

    Without a fixed `prefetch`, a queue buffers as many rows as it will start within PREFETCH_SECONDS at its present
    pace: hundreds of short steps, or no long one. So buffered rows are not withheld from other workers.
    """

    __slots__ = (
        "_fixed_prefetch",
        "_pace",
        "_paced_at",
        "buffer",
        "concurrency",
        "due_at",
        "expected",
        "has_work",
        "lent",
        "name",
        "prefetch",
        "returning",
        "running",
        "started",
    )

    def __init__(self, name: str, concurrency: int, prefetch: int | None) -> None:
        self.name = name
        self.concurrency = concurrency
        self.running = 0
        self.started = 0  # since the last pick
        self.lent = 0  # slots of claims that wait for a commit and continue after it
        self.returning: deque[asyncio.Future[None]] = deque()  # claims that wait to get their slot back
        self.buffer: deque[ActiveClaim] = deque()
        self.has_work = True  # something said so: a wake-up, or a full pick
        self.expected = 0  # rows that became runnable since the last pick, and of which only this process knows
        self.due_at = NEVER  # monotonic time at which a row is known to become due
        self.prefetch = prefetch or 0
        self._fixed_prefetch = prefetch
        self._pace = 0.0
        self._paced_at = time.monotonic()

    @property
    def capacity(self) -> int:
        """How many more rows the queue can take, its buffer included."""
        return self.concurrency + self.prefetch - self.running - self.lent - len(self.buffer)

    @property
    def has_short_steps(self) -> bool:
        """Steps are so short that a slot lent for the time of a commit comes back at once."""
        return self._fixed_prefetch is None and self.prefetch >= self.concurrency

    def demand(self, least: int) -> int:
        """How many rows to pick now; 0 while a pick is not worth a statement."""
        capacity = self.capacity
        has_idle_slot = not self.buffer and self.running < self.concurrency
        worthwhile = least if has_idle_slot else max(least, self.prefetch // 2)
        return min(capacity, MAX_PICK) if capacity >= worthwhile else 0

    def reset_for_pick(self) -> int:
        """Forget the reasons for this pick, and adapt `prefetch` to the pace since the last one.

        Returns how many rows the pick is expected to find.
        """
        self.has_work = False
        self.due_at = NEVER
        now = time.monotonic()
        pace = self.started / max(now - self._paced_at, 1e-4)
        self._pace = (self._pace + pace) / 2
        self._paced_at, self.started = now, 0
        if self._fixed_prefetch is None:
            self.prefetch = min(int(self._pace * PREFETCH_SECONDS), MAX_PREFETCH)
        expected, self.expected = self.expected, 0
        return expected


class Slots:
    """The slots of all queues of one worker. Set `runner` before the first claim starts."""

    __slots__ = ("_loop", "_notifier", "_tasks", "changed", "queues", "runner", "stopping")

    runner: Runner

    def __init__(
        self, concurrency: Mapping[str, int], prefetch: int | None, *, tasks: TaskSet, notifier: Notifier
    ) -> None:
        self._loop = asyncio.get_running_loop()  # looked up once: a lookup per claim costs a system call
        self._tasks = tasks
        self._notifier = notifier
        self.queues = {name: QueueSlots(name, count, prefetch) for name, count in concurrency.items()}
        self.changed = asyncio.Event()
        self.stopping = False

    def start(self, active: ActiveClaim) -> None:
        """Start a claim if its queue has a free slot; else buffer it."""
        queue = self.queues[active.claim.queue]
        if queue.running < queue.concurrency:
            self._start(queue, active)
        else:
            queue.buffer.append(active)

    def start_without_slot(self, active: ActiveClaim) -> None:
        """Start a buffered claim out of turn: one that has a cancel request, and so runs no step."""
        self.drop(active)
        active.task = task = self._tasks.spawn(self.runner.run(active))
        task.add_done_callback(lambda done: self._report_error(active, done))

    def drop(self, active: ActiveClaim) -> None:
        """Take a claim out of the buffer, if it is there."""
        queue = self.queues.get(active.claim.queue)
        if queue is not None and active in queue.buffer:
            queue.buffer.remove(active)

    def lend_slot(self, active: ActiveClaim) -> None:
        """A claim waits for its commit. While steps are short, another claim runs in its slot meanwhile."""
        queue = self.queues[active.claim.queue]
        queue.started += 1  # for the pace, the next step of a claim counts like the first step of another
        if queue.has_short_steps:
            active.has_slot = False
            queue.running -= 1
            queue.lent += 1
            self._fill(queue)
            self.changed.set()

    async def regain_slot(self, active: ActiveClaim) -> None:
        """Wait for a slot for a claim that continues. It comes before buffered claims."""
        if active.has_slot:
            return
        queue = self.queues[active.claim.queue]
        if queue.running < queue.concurrency:
            queue.running += 1
        else:
            granted: asyncio.Future[None] = self._loop.create_future()
            queue.returning.append(granted)
            try:
                await granted
            except asyncio.CancelledError:
                if not granted.cancelled():
                    queue.running -= 1  # the slot was granted in this very iteration of the loop
                raise
        queue.lent -= 1
        active.has_slot = True

    def schedule_pick(self, queue: str, seconds: float) -> None:
        """A row of a queue becomes due in `seconds`: pick then, or wake the workers that serve the queue."""
        slots = self.queues.get(queue)
        if slots is None:
            self._notifier.wake(queue)
            return
        moment = time.monotonic() + seconds
        if moment < slots.due_at:
            slots.due_at = moment
            self.changed.set()

    def _start(self, queue: QueueSlots, active: ActiveClaim) -> None:
        queue.running += 1
        queue.started += 1
        active.in_thread = not active.entry.spec.is_async
        task = self._loop.create_task(self.runner.run(active))
        active.task = task
        self._tasks.running.add(task)
        task.add_done_callback(lambda done: self._end(queue, active, done))

    def _end(self, queue: QueueSlots, active: ActiveClaim, task: asyncio.Task[None]) -> None:
        self._tasks.running.discard(task)
        if active.has_slot:
            queue.running -= 1
        else:
            queue.lent -= 1
        self._report_error(active, task)
        self._fill(queue)
        self.changed.set()

    def _report_error(self, active: ActiveClaim, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.runner.handle_engine_error(active, error)

    def _fill(self, queue: QueueSlots) -> None:
        """Grant free slots to claims that continue, then to buffered claims."""
        while queue.running < queue.concurrency:
            if queue.returning:
                granted = queue.returning.popleft()
                if not granted.done():
                    queue.running += 1
                    granted.set_result(None)
            elif queue.buffer and not self.stopping:
                self._start(queue, queue.buffer.popleft())
            else:
                return
