"""The concurrency slots of each queue, the claims that run in them, and the buffer of claims behind them.

No more steps of a queue run at once than it has slots, also while slots are lent (tests/worker/test_saturated.py).
`changed` wakes the picker whenever it may be able to take more rows. The buffer is ordered by priority, and a claim
that waits RELEASE_SECONDS longer in it than expected is released, so that a free slot elsewhere can run it
(tests/worker/test_claim_ahead.py).
"""

from __future__ import annotations

import asyncio
import functools
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

from gen_durable.core.notifier import Notifier
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.prefetch_pace import QueuePace
from gen_durable.engine.task_set import TaskSet

MAX_PICK: Final = 1000
RELEASE_SECONDS: Final = 0.1
NEVER: Final = float("inf")


class ClaimRunnerProtocol(Protocol):
    """Runs a claim in its slot: the `ClaimRunner`, which this module must not import."""

    def run_claim(self, active: ActiveClaim, /) -> Coroutine[Any, Any, None]: ...

    def log_engine_error_and_postpone(self, active: ActiveClaim, error: BaseException, /) -> None: ...

    def release_unstarted(self, claims: list[ActiveClaim], /) -> None: ...

    def recover_from_cancellation_by_other_code(self, active: ActiveClaim, /) -> None: ...


class QueueSlots:
    """The slots of one queue of one worker, its buffer, and when to pick from it next.

    Without a fixed `prefetch`, a queue buffers as many rows as will start within a few hundredths of a second at its
    present pace (`QueuePace`): hundreds of short steps, or no long one.
    """

    __slots__ = (
        "_fixed_prefetch",
        "buffer",
        "concurrency",
        "due_at",
        "expected",
        "has_work",
        "lent",
        "needs_slot",
        "pace",
        "prefetch",
        "release_timer",
        "reserved",
        "returning",
        "running",
    )

    def __init__(self, concurrency: int, prefetch: int | None) -> None:
        self.concurrency = concurrency
        self.running = 0
        self.lent = 0  # slots of claims that wait for a commit and continue after it
        self.returning: deque[asyncio.Future[None]] = deque()  # claims that wait to get their slot back
        self.reserved = 0  # free slots for the rows of a hand-off under way; meanwhile nothing else is picked
        self.buffer: deque[ActiveClaim] = deque()
        self.has_work = True  # something said so: a wake-up, or a full pick
        self.needs_slot = False  # due rows wait that may be claimed only for a free slot
        self.expected = 0  # rows that became runnable since the last pick, and of which only this process knows
        self.due_at = NEVER  # monotonic time at which a row is known to become due
        self.prefetch = prefetch or 0
        self._fixed_prefetch = prefetch
        self.pace = QueuePace(concurrency, time.monotonic())
        self.release_timer: asyncio.TimerHandle | None = None  # for the claim in the buffer that is overdue first

    @property
    def remaining_capacity(self) -> int:
        """How many more rows the queue can take, its buffer included."""
        return self.concurrency + self.prefetch - self.running - self.lent - self.reserved - len(self.buffer)

    @property
    def free_count(self) -> int:
        """How many claims would start at once. A lent slot is not free: its claim continues in it."""
        return max(self.concurrency - self.running - self.lent - self.reserved - len(self.buffer), 0)

    @property
    def has_adaptive_prefetch(self) -> bool:
        """The number of rows claimed ahead follows the pace; a fixed number is the user's, and its rows are kept."""
        return self._fixed_prefetch is None

    @property
    def may_lend_slots(self) -> bool:
        """Steps are so short that a slot lent for the time of a commit comes back at once."""
        return self._fixed_prefetch is None and self.prefetch >= self.concurrency

    def count_rows_to_pick(self, least: int) -> int:
        """How many rows to pick now; 0 while a pick is not worth a statement."""
        if self.reserved:
            return 0
        capacity = self.remaining_capacity
        has_idle_slot = not self.buffer and self.running < self.concurrency
        worthwhile = least if has_idle_slot else max(least, self.prefetch // 2)
        return min(capacity, MAX_PICK) if capacity >= worthwhile else 0

    def clear_pick_reasons_and_get_expected(self) -> int:
        """Forget the reasons for this pick. Returns how many rows it is expected to find."""
        self.has_work = False
        self.due_at = NEVER
        expected, self.expected = self.expected, 0
        return expected

    def adapt_prefetch(self, now: float) -> None:
        """Claim as many rows ahead as the present pace allows."""
        if self.has_adaptive_prefetch:
            self.prefetch = self.pace.count_rows_to_claim_ahead(now, is_busy=self.running >= self.concurrency)

    def buffer_claim(self, active: ActiveClaim, now: float) -> None:
        """Put a claim behind the buffered ones that are as urgent."""
        buffer, priority = self.buffer, active.claim.priority
        before = len(buffer) + self.lent + 1
        active.start_by = now + before * self.pace.seconds_per_start + RELEASE_SECONDS
        if not buffer or buffer[-1].claim.priority <= priority:
            buffer.append(active)
        else:
            place = bisect_right(buffer, priority, key=lambda other: other.claim.priority)
            buffer.insert(place, active)


class Slots:
    """The slots of all queues of one worker. Set `runner` before the first claim starts."""

    __slots__ = ("_loop", "_notifier", "_tasks", "changed", "queues", "runner", "stopping")

    runner: ClaimRunnerProtocol

    def __init__(
        self, concurrency: Mapping[str, int], prefetch: int | None, *, tasks: TaskSet, notifier: Notifier
    ) -> None:
        self._loop = asyncio.get_running_loop()  # looked up once: a lookup per claim costs a system call
        self._tasks = tasks
        self._notifier = notifier
        self.queues = {name: QueueSlots(count, prefetch) for name, count in concurrency.items()}
        self.changed = asyncio.Event()
        self.stopping = False

    def start_or_buffer(self, active: ActiveClaim, now: float) -> None:
        """Start a claim if its queue has a free slot; else buffer it."""
        queue = self.queues[active.claim.queue]
        if queue.running < queue.concurrency:
            self._start_task(queue, active, now)
        else:
            queue.buffer_claim(active, now)
            if queue.release_timer is None and queue.has_adaptive_prefetch:
                queue.release_timer = self._loop.call_later(active.start_by - now, self._release_overdue_claims, queue)

    def _release_overdue_claims(self, queue: QueueSlots) -> None:
        """Release buffered claims that should have started: the steps before them are longer than expected."""
        queue.release_timer = None
        if self.stopping:
            return  # the drain releases all of them
        now = time.monotonic()
        overdue = [active for active in queue.buffer if active.start_by <= now]
        if overdue:
            queue.pace.stop_claiming_ahead()
            queue.adapt_prefetch(now)
            for active in overdue:
                queue.buffer.remove(active)
            self.runner.release_unstarted(overdue)
        if queue.buffer:
            next_at = min(active.start_by for active in queue.buffer)
            queue.release_timer = self._loop.call_later(next_at - now, self._release_overdue_claims, queue)

    def start_cancel_of_buffered_claim(self, active: ActiveClaim) -> None:
        """Start a buffered claim out of turn: one that has a cancel request, and so runs no step."""
        self.remove_from_buffer(active)
        self.spawn_without_slot(active, self.runner.run_claim(active))

    def spawn_without_slot(self, active: ActiveClaim, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as the task of a claim, without a slot."""
        active.task = task = self._tasks.spawn(coroutine)
        task.add_done_callback(lambda done: self._return_row_of_failed_task(active, done))

    def remove_from_buffer(self, active: ActiveClaim) -> None:
        """Take a claim out of the buffer, if it is there."""
        queue = self.queues.get(active.claim.queue)
        if queue is not None and active in queue.buffer:
            queue.buffer.remove(active)

    def record_step_end_and_lend_slot(self, active: ActiveClaim) -> None:
        """A step has ended, its claim waits for the commit. While steps are short, another claim runs in its slot."""
        queue = self.queues[active.claim.queue]
        now = time.monotonic()
        queue.pace.record_step_end(now - active.started_at, now)
        queue.pace.record_claim_continues()
        active.started_at = now
        if queue.may_lend_slots:
            active.has_slot = False
            queue.running -= 1
            queue.lent += 1
            self._fill_free_slots(queue, now)
            self.changed.set()

    async def wait_for_slot_to_continue(self, active: ActiveClaim) -> None:
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
        active.started_at = time.monotonic()

    def schedule_pick_or_wake_others(self, queue: str, seconds: float) -> None:
        """A row of a queue becomes due in `seconds`: pick then, or wake others now if this worker does not serve it."""
        slots = self.queues.get(queue)
        if slots is None:
            self._notifier.wake(queue)
            return
        moment = time.monotonic() + seconds
        if moment < slots.due_at:
            slots.due_at = moment
            self.changed.set()

    def request_pick_of_every_queue(self) -> None:
        """Pick from every queue that has capacity."""
        for queue in self.queues.values():
            queue.has_work = True
        self.changed.set()

    def _start_task(self, queue: QueueSlots, active: ActiveClaim, now: float) -> None:
        queue.running += 1
        active.started_at = now
        task = self._loop.create_task(self.runner.run_claim(active))
        active.task = task
        self._tasks.running.add(task)
        task.add_done_callback(functools.partial(self._free_slot_after_task, queue, active))

    def _free_slot_after_task(self, queue: QueueSlots, active: ActiveClaim, task: asyncio.Task[None]) -> None:
        self._tasks.running.discard(task)
        now = time.monotonic()
        if active.has_slot:
            queue.running -= 1
            queue.pace.record_step_end(now - active.started_at, now)
        else:
            queue.lent -= 1
        if task.cancelled() or task.exception() is not None:
            self._return_row_of_failed_task(active, task)
        self._fill_free_slots(queue, now)
        self.changed.set()

    def _return_row_of_failed_task(self, active: ActiveClaim, task: asyncio.Task[None]) -> None:
        """A task that ends without an outcome must not leave its row to the heartbeat."""
        if task.cancelled():
            if not active.claim.is_interrupted and not active.has_outcome:
                self.runner.recover_from_cancellation_by_other_code(active)
        elif (error := task.exception()) is not None:
            self.runner.log_engine_error_and_postpone(active, error)

    def _fill_free_slots(self, queue: QueueSlots, now: float) -> None:
        """Grant free slots to claims that continue, then to buffered claims."""
        while queue.running < queue.concurrency:
            if queue.returning:
                granted = queue.returning.popleft()
                if not granted.done():
                    queue.running += 1
                    granted.set_result(None)
            elif queue.buffer and not self.stopping:
                self._start_task(queue, queue.buffer.popleft(), now)
            else:
                queue.pace.record_empty_buffer()
                if queue.needs_slot:
                    queue.needs_slot, queue.has_work = False, True
                return
