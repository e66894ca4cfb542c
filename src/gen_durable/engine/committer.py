"""Committer: group commit without a timer.

In: encoded outcomes, one by one, from the tasks that ran them. Out: for each whether it was committed. While one flush
is under way outcomes gather; when it returns all of them go in the next. An idle worker commits at once, a busy one in
large batches.

This room owns the invariant that an outcome is answered for exactly once, whatever happens to the connection: a batch
whose answer was lost is sent again, and the fence tells what was committed already. One bad outcome never harms its
batch mates: a refused batch is halved until the culprit stands alone; an outcome whose row is held by somebody's long
transaction is set aside and waits for itself.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from gen_durable.engine.fanout import commit_in_transaction
from gen_durable.errors import OutcomeRejected
from gen_durable.pg.connection import PersistentConnection
from gen_durable.pg.faults import ConnectionLost, Fault, SqlError, classify, sqlstate
from gen_durable.store.statements import Statements
from gen_durable.store.types import Commit, Flushed, Wakeups

log = logging.getLogger("gen_durable.flush")
MAX_PAUSE: Final = 1.0


class CommitResult(enum.Enum):
    """What became of an outcome."""

    COMMITTED = "committed"
    STALE = "stale"
    CANCEL_REQUESTED = "the row is to be cancelled"


# Members by names of their own: asking the enum for them costs a call of Python in 3.11.
COMMITTED: Final = CommitResult.COMMITTED
STALE: Final = CommitResult.STALE
CANCEL_REQUESTED: Final = CommitResult.CANCEL_REQUESTED
Settled = Callable[[CommitResult | OutcomeRejected], None]
OnWake = Callable[[Wakeups | None], None]
"""Takes what a flush made ready; None if that is unknown."""
_Entry = tuple[Commit, Settled]


class Committer:
    """Takes outcomes and commits them in groups."""

    __slots__ = (
        "_aside",
        "_batch",
        "_calls",
        "_link",
        "_loop",
        "_on_wake",
        "_pending",
        "_side_link",
        "_task",
        "_under_way",
        "_worker",
    )

    def __init__(
        self,
        link: PersistentConnection,
        side_link: PersistentConnection,
        calls: Statements,
        batch: int,
        on_wake: OnWake,
        *,
        worker: str | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()  # asking for it costs a system call: not at every step
        self._link = link
        self._side_link = side_link
        self._calls = calls
        self._batch = batch
        self._on_wake = on_wake
        self._worker = worker
        self._pending: list[_Entry] = []
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[None]] = set()

    @property
    def load(self) -> int:
        """How many outcomes are handed in and not answered yet."""
        return len(self._pending) + self._under_way

    def hand_in(self, commit: Commit, settled: Settled) -> None:
        """Hand in an outcome; `settled` is called with what became of it."""
        if commit.brood is not None:
            self._wait_aside((commit, settled))  # takes a while: not in the way of others
            return
        self._pending.append((commit, settled))
        if self._task is None:
            self._task = self._loop.create_task(self._work(), name="gen_durable flush")

    def submit(self, commit: Commit) -> asyncio.Future[CommitResult]:
        """Hand in an outcome; the future tells what became of it, or raises `OutcomeRejected`."""
        future: asyncio.Future[CommitResult] = self._loop.create_future()

        def settled(verdict: CommitResult | OutcomeRejected) -> None:
            if future.done():
                return
            if isinstance(verdict, OutcomeRejected):
                future.set_exception(verdict)
            else:
                future.set_result(verdict)

        self.hand_in(commit, settled)
        return future

    async def idle(self) -> None:
        """Wait until everything handed in is answered."""
        while self._task is not None or self._aside:
            tasks: set[asyncio.Task[None]] = set(self._aside)
            if self._task is not None:
                tasks.add(self._task)
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Give up on what is still under way (the database did not answer in time)."""
        tasks = [t for t in (self._task, *self._aside) if t is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _work(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending[: self._batch], self._pending[self._batch :]
                batch.sort(key=lambda entry: entry[0].id)
                if len({commit.id for commit, _ in batch}) < len(batch):
                    batch, later = _once_each(batch)
                    self._pending = later + self._pending
                self._under_way = len(batch)
                await self._write(batch, self._link)
                self._under_way = 0
        finally:
            self._task = None

    async def _write(self, batch: list[_Entry], link: PersistentConnection) -> None:
        pause = 0.01
        told = False
        while True:
            try:
                flushed = await self._send([commit for commit, _ in batch], link)
            except (ConnectionLost, SqlError) as error:
                fault = Fault.GONE if isinstance(error, ConnectionLost) else classify(error)
                if fault is Fault.REFUSED:
                    if len(batch) == 1:
                        self._refuse(batch[0], error)
                    else:
                        await self._halve(batch, link)
                    return
                if fault is Fault.BLOCKED and link is self._link:
                    await self._set_aside(batch)
                    return
                if not told and pause > 0.05:
                    told = True
                    log.warning("outcomes cannot be committed now (%s), trying again", describe_fault(error))
            else:
                self._settle(batch, flushed)
                return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, MAX_PAUSE)

    async def _send(self, commits: list[Commit], link: PersistentConnection) -> Flushed:
        if commits[0].brood is not None:
            work = functools.partial(commit_in_transaction, calls=self._calls, commit=commits[0], worker=self._worker)
            return await link.run_in_transaction(work)
        return await link.run(self._calls.flush(commits, self._worker, time.perf_counter()))

    def _settle(self, batch: list[_Entry], flushed: Flushed) -> None:
        stale = flushed.stale
        for commit, settled in batch:
            settled(
                STALE
                if commit.id in stale
                else COMMITTED
                if commit.id not in flushed.cancel_requested
                else CANCEL_REQUESTED
            )
        if flushed.wakeups or flushed.already:
            # The queues that an earlier try woke are not known any more: look at all of them.
            self._on_wake(flushed.wakeups if not flushed.already else None)

    def _refuse(self, entry: _Entry, error: Exception) -> None:
        commit, settled = entry
        settled(OutcomeRejected(f"the database refused the outcome of instance {commit.id}: {describe_fault(error)}"))

    async def _halve(self, batch: list[_Entry], link: PersistentConnection) -> None:
        middle = len(batch) // 2
        await self._write(batch[:middle], link)
        await self._write(batch[middle:], link)

    async def _set_aside(self, batch: list[_Entry]) -> None:
        ids = {i for commit, _ in batch for i in (commit.id, commit.parent) if i is not None}
        try:
            free = await self._link.run(self._calls.unlocked(sorted(ids)))
        except (ConnectionLost, SqlError):
            free = ids
        ready: list[_Entry] = []
        for entry in batch:
            commit = entry[0]
            if commit.id in free and (commit.parent is None or commit.parent in free):
                ready.append(entry)
            else:
                self._wait_aside(entry)
        held = len(batch) - len(ready)
        log.info("%d outcomes wait for rows that other transactions hold", held)
        if held:
            if ready:
                await self._write(ready, self._link)
        # No row of ours is held, so it is a key: a child's, that an open transaction is about to take or free.
        elif len(batch) == 1:
            self._wait_aside(batch[0])
        else:
            await self._halve(batch, self._link)

    def _wait_aside(self, entry: _Entry) -> None:
        task = self._loop.create_task(self._write([entry], self._side_link))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)


def _once_each(batch: list[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """Those that go now, and those that wait: outcomes of one instance, by a lost claim and by the next, go apart.

    What an outcome causes is found by its instance (flush.sql): a stale one must not stand beside one that is not.
    """
    now: list[_Entry] = []
    later: list[_Entry] = []
    for entry in batch:
        (later if now and now[-1][0].id == entry[0].id else now).append(entry)
    return now, later


def describe_fault(error: Exception) -> str:
    """A database error for a log or a message: its code and kind. Never its DETAIL, which may quote a payload."""
    code = sqlstate(error)
    if code is not None and code.startswith("GD"):
        return str(error)  # words of ours
    return str(error) if isinstance(error, ConnectionLost) else f"{type(error).__name__}, SQLSTATE {code}"
