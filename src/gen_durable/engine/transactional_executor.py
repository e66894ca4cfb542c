"""Executes steps whose own writes commit together with their outcome.

The user's writes are applied exactly once: the outcome is flushed behind its fence in the user's own transaction, so
either both commit or neither does. If the answer to the COMMIT is lost, the fence shows what happened. It is read under
the row lock, which a transaction that may still commit holds; the step runs again only if it has not committed. A step
whose connection breaks runs again too, without an error of its own (tests/flows/test_transactional.py).
"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Final

from gen_durable.backoff import GrowingPauses
from gen_durable.core.notifier import Notifier
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.committer import (
    CANCEL_REQUESTED,
    COMMITTED,
    STALE,
    CommitResult,
    act_on_flush_follow_ups,
)
from gen_durable.engine.executor import Executor, TransactionalStepRaised
from gen_durable.engine.outcome_and_children_flusher import flush_outcome_and_children
from gen_durable.engine.outcome_encoder import EncodedOutcome
from gen_durable.engine.outcome_rejection import UnusableLimit, describe_fault, to_rejection
from gen_durable.engine.step_journal import StepJournal
from gen_durable.errors import DatabaseUnavailable, InvalidOutcome, OutcomeRejected
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import (
    WRONG_ISOLATION,
    ConnectionLost,
    FaultKind,
    SqlError,
    classify_error,
    sqlstate_of,
)
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.pg.shared_transaction import SharedTransaction
from gen_durable.step_registry import RunnableStep
from gen_durable.step_services import StepTransaction
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Claim, Commit, FlushResult
from gen_durable.stored_exceptions import describe_error

log = get_escaping_logger("gen_durable.worker")
FLUSH_RETRIES: Final = 10
MAX_BROKEN: Final = 10  # broken connections in one step; after that the step itself is assumed to break them
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


class _ConnectionBroken(Exception):
    """The connection broke before the COMMIT, during a step that had used it or after it; `error` shows how."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class TransactionalExecutor:
    """Executes transactional steps, each on one of a few connections of its own."""

    __slots__ = ("_connections", "_executor", "_free", "_notifier", "_semaphore", "_statements", "_worker")

    def __init__(
        self,
        executor: Executor,
        target: ConnectionTarget,
        statements: StatementBuilder,
        connections: int,
        *,
        notifier: Notifier,
        worker: str,
    ) -> None:
        self._executor = executor
        self._statements = statements
        self._connections = [PersistentConnection(target) for _ in range(connections)]
        self._free = list(self._connections)
        self._semaphore = asyncio.Semaphore(connections)
        self._notifier = notifier
        self._worker = worker

    async def execute_and_commit(self, active: ActiveClaim) -> tuple[EncodedOutcome, CommitResult]:
        """Execute a step and commit its outcome with its writes.

        Raises `TransactionalStepRaised` and `UnusableLimit` after a rollback, and what `Executor.execute_step` raises.
        A cancel interrupts user code only: `active.is_in_step` is set as long as it runs.
        """
        claim = active.claim
        async with self._semaphore:
            connection = self._free.pop()
            try:
                pauses, broken_connections = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE), 0
                while True:
                    try:
                        committed = await self._execute_once(connection, active)
                    except ConnectionLost as error:
                        log.warning("instance %d: no connection for its transaction (%s)", claim.id, error)
                    except _ConnectionBroken as broken:
                        broken_connections += 1
                        if broken_connections == MAX_BROKEN:
                            raise TransactionalStepRaised(
                                _broken_connection_error(active.entry, broken.error)
                            ) from broken.error
                        log.warning("instance %d: its connection broke during its step, which runs again", claim.id)
                    else:
                        return committed
                    if isinstance(claim.step_journal, StepJournal):
                        claim.step_journal.restart_for_next_execution()
                    await asyncio.sleep(pauses.next_seconds())
            finally:
                self._free.append(connection)

    async def execute_and_roll_back(self, claim: Claim, entry: RunnableStep) -> None:
        """Execute a step as if its worker died before the commit (gen_durable.testing)."""
        async with self._semaphore:
            connection = self._free.pop()
            try:
                transaction = await SharedTransaction.begin(connection)
                step_transaction = StepTransaction(transaction.driver_connection)
                try:
                    await self._executor.execute_step(claim, entry, may_continue=False, transaction=step_transaction)
                finally:
                    step_transaction.reject_further_use()
                    transaction.drop_connection()
            finally:
                self._free.append(connection)

    async def close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections), return_exceptions=True)

    def terminate_connections(self) -> None:
        for connection in self._connections:
            connection.terminate()

    async def _execute_once(
        self, connection: PersistentConnection, active: ActiveClaim
    ) -> tuple[EncodedOutcome, CommitResult]:
        """Execute the step in one transaction. Raises `_ConnectionBroken` if that did not commit and never will."""
        transaction = await SharedTransaction.begin(connection)
        encoded = await self._execute_in_transaction(transaction, active)
        try:
            flushed = await self._flush_and_commit(transaction, encoded.commit, active.entry)
        except ConnectionLost as error:
            transaction.drop_connection()
            found = await self._find_out_if_committed(connection, encoded.commit)
            if found is None:
                raise _ConnectionBroken(error) from error
            flushed = found
        except Exception:
            await transaction.rollback()
            raise
        except BaseException:
            transaction.drop_connection()
            raise
        act_on_flush_follow_ups(self._notifier, flushed)
        return encoded, STALE if flushed.stale_ids else CANCEL_REQUESTED if flushed.cancel_requested_ids else COMMITTED

    async def _execute_in_transaction(self, transaction: SharedTransaction, active: ActiveClaim) -> EncodedOutcome:
        step_transaction = StepTransaction(transaction.driver_connection)
        try:
            started = time.perf_counter()
            active.is_in_step = True
            try:
                encoded = await self._executor.execute_step(
                    active.claim, active.entry, may_continue=False, task=active.task, transaction=step_transaction
                )
            finally:
                step_transaction.reject_further_use()
            active.is_in_step = False
            encoded.commit.began, encoded.commit.took = started, time.perf_counter() - started
            if not transaction.is_open:
                raise TransactionalStepRaised(_ended_transaction_error(active.entry))
        except Exception as error:
            active.is_in_step = False
            # A step that has not used the connection did not raise because of it.
            if (
                not await transaction.rollback()
                and isinstance(error, TransactionalStepRaised)
                and step_transaction.is_used
            ):
                raise _ConnectionBroken(error.error) from error
            raise
        except BaseException:
            # is_in_step stays set: the claim runner must see that user code was interrupted.
            transaction.drop_connection()
            raise
        return encoded

    async def _flush_and_commit(
        self, transaction: SharedTransaction, commit: Commit, entry: RunnableStep
    ) -> FlushResult:
        """Flush and commit; roll back if the flush did not write the outcome."""
        flushed = await self._flush_outcome(transaction, commit, entry)
        if flushed.stale_ids or flushed.already_committed_ids or flushed.cancel_requested_ids:
            await transaction.rollback()
            return flushed
        try:
            await transaction.commit()
        except SqlError as error:  # a deferred constraint, a serialization failure
            raise TransactionalStepRaised(
                OutcomeRejected(f"the transaction of step {entry.spec.label} cannot commit: {describe_fault(error)}")
            ) from error
        return flushed

    async def _flush_outcome(self, transaction: SharedTransaction, commit: Commit, entry: RunnableStep) -> FlushResult:
        work = functools.partial(
            flush_outcome_and_children, statements=self._statements, commit=commit, worker=self._worker
        )
        pauses = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE)
        for retries_left in range(FLUSH_RETRIES, -1, -1):
            try:
                return await transaction.run_in_savepoint(work)
            except SqlError as error:
                if sqlstate_of(error) == "25P02":
                    raise TransactionalStepRaised(_aborted_transaction_error(entry)) from error
                # Another session holds a lock on the row. Bound the wait: that session may itself wait for the
                # user's writes. A serialization failure and a wrong isolation level recur in the same transaction.
                recurs = classify_error(error) is FaultKind.REFUSED or sqlstate_of(error) in (
                    "40001",
                    WRONG_ISOLATION,
                )
                if retries_left == 0 or recurs:
                    rejection = to_rejection(commit, error)
                    raise (
                        rejection if isinstance(rejection, UnusableLimit) else TransactionalStepRaised(rejection)
                    ) from error
            await asyncio.sleep(pauses.next_seconds())
        raise AssertionError("unreachable")

    async def _find_out_if_committed(self, connection: PersistentConnection, commit: Commit) -> FlushResult | None:
        """Find out whether a transaction committed whose answer was lost. Returns None if it did not and never will."""
        pauses = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                if await connection.run(self._statements.lock_parent_and_allocate_ids(commit, 0)) is not None:
                    return None
                # The fence does not match, or the row has a cancel request. A bare `next` writes nothing in either
                # case, and its answer shows which. (The outcome itself, if it ends the instance, would be accepted:
                # without the user's writes.)
                probe = Commit(commit.id, commit.epoch, commit.seq, "next")
                found = await connection.run(self._statements.flush([probe]))
                return None if found.cancel_requested_ids else found
            except (ConnectionLost, SqlError) as error:
                log.info("instance %d: its commit cannot be checked yet (%s)", commit.id, describe_fault(error))
            await asyncio.sleep(pauses.next_seconds())


def _broken_connection_error(entry: RunnableStep, error: Exception) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"the connection of step {entry.spec.label} broke in {MAX_BROKEN} executions in a row, at last with "
        f"{describe_error(error)}. If the step waits inside its transaction, idle_in_transaction_session_timeout, or "
        "idle_transaction_timeout of PgBouncer, ends it: wait before the first use of ctx.connection"
    )


def _ended_transaction_error(entry: RunnableStep) -> InvalidOutcome:
    return InvalidOutcome(
        f"step {entry.spec.label} has ended its transaction itself: leave COMMIT and ROLLBACK to the worker, "
        "and use `async with ctx.connection.transaction():` for a savepoint"
    )


def _aborted_transaction_error(entry: RunnableStep) -> InvalidOutcome:
    return InvalidOutcome(
        f"a statement of step {entry.spec.label} failed and aborted its transaction: put a savepoint around what may "
        "fail, `async with ctx.connection.transaction():`, or let the error out of the step"
    )
