"""The notifier: wakes the workers of this process directly, and other processes by NOTIFY.

NOTIFY takes a lock on the whole database at commit, so messages go in a transaction of their own, one at a time,
coalesced. A message only makes things faster: polling, heartbeats and the reaper find the same work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, TypeVar, assert_never

from gen_durable.core.cancel_cascader import CancelCascader
from gen_durable.core.hand_off import AddPick, HandOffTarget
from gen_durable.core.listener import Listener
from gen_durable.core.notification_messages import (
    CancelChildren,
    CheckCancelRequests,
    Message,
    QueueReady,
    encode_message,
    messages_of_follow_ups,
)
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.persistent_connection import ConnectionTarget
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import FollowUps

T = TypeVar("T")
log = get_escaping_logger("gen_durable.notifier")
FULL_PICK_INTERVAL: Final = 0.5
MISSED_INTERVAL: Final = 0.1
CLOSE_TIMEOUT: Final = 1.0


class LocalWorker(HandOffTarget, Protocol):
    """A worker of this process, as the notifier sees it."""

    @property
    def name(self) -> str:
        """The name under which the worker locks rows."""
        ...

    def wake_and_get_capacity(self, queue: str) -> int:
        """Pick from `queue` now. Returns how many more rows the worker could take."""
        ...

    def wake_by_message(self, queue: str) -> None:
        """Pick from `queue` soon, as often as messages may cause it; ignore a queue that the worker does not serve."""
        ...

    def wake_all(self) -> None:
        """Pick from every queue now."""
        ...

    def notify_if_pick_misses(self, queue: str, count: int) -> None:
        """`count` rows became runnable, and no other process was notified: report rows that a pick does not find."""
        ...

    def check_cancel_requests_soon(self) -> None:
        """Read the cancel requests of the rows that the worker runs."""
        ...


class Notifier:
    """Sends and receives the messages of one `Durable`.

    `listen_target` is where to LISTEN once a worker is added; None if notifications cannot arrive there.
    """

    def __init__(
        self,
        pool: Pool,
        statements: StatementBuilder,
        statement_runner: StatementRunner,
        listen_target: ConnectionTarget | None,
    ) -> None:
        self._pool = pool
        self._statements = statements
        self._listen_target = listen_target
        self._listener: Listener | None = None
        self._workers: dict[str, LocalWorker] = {}
        self._unsent: set[Message] = set()
        self._task: asyncio.Task[None] | None = None
        self._full_pick_sent_at: dict[str, float] = {}
        self._missed: dict[str, asyncio.TimerHandle] = {}
        self._missed_sent_at: dict[str, float] = {}
        self.cascader = CancelCascader(statement_runner, statements, self)

    @property
    def listener(self) -> Listener | None:
        """The listener; None as long as no worker was added, or without a target to listen at."""
        return self._listener

    def add_worker(self, worker: LocalWorker) -> None:
        """Wake a worker of this process from now on, also for messages of other processes."""
        self._workers[worker.name] = worker
        if self._listener is None and self._listen_target is not None:
            self._listener = Listener(self._listen_target, self._statements.schema.channel, self)
            self._listener.start()

    def remove_worker(self, worker: LocalWorker) -> None:
        """Stop waking a worker."""
        self._workers.pop(worker.name, None)

    @property
    def has_workers(self) -> bool:
        """Whether a worker of this process is running."""
        return bool(self._workers)

    def start_hand_off(
        self, rows_by_queue: Mapping[str, int], add_pick: AddPick[T]
    ) -> asyncio.Task[tuple[T, frozenset[int]]] | None:
        """Start a hand-off to the first worker that can take all of the rows; None if there is none."""
        for worker in self._workers.values():
            if (task := worker.start_hand_off(rows_by_queue, add_pick)) is not None:
                return task
        return None

    def wake(self, queue: str, count: int = 1) -> None:
        """`count` rows became runnable: wake the workers here, and notify others if these cannot take all of them."""
        if self._wake_local_and_count_capacity(queue) < count:
            self.send_message_soon(QueueReady(queue))
            return
        for worker in self._workers.values():
            worker.notify_if_pick_misses(queue, count)

    def wake_queues(self, queues: Iterable[str]) -> None:
        """Some rows became runnable in each of these queues."""
        for queue in queues:
            self.wake(queue)

    def start_cancel_cascade(self, origin: int | None) -> None:
        """Cancel the listed descendants of `origin`, or (None) of any, in the background."""
        self.cascader.start_cascade(origin)

    def act_on_follow_ups(self, follow_ups: FollowUps) -> None:
        """Act on the follow-ups of a transaction: here where this process can, else by messages to others."""
        for message in messages_of_follow_ups(follow_ups):
            match message:
                case QueueReady(queue):
                    self.wake(queue)
                case CancelChildren(origin):
                    self.start_cancel_cascade(origin)
                case CheckCancelRequests(worker):
                    if worker in self._workers:
                        self._workers[worker].check_cancel_requests_soon()
                    else:
                        self.send_message_soon(message)
                case _:
                    assert_never(message)

    def act_on_message(self, message: Message) -> None:
        """Act on a message of another process, or of any login: it means no more than to look at the database.

        How often a message makes this process look is bounded for each kind (docs/howto/operate.md). Several processes
        may cancel the same children: each skips locked rows.
        """
        match message:
            case QueueReady(queue):
                for worker in self._workers.values():
                    worker.wake_by_message(queue)
            case CancelChildren(origin):
                self.cascader.request_cascade_at_bounded_rate(origin)
            case CheckCancelRequests(name):
                if name in self._workers:
                    self._workers[name].check_cancel_requests_soon()
            case _:
                assert_never(message)

    def wake_local_workers(self) -> None:
        """Pick from every queue of this process's workers: which queues have new rows is unknown."""
        for worker in self._workers.values():
            worker.wake_all()

    def recover_from_missed_messages(self) -> None:
        """Wake everything: messages may have been missed."""
        for worker in self._workers.values():
            worker.check_cancel_requests_soon()
            worker.wake_all()

    def notify_full_pick(self, queue: str) -> None:
        """A pick came back full: notify other processes, at most every `FULL_PICK_INTERVAL` seconds per queue."""
        now = time.monotonic()
        if now - self._full_pick_sent_at.get(queue, 0.0) >= FULL_PICK_INTERVAL:
            self._full_pick_sent_at[queue] = now
            self.send_message_soon(QueueReady(queue))

    def notify_rows_not_found(self, queue: str) -> None:
        """A pick did not find the rows it was woken for: notify other processes, which may know their steps.

        Sent at once, and then at most every `MISSED_INTERVAL` seconds per queue, the last one late rather than never:
        often another worker has taken the rows (tests/worker/test_shared_queue.py).
        """
        if queue in self._missed:
            return
        wait = self._missed_sent_at.get(queue, 0.0) + MISSED_INTERVAL - time.monotonic()
        if wait <= 0:
            self._send_queue_ready_for_rows_not_found(queue)
        else:
            self._missed[queue] = asyncio.get_running_loop().call_later(
                wait, self._send_queue_ready_for_rows_not_found, queue
            )

    def _send_queue_ready_for_rows_not_found(self, queue: str) -> None:
        self._missed.pop(queue, None)
        self._missed_sent_at[queue] = time.monotonic()
        self.send_message_soon(QueueReady(queue))

    async def close(self) -> None:
        """Stop listening and cascading; let the notification under way finish within `CLOSE_TIMEOUT` seconds."""
        for name in self._workers:
            log.error("worker %s still runs while its Durable is closed: stop the worker first", name)
        await self.cascader.close()
        for timer in self._missed.values():
            timer.cancel()
        self._missed.clear()
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=CLOSE_TIMEOUT)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    def _wake_local_and_count_capacity(self, queue: str) -> int:
        return sum(worker.wake_and_get_capacity(queue) for worker in self._workers.values())

    def send_message_soon(self, message: Message) -> None:
        """Send a message to other processes, together with others that wait."""
        self._unsent.add(message)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_messages(), name="gen_durable notify")

    async def _send_messages(self) -> None:
        while self._unsent:
            messages, self._unsent = self._unsent, set()
            try:
                await self._pool.run(self._statements.notify(sorted(map(encode_message, messages))))
            except Exception as error:
                log.debug("a notification was not sent (%s); polling finds the work", type(error).__name__)
