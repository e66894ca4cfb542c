"""TransactionalExecutor: a step whose own writes commit together with its outcome.

In: a claim of a step that is `transactional`. Out: what became of it, its writes included: both are committed, or
neither is. An error of the step is raised as `StepRaised` after the rollback, and is answered as that of any step.

This room owns the invariant that the user's writes are there exactly once: the outcome is flushed behind its fence in
the user's own transaction. When the answer to the COMMIT is lost, the fence tells what happened. It is asked under the
row's lock, which a transaction that is still about to commit holds; only if it has not committed the step runs again.
So it does when its connection breaks in its middle: that is nobody's error (tests/flows/test_transactional.py).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from typing import Final

from gen_durable.context import Lent
from gen_durable.engine.activities import StepJournal
from gen_durable.engine.claims import ActiveClaim
from gen_durable.engine.committer import CANCEL_REQUESTED, COMMITTED, STALE, CommitResult, OnWake, describe_fault
from gen_durable.engine.executor import Executor, StepRaised
from gen_durable.engine.fanout import commit_in_transaction
from gen_durable.engine.outcome_encoder import EncodedOutcome
from gen_durable.errors import InvalidOutcome, OutcomeRejected
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.pg.faults import ConnectionLost, Fault, SqlError, classify, sqlstate
from gen_durable.pg.transaction import Transaction
from gen_durable.registry import Entry
from gen_durable.store.statements import Statements
from gen_durable.store.types import Claim, Commit, Flushed

log = logging.getLogger("gen_durable.worker")
TRIES: Final = 10
LOSSES: Final = 10  # of its connection, in the middle of one step: then it is the step that breaks it
MAX_PAUSE: Final = 1.0


class _Broken(Exception):
    """The connection broke in the middle of a step, which has raised because of it, or would have."""

    def __init__(self, raised: StepRaised) -> None:
        super().__init__(str(raised))
        self.raised = raised


class TransactionalExecutor:
    """Runs transactional steps, each on one of a few connections of its own."""

    __slots__ = ("_calls", "_free", "_links", "_on_wake", "_run", "_turn", "_worker")

    def __init__(
        self, run: Executor, target: Target, calls: Statements, size: int, on_wake: OnWake, *, worker: str
    ) -> None:
        self._run = run
        self._calls = calls
        self._links = [PersistentConnection(target) for _ in range(size)]
        self._free = list(self._links)
        self._turn = asyncio.Semaphore(size)
        self._on_wake = on_wake
        self._worker = worker

    async def step(
        self, claim: Claim, entry: Entry, held: ActiveClaim | None = None
    ) -> tuple[EncodedOutcome, CommitResult]:
        """Execute a step and commit its outcome with its writes. Raises `StepRaised`, and what `Executor.step` raises.

        `held` is told when user code runs, which a cancel may interrupt; what comes after it is not.
        """
        async with self._turn:
            link = self._free.pop()
            try:
                pause, losses = 0.02, 0
                while True:
                    try:
                        done = await self._once(link, claim, entry, held)
                    except ConnectionLost as error:
                        log.warning("instance %d: no connection for its transaction (%s)", claim.id, error)
                    except _Broken as broken:
                        losses += 1
                        if losses == LOSSES:
                            raise broken.raised from None
                        log.warning("instance %d: its connection broke in its step, which runs again", claim.id)
                    else:
                        if done is not None:
                            return done
                        log.warning("instance %d: its transaction was lost, its step runs again", claim.id)
                    if isinstance(claim.notes, StepJournal):
                        claim.notes.begin_again()
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, MAX_PAUSE)
            finally:
                self._free.append(link)

    async def rehearse(self, claim: Claim, entry: Entry) -> None:
        """Execute a step and roll it back, as if its worker had died before the commit (testing)."""
        async with self._turn:
            link = self._free.pop()
            try:
                transaction = await Transaction.begin(link)
                lent = Lent(transaction.driver_connection)
                try:
                    await self._run.step(claim, entry, hold=False, lent=lent)
                finally:
                    lent.end()
                    transaction.drop()
            finally:
                self._free.append(link)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links), return_exceptions=True)

    def close_soon(self) -> None:
        for link in self._links:
            link.close_soon()

    async def _once(
        self, link: PersistentConnection, claim: Claim, entry: Entry, held: ActiveClaim | None
    ) -> tuple[EncodedOutcome, CommitResult] | None:
        """One execution in one transaction; None: it was lost, and nothing of it is committed."""
        transaction = await Transaction.begin(link)
        lent = Lent(transaction.driver_connection)
        try:
            started = time.perf_counter()
            if held is not None:
                held.in_step = True
            task = None if held is None else held.task
            try:
                ran = await self._run.step(claim, entry, hold=False, task=task, lent=lent)
            finally:
                lent.end()
            if held is not None:
                held.in_step = False
            ran.commit.began, ran.commit.took = started, time.perf_counter() - started
            if not transaction.is_open:
                raise StepRaised(_ended_by_hand(entry))
        except Exception as error:
            if held is not None:
                held.in_step = False
            # A step that has not touched the connection did not raise because of it.
            if not await transaction.rollback() and isinstance(error, StepRaised) and lent.taken:
                raise _Broken(error) from error
            raise
        except BaseException:
            transaction.drop()
            raise
        try:
            flushed = await self._end(transaction, ran.commit, entry)
        except ConnectionLost:
            transaction.drop()
            found = await self._find_out(link, ran.commit)
            if found is None:
                return None
            flushed = found
        except Exception:
            await transaction.rollback()
            raise
        except BaseException:
            transaction.drop()
            raise
        if flushed.wakeups or flushed.already:
            self._on_wake(None if flushed.already else flushed.wakeups)
        return ran, STALE if flushed.stale else CANCEL_REQUESTED if flushed.cancel_requested else COMMITTED

    async def _end(self, transaction: Transaction, commit: Commit, entry: Entry) -> Flushed:
        """Flush and commit; or roll back what comes too late."""
        flushed = await self._flush(transaction, commit, entry)
        if flushed.stale or flushed.already or flushed.cancel_requested:
            await transaction.rollback()
            return flushed
        try:
            await transaction.commit()
        except SqlError as error:  # a deferred constraint, a serialization failure
            raise StepRaised(
                OutcomeRejected(f"the transaction of step {entry.spec.label} cannot commit: {describe_fault(error)}")
            ) from error
        return flushed

    async def _flush(self, transaction: Transaction, commit: Commit, entry: Entry) -> Flushed:
        work = functools.partial(commit_in_transaction, calls=self._calls, commit=commit, worker=self._worker)
        pause = 0.02
        for tries_left in range(TRIES, -1, -1):
            try:
                return await transaction.run_in_savepoint(work)
            except SqlError as error:
                if sqlstate(error) == "25P02":
                    raise StepRaised(_aborted(entry)) from error
                # Somebody holds a row of ours. Not for ever: he may be waiting for what the user's writes hold. A
                # serialization failure comes again in the same transaction.
                if tries_left == 0 or classify(error) is Fault.REFUSED or sqlstate(error) == "40001":
                    words = f"the database refused the outcome of instance {commit.id}: {describe_fault(error)}"
                    raise StepRaised(OutcomeRejected(words)) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)
        raise AssertionError("unreachable")

    async def _find_out(self, link: PersistentConnection, commit: Commit) -> Flushed | None:
        """What became of a transaction whose end was not heard of; None: it was not committed and never will be."""
        pause = 0.02
        while True:
            try:
                if await link.run(self._calls.begin_fanout(commit, 0)) is not None:
                    return None
                # The fence has moved on, or the row is to be cancelled: either way a mere `next` writes nothing, it
                # tells which. (The outcome itself, if it is an end, would be taken: without the user's writes.)
                found = await link.run(self._calls.flush([Commit(commit.id, commit.epoch, commit.seq, "next")]))
                return None if found.cancel_requested else found
            except (ConnectionLost, SqlError) as error:
                log.info(
                    "instance %d: it is not known yet whether its step was committed (%s)",
                    commit.id,
                    describe_fault(error),
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)


def _ended_by_hand(entry: Entry) -> InvalidOutcome:
    return InvalidOutcome(
        f"step {entry.spec.label} has ended its transaction itself: leave COMMIT and ROLLBACK to the worker, "
        "and use `async with ctx.connection.transaction():` for a savepoint"
    )


def _aborted(entry: Entry) -> InvalidOutcome:
    return InvalidOutcome(
        f"a statement of step {entry.spec.label} failed and aborted its transaction: put a savepoint around what may "
        "fail, `async with ctx.connection.transaction():`, or let the error out of the step"
    )
