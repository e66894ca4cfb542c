"""The caller transaction watcher:notifies workers of callers' transactions (`connection=`) after their commits.

Postgres serializes the commits of all transactions that notify, so callers' transactions do not. The watcher remembers
their ids and what must follow their commits, and asks Postgres, on a connection of the library, which of them have been
committed. It asks about all of them at once, soon after each call, and less often the longer none is added. What it
forgets (too many, too old, a process that ends) is found by the workers' polling and by the reaper.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gen_durable.core.notification_messages import messages_of_follow_ups
from gen_durable.core.notifier import Notifier
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import describe_for_log
from gen_durable.pg.pool import Pool
from gen_durable.store.caller_statements import ended_transactions_statement
from gen_durable.store.types import FollowUps
from gen_durable.telemetry import Events

log = get_escaping_logger("gen_durable.notifier")
FIRST_PAUSE: Final = 0.002
SHORTEST_INTERVAL: Final = 0.01  # between two checks, however many transactions are added
LONGEST_PAUSE: Final = 1.0
MAX_AGE: Final = 600.0
MAX_TRANSACTIONS: Final = 10_000
MAX_ORIGINS: Final = 100  # of one transaction; beyond that any cancelled instance is looked after
CLOSE_TIMEOUT: Final = 1.0


@dataclass(slots=True)
class PendingTransaction:
    """A caller's transaction that may not have ended yet."""

    added_at: float
    follow_ups: FollowUps


class CallerTransactionWatcher:
    """Acts on the follow-ups of callers' transactions once these have been committed.

    `act_after_commit`, `check_transactions_soon` and `act_on_follow_ups` may be called from any thread; everything else
    runs on the event loop that the watcher was made on.
    """

    __slots__ = (
        "_active_at",
        "_checked_at",
        "_checking",
        "_events",
        "_is_closed",
        "_loop",
        "_notifier",
        "_pending",
        "_pool",
        "_timer",
    )

    def __init__(self, pool: Pool, notifier: Notifier, events: Events) -> None:
        self._pool = pool
        self._notifier = notifier
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, PendingTransaction] = {}  # by transaction id, oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._checking: asyncio.Task[None] | None = None
        self._active_at = self._checked_at = 0.0
        self._is_closed = False

    def act_after_commit(self, transaction: int, follow_ups: FollowUps) -> None:
        """Act on `follow_ups` once the transaction with this id has been committed."""
        self._call_on_loop(lambda: self._add_transaction_on_loop(transaction, follow_ups))

    def check_transactions_soon(self, _committing: object = None) -> None:
        """Some transaction is being committed, or has been: look again without delay."""
        self._call_on_loop(self._check_transactions_soon_on_loop)

    def act_on_follow_ups(self, follow_ups: FollowUps) -> None:
        """Act on the follow-ups of a transaction that has been committed."""
        self._call_on_loop(lambda: None if self._is_closed else self._act_on_or_send_follow_ups(follow_ups))

    async def close(self) -> None:
        """Notify of the transactions that have been committed by now, within a second, and forget the others."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._checking is not None:
                    await asyncio.wait([self._checking])
                await self._act_on_committed_transactions()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
        self._pending.clear()

    def _call_on_loop(self, function: Callable[[], None]) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            function()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _add_transaction_on_loop(self, transaction: int, follow_ups: FollowUps) -> None:
        if self._is_closed:
            return
        now = self._loop.time()
        pending = self._pending.get(transaction)
        if pending is None:
            if len(self._pending) >= MAX_TRANSACTIONS:
                del self._pending[next(iter(self._pending))]
            self._pending[transaction] = PendingTransaction(now, follow_ups)
        else:
            pending.follow_ups = _merge_follow_ups(pending.follow_ups, follow_ups)
        self._check_transactions_soon_on_loop()

    def _check_transactions_soon_on_loop(self) -> None:
        self._active_at = self._loop.time()
        self._schedule_check()

    def _schedule_check(self) -> None:
        """Check after a quarter of the time since the last call: late by a quarter of a transaction's length."""
        if self._checking is not None or not self._pending or self._is_closed:
            return
        now = self._loop.time()
        pause = min(max((now - self._active_at) / 4, FIRST_PAUSE), LONGEST_PAUSE)
        due = max(now + pause, self._checked_at + SHORTEST_INTERVAL)
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._start_check)

    def _start_check(self) -> None:
        self._timer = None
        self._checking = self._loop.create_task(
            self._act_on_committed_transactions(), name="gen_durable commit watcher"
        )
        self._checking.add_done_callback(self._schedule_next_check)

    def _schedule_next_check(self, _task: asyncio.Task[None]) -> None:
        """In a callback, which runs also if other code has cancelled the task before it began."""
        self._checking = None
        self._schedule_check()

    async def _act_on_committed_transactions(self) -> None:
        if not self._pending:
            return
        try:
            ended = await self._pool.run(ended_transactions_statement(list(self._pending)))
        except Exception as error:
            ended = {}
            log.debug("callers' transactions were not checked (%s)", describe_for_log(error))
        self._checked_at = self._loop.time()
        committed = FollowUps()
        for transaction, is_committed in ended.items():
            pending = self._pending.pop(transaction, None)
            if pending is not None and is_committed:
                committed = _merge_follow_ups(committed, pending.follow_ups)
        self._forget_old_transactions()
        self._act_on_or_send_follow_ups(committed)

    def _forget_old_transactions(self) -> None:
        while self._pending:
            oldest = next(iter(self._pending))
            if self._pending[oldest].added_at > self._checked_at - MAX_AGE:
                return
            del self._pending[oldest]

    def _act_on_or_send_follow_ups(self, follow_ups: FollowUps) -> None:
        for rows in follow_ups.blocked:
            self._events.emit(rows.to_event())
        if not self._is_closed:
            self._notifier.act_on_follow_ups(follow_ups)
            return
        for message in messages_of_follow_ups(follow_ups):  # a cascade in this process would be cancelled at once
            self._notifier.send_message_soon(message)


def _merge_follow_ups(one: FollowUps, other: FollowUps) -> FollowUps:
    origins = one.cascade_origins | other.cascade_origins
    return FollowUps(
        one.queues | other.queues,
        origins if len(origins) <= MAX_ORIGINS else frozenset({None}),
        one.workers_with_cancel_requests | other.workers_with_cancel_requests,
        one.blocked + other.blocked,
    )
