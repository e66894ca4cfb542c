"""Group commit of outcomes, without a timer.

Outcomes gather while one flush is under way and go together in the next: an idle worker commits at once, a busy one in
large batches. Each outcome is answered exactly once, whatever happens to the connection: a batch whose answer was lost
is sent again in halves, and the fence shows what was committed before. One bad outcome does not harm its batch: a
refused batch, also one that meets an unexpected error, is halved until the refused outcome is alone. An outcome whose
row is locked by a long transaction, or that loses each connection, waits on a side connection, apart from the batch
(tests/engine/test_committer.py), and so do a large outcome and a large fan-out, on others.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import time
from typing import Final, Protocol, assert_never

from gen_durable.backoff import GrowingPauses
from gen_durable.core.notifier import Notifier
from gen_durable.engine.commit_queue import LARGE_OUTCOME, CommitQueue, payload_size, should_flush_apart
from gen_durable.engine.outcome_and_children_flusher import flush_outcome_and_children
from gen_durable.engine.outcome_rejection import describe_fault, to_rejection
from gen_durable.engine.slow_commit_connections import SlowCommitConnections
from gen_durable.errors import OutcomeRejected
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import ConnectionLost, FaultKind, SqlError, classify_error, describe_for_log
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, FlushResult

log = get_escaping_logger("gen_durable.committer")
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0
QUIET_FAILURES: Final = 3  # so many failures of one batch are not logged


class CommitResult(enum.Enum):
    """The answer to an outcome."""

    COMMITTED = "committed"
    STALE = "the claim was superseded, nothing was written"
    CANCEL_REQUESTED = "the row has a cancel request, nothing was written"


# Module constants: in Python 3.11 each access to an enum member costs a call.
COMMITTED: Final = CommitResult.COMMITTED
STALE: Final = CommitResult.STALE
CANCEL_REQUESTED: Final = CommitResult.CANCEL_REQUESTED


class CommitReceiver(Protocol):
    """Receives the answer to one outcome; a second answer is ignored."""

    @property
    def is_answered(self) -> bool: ...

    def receive_commit_result(self, result: CommitResult | OutcomeRejected) -> None: ...


_QueuedOutcome = tuple[Commit, CommitReceiver]


class FutureCommitReceiver:
    """A receiver that completes a future."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[CommitResult]) -> None:
        self.future = future

    @property
    def is_answered(self) -> bool:
        return self.future.done()

    def receive_commit_result(self, result: CommitResult | OutcomeRejected) -> None:
        if self.future.done():
            return
        if isinstance(result, OutcomeRejected):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class Committer:
    """Commits the outcomes of one worker in groups."""

    __slots__ = (
        "_batch",
        "_batch_size",
        "_connection",
        "_fan_outs",
        "_is_closing",
        "_locked",
        "_loop",
        "_notifier",
        "_queued",
        "_side_flushes",
        "_statements",
        "_task",
        "_worker",
    )

    def __init__(
        self,
        connection: PersistentConnection,
        locked: SlowCommitConnections,
        fan_outs: SlowCommitConnections,
        statements: StatementBuilder,
        batch_size: int,
        *,
        notifier: Notifier,
        worker: str | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()  # looked up once: a lookup per step costs a system call
        self._connection = connection
        self._locked = locked
        self._fan_outs = fan_outs
        self._statements = statements
        self._batch_size = batch_size
        self._notifier = notifier
        self._worker = worker
        self._queued: CommitQueue[CommitReceiver] = CommitQueue()
        self._batch: list[_QueuedOutcome] = []  # in the flush under way
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._side_flushes: set[asyncio.Task[None]] = set()

    @property
    def unanswered_in_batches(self) -> int:
        """How many outcomes are not answered yet, apart from those that wait for a lock or for many children."""
        return len(self._queued) + len(self._batch)

    def enqueue_or_flush_apart(self, commit: Commit, receiver: CommitReceiver) -> bool:
        """Commit an outcome with the next flush, and pass the answer to `receiver`, later.

        Returns whether it is flushed apart from the others, at once (`should_flush_apart`).
        """
        size = payload_size(commit)
        if size > LARGE_OUTCOME or commit.many_children is not None:
            self._start_side_flush((commit, receiver))  # a long transaction: keep it out of the batches
            return True
        self._queued.add_outcome((commit, receiver), size)
        if self._task is None:
            self._start_flush()
        return False

    def commit(self, commit: Commit) -> asyncio.Future[CommitResult]:
        """Commit an outcome; the future has its answer, or raises `OutcomeRejected`."""
        future: asyncio.Future[CommitResult] = self._loop.create_future()
        self.enqueue_or_flush_apart(commit, FutureCommitReceiver(future))
        return future

    @property
    def is_idle(self) -> bool:
        """Every outcome is answered."""
        return self._task is None and not self._side_flushes

    async def wait_until_idle(self) -> None:
        """Wait until every outcome is answered."""
        while not self.is_idle:
            tasks: set[asyncio.Task[None]] = set(self._side_flushes)
            if self._task is not None:
                tasks.add(self._task)
            await asyncio.wait(tasks)

    async def close_and_cancel_flushes(self) -> None:
        """Cancel flushes that the database has not answered in time, for good."""
        self._is_closing = True
        tasks = [t for t in (self._task, *self._side_flushes) if t is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start_flush(self) -> None:
        self._task = task = self._loop.create_task(self._flush_queued(), name="gen_durable flush")
        task.add_done_callback(self._restart_flush_if_queued)

    def _restart_flush_if_queued(self, task: asyncio.Task[None]) -> None:
        """Send what was queued meanwhile, and the outcomes of a flush that code outside of the engine has cancelled."""
        self._task = None
        if self._is_closing:
            return
        if task.cancelled():
            self._queued.put_back([entry for entry in self._batch if not entry[1].is_answered])
            self._batch = []
            log.warning("a flush was cancelled by other code: %d outcomes are sent again", len(self._queued))
        if self._queued:
            self._start_flush()

    async def _flush_queued(self) -> None:
        while self._queued:
            batch = self._queued.take_batch(self._batch_size)
            batch.sort(key=lambda entry: entry[0].id)
            if len({commit.id for commit, _ in batch}) < len(batch):
                batch, later = _first_of_each_instance(batch)
                self._queued.put_back(later)
            self._batch = batch
            await self._flush_until_answered(batch)
            self._batch = []

    async def _flush_until_answered(
        self, batch: list[_QueuedOutcome], side: SlowCommitConnections | None = None
    ) -> None:
        """Send a batch until the database has answered for each outcome in it; with `side`, on its connections."""
        pauses: GrowingPauses | None = None
        failures = 0
        flushed: FlushResult | None
        while True:
            try:
                if side is None:
                    flushed = await self._flush_once([commit for commit, _ in batch], self._connection)
                else:
                    flushed = await self._try_flush_on_side_connection(batch[0][0], side)
            except Exception as error:
                match _fault_kind_of(error):
                    case FaultKind.REFUSED if len(batch) == 1:
                        return _answer_with_rejection(batch[0], error)
                    case FaultKind.REFUSED:
                        return await self._flush_halves(batch)
                    case FaultKind.LOCK_TIMED_OUT if side is None:
                        return await self._flush_rows_not_locked(batch)
                    case FaultKind.GONE if len(batch) > 1 and _was_statement_sent(error):
                        await asyncio.sleep(FIRST_PAUSE)
                        return await self._flush_halves(batch)
                    case FaultKind.GONE if failures == QUIET_FAILURES and side is None and _was_statement_sent(error):
                        return self._start_side_flush(batch[0])
                    case FaultKind.LOCK_TIMED_OUT | FaultKind.GONE | FaultKind.BUSY:
                        failures += 1
                    case fault:
                        assert_never(fault)
                if failures == QUIET_FAILURES + 1:
                    log.warning("outcomes cannot be committed (%s); trying again", describe_fault(error))
            else:
                if flushed is not None:
                    return self._answer_receivers_and_wake_queues(batch, flushed)
            pauses = pauses or GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.5)
            await asyncio.sleep(pauses.next_seconds())

    async def _try_flush_on_side_connection(self, commit: Commit, side: SlowCommitConnections) -> FlushResult | None:
        """Send one outcome. Returns None if others wait for a connection and the outcome's row is still locked."""
        are_all_in_use = side.are_all_in_use
        async with side.acquire() as connection:
            if are_all_in_use and side is self._locked:
                # A try would wait up to a second for the lock, and the others for the connection.
                ids = {i for i in (commit.id, commit.parent) if i is not None}
                if await connection.run(self._statements.unlocked_ids(sorted(ids))) != ids:
                    return None
            return await self._flush_once([commit], connection)

    async def _flush_once(self, commits: list[Commit], connection: PersistentConnection) -> FlushResult:
        if commits[0].many_children is not None:
            work = functools.partial(
                flush_outcome_and_children, statements=self._statements, commit=commits[0], worker=self._worker
            )
            return await connection.run_in_transaction(work)
        return await connection.run(self._statements.flush(commits, self._worker, time.perf_counter()))

    def _answer_receivers_and_wake_queues(self, batch: list[_QueuedOutcome], flushed: FlushResult) -> None:
        stale, cancelled = flushed.stale_ids, flushed.cancel_requested_ids
        for commit, receiver in batch:
            try:
                receiver.receive_commit_result(
                    STALE if commit.id in stale else CANCEL_REQUESTED if commit.id in cancelled else COMMITTED
                )
            except Exception as error:  # the other outcomes of the batch must have their answers
                log.error("instance %d: the answer to its outcome met %s", commit.id, describe_for_log(error))
        try:
            act_on_flush_follow_ups(self._notifier, flushed)
        except Exception as error:
            log.error(
                "the queues that a flush made runnable were not woken (%s); polling finds them", describe_for_log(error)
            )

    async def _flush_halves(self, batch: list[_QueuedOutcome]) -> None:
        middle = len(batch) // 2
        await self._flush_until_answered(batch[:middle])
        await self._flush_until_answered(batch[middle:])

    async def _flush_rows_not_locked(self, batch: list[_QueuedOutcome]) -> None:
        """Write the outcomes whose rows are not locked; the others wait on side connections."""
        ids = {i for commit, _ in batch for i in (commit.id, commit.parent) if i is not None}
        try:
            unlocked = await self._connection.run(self._statements.unlocked_ids(sorted(ids)))
        except Exception:  # of any kind: the batch is halved below, until the locked row is alone
            unlocked = ids
        ready: list[_QueuedOutcome] = []
        for entry in batch:
            commit = entry[0]
            if commit.id in unlocked and (commit.parent is None or commit.parent in unlocked):
                ready.append(entry)
            else:
                self._start_side_flush(entry)
        locked = len(batch) - len(ready)
        log.info("%d outcomes wait for rows that other transactions have locked", locked)
        if locked:
            if ready:
                await self._flush_until_answered(ready)
        # No row is locked, so the lock is on a child's unique key, which an open transaction inserts or deletes.
        elif len(batch) == 1:
            self._start_side_flush(batch[0])
        else:
            await self._flush_halves(batch)

    def _start_side_flush(self, entry: _QueuedOutcome) -> None:
        side = self._fan_outs if should_flush_apart(entry[0]) else self._locked
        task = self._loop.create_task(self._flush_until_answered([entry], side))
        self._side_flushes.add(task)
        task.add_done_callback(functools.partial(self._restart_cancelled_side_flush, entry))

    def _restart_cancelled_side_flush(self, entry: _QueuedOutcome, task: asyncio.Task[None]) -> None:
        self._side_flushes.discard(task)
        if task.cancelled() and not self._is_closing:
            self._start_side_flush(entry)  # as in _restart_flush_if_queued


def act_on_flush_follow_ups(notifier: Notifier, flushed: FlushResult) -> None:
    """Wake what a flush made runnable, and start the cascades it began."""
    if flushed.already_committed_ids:
        # An earlier try committed some of it, and its answer, which named the queues, is lost: wake every queue.
        notifier.wake_local_workers()
    elif flushed.follow_ups:
        notifier.act_on_follow_ups(flushed.follow_ups)


def _fault_kind_of(error: Exception) -> FaultKind:
    """An error that is neither of the connection nor of the server is a mistake here, and comes again: refused."""
    if isinstance(error, ConnectionLost):
        return FaultKind.GONE
    return classify_error(error) if isinstance(error, SqlError) else FaultKind.REFUSED


def _was_statement_sent(error: Exception) -> bool:
    return isinstance(error, SqlError) or (isinstance(error, ConnectionLost) and error.sent)


def _answer_with_rejection(entry: _QueuedOutcome, error: Exception) -> None:
    commit, receiver = entry
    rejection = to_rejection(commit, error)
    if not isinstance(error, SqlError):
        log.error("%s", rejection)
    try:
        receiver.receive_commit_result(rejection)
    except Exception as raised:
        log.error("instance %d: the answer to its outcome met %s", commit.id, describe_for_log(raised))


def _first_of_each_instance(batch: list[_QueuedOutcome]) -> tuple[list[_QueuedOutcome], list[_QueuedOutcome]]:
    """Split a sorted batch: one outcome per instance now, further ones (of a lost claim and its successor) later.

    flush.sql joins the effects of an outcome by instance id, so a stale outcome must not share a statement with a
    current one.
    """
    now: list[_QueuedOutcome] = []
    later: list[_QueuedOutcome] = []
    for entry in batch:
        (later if now and now[-1][0].id == entry[0].id else now).append(entry)
    return now, later
