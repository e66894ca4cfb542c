"""One step at a time: claim, run, commit, through the very rooms that a worker is made of.

In: the name of a queue, or an instance. Out: an `Execution`, committed. There is no picker, no heartbeat and no group
commit around it, and no run-ahead: every state goes into the database as JSON and is read from there for the next step.

Each step runs in a task of its own, one after the other, as with a worker: what a step does to its task (contextvars,
cancellation) stays inside, and a test that is cancelled gives its row back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any, Final, TypeVar

from gen_durable.backoff import backoff
from gen_durable.client import Durable
from gen_durable.context import Context
from gen_durable.core.payloads import ClaimEncryption
from gen_durable.core.services import services_of
from gen_durable.engine.committer import CommitResult, Committer
from gen_durable.engine.executor import Executor, StepRaised, UndecodableState
from gen_durable.engine.fanout import ReadChildren, children_reader
from gen_durable.engine.journal import JournalWriter
from gen_durable.engine.outcome_encoder import EncodedOutcome
from gen_durable.engine.step_limits import StepLimits
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.engine.transactional import TransactionalExecutor
from gen_durable.errors import LeaseLost, OutcomeRejected
from gen_durable.pg.connection import PersistentConnection
from gen_durable.registry import Entry, Registry
from gen_durable.store.types import Claim, Wakeups
from gen_durable.testing.statements import HarnessStatements
from gen_durable.testing.tally import LOST, UNDECODABLE, Execution

T = TypeVar("T")
WORKER: Final = "gen_durable.testing"
LEASE: Final = 3600.0  # nobody extends it, so it must outlast any step; `Stepper.lose` ends it
REAP_BATCH: Final = 1000
CANCEL_TIMEOUT: Final = 5.0


class Stepper:
    """Runs single steps of the machines and jobs in a registry."""

    __slots__ = (
        "_cascade",
        "_errors",
        "_flush",
        "_link",
        "_registry",
        "_run",
        "_scribe",
        "_services",
        "_side_link",
        "_statements",
        "_threads",
        "_transact",
    )

    def __init__(
        self, app: Durable, registry: Registry, statements: HarnessStatements, errors: dict[int, Exception]
    ) -> None:
        self._services = services = services_of(app)
        self._registry = registry
        self._statements = statements
        self._link = PersistentConnection(services.target)
        self._side_link = PersistentConnection(services.target)
        self._threads = ThreadPool(1)
        self._errors = errors
        self._cascade = False
        doors = StepLimits(services.requests, services.statements, _nobody)
        self._scribe = JournalWriter(
            services.pool,
            services.statements.schema.name,
            services.journal_statements,
            self._threads,
            services.installation,
            seal=services.encryption,
        )
        sealer = (
            None
            if services.encryption is None
            else ClaimEncryption(services.encryption, services.pool, services.statements)
        )
        self._run = _Run(
            self._threads,
            children_reader(services.pool, services.statements, services.encryption),
            doors,
            self._scribe,
            errors,
            sealer=sealer,
        )
        self._flush = Committer(self._link, self._side_link, services.statements, 1, self._woke, worker=WORKER)
        self._transact = TransactionalExecutor(
            self._run, services.target, services.statements, 1, self._woke, worker=WORKER
        )

    async def open(self) -> None:
        # What is committed here is thrown away anyhow, so nobody waits for the disk.
        await self._link.run_script("set synchronous_commit = off")

    async def close(self) -> None:
        await self._flush.close()
        await self._scribe.close()
        self._threads.close()
        links = (self._link.close(), self._side_link.close(), self._transact.close())
        await asyncio.gather(*links, return_exceptions=True)

    async def due_queues(self) -> list[str]:
        """The queues that have due rows, in the order of their names."""
        return await self._link.run(self._statements.due_queues())

    async def claim(self, queue: str) -> Claim | None:
        """Claim the next due row of a queue."""
        call = self._services.statements.pick(WORKER, {queue: 1}, self._registry.known, LEASE)
        picked = await self._link.run(call)
        return picked.claims[0] if picked.claims else None

    async def claim_one(self, instance: int, queue: str) -> Claim | None:
        """Claim this row and no other, by the same call: it skips rows that are locked, so all others are."""
        connection = await self._side_link.connect()
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.fetch(self._statements.lock_others, instance)
            return await self.claim(queue)
        finally:
            await transaction.rollback()

    async def execute(self, claim: Claim) -> Execution:
        """Executor the step of a claim and commit its outcome."""
        entry = self._entry(claim)
        if claim.children is None or any(not child.status.terminal for child in claim.children):
            self._cascade = True
        await self._carry_on()
        try:
            if entry.spec.transactional:
                outcome = await self._transacted(claim, entry)
                self._cascade = True  # it may have cancelled in its transaction
                await self._carry_on()
                return self._told(claim, outcome)
            began = time.perf_counter()
            ran = await self._step(claim, entry)
            ran.commit.began, ran.commit.took = began, time.perf_counter() - began
        except UndecodableState as error:
            self._errors[claim.id] = error
            rest = backoff(min(claim.epoch, 8), base=timedelta(seconds=5), cap=timedelta(minutes=10))  # as a worker
            await self.release(claim, rest.total_seconds(), str(error))
            return self._told(claim, UNDECODABLE)
        except LeaseLost as error:
            self._errors[claim.id] = error
            return self._told(claim, LOST)
        outcome = await self._commit(claim, entry, ran)
        await self._carry_on()
        return self._told(claim, outcome)

    def _woke(self, wakeups: Wakeups | None) -> None:
        """Wake no picker: the next claim finds what became runnable. Remember that children must be cancelled."""
        self._cascade = self._cascade or (wakeups is not None and bool(wakeups.cancel_children))

    async def _carry_on(self) -> None:
        """Cancel children that are not waited for any more, as workers do."""
        while self._cascade:
            done = await self._link.run(self._services.statements.cascade(REAP_BATCH, None))
            self._cascade = done.more and done.ended + done.requested > 0

    async def abandon(self, claim: Claim, *, run: bool) -> Execution:
        """Be the worker that dies with a claim: with `run` after the step's last line, else before its first."""
        if run:
            entry = self._entry(claim)
            try:
                if entry.spec.transactional:
                    await self._in_task(claim, self._transact.rehearse(claim, entry))
                else:
                    await self._step(claim, entry)
            except StepRaised as raised:
                self._errors[claim.id] = raised.error
            except (UndecodableState, LeaseLost) as error:
                self._errors[claim.id] = error
        await self._link.run(self._statements.expire(claim.id, claim.epoch))
        await self.reap()
        return self._told(claim, LOST)

    async def reap(self) -> None:
        """Take back the claims whose lease is over, and carry on what callers have cancelled in their transactions."""
        more = True
        while more:
            found = await self._link.run(self._services.statements.reap(REAP_BATCH, None))
            more = len(found.claims) == REAP_BATCH
        self._cascade = True
        await self._carry_on()

    async def release(self, claim: Claim, delay: float | None = None, reason: str | None = None) -> None:
        """Give a claim back."""
        await self._link.run(self._services.statements.release([(claim.id, claim.epoch, delay, reason)]))

    async def shift(self, by: timedelta) -> None:
        """Move every moment in the schema back."""
        statements = await self._link.run(self._statements.shifts())
        connection = await self._link.connect()
        async with connection.transaction():
            for statement in statements:
                await connection.execute(statement, by)

    async def begin_anew(self, registry: Registry) -> None:
        """Forget every instance, and run other machines and jobs from now on."""
        await self._link.run_script(self._statements.empty)
        self._registry = registry
        self._errors.clear()

    def _entry(self, claim: Claim) -> Entry:
        entry = self._registry.find(claim.machine, claim.version, claim.step)
        assert entry is not None, "pick returns only names that it was given"
        return entry

    async def _step(self, claim: Claim, entry: Entry) -> EncodedOutcome:
        self._errors.pop(claim.id, None)
        return await self._in_task(claim, self._run.step(claim, entry, hold=False))

    async def _transacted(self, claim: Claim, entry: Entry) -> str:
        self._errors.pop(claim.id, None)
        try:
            ran, verdict = await self._in_task(claim, self._transact.step(claim, entry))
        except StepRaised as raised:
            ran = await self._run.rejected(claim, entry, raised.error, hold=False)
            return await self._commit(claim, entry, ran)
        if verdict is CommitResult.CANCEL_REQUESTED:
            return await self._cancel(claim, entry)
        return LOST if verdict is CommitResult.STALE else ran.outcome

    async def _in_task(self, claim: Claim, running: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(running)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The test was cancelled, not the step: `abandoned` tells the room that this is no error of the step.
            claim.abandoned = True
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            await self.release(claim)
            raise

    async def _commit(self, claim: Claim, entry: Entry, ran: EncodedOutcome) -> str:
        """Hand in the outcome as a worker does: a refused one is the step's error; if that is refused too, it ends."""
        try:
            verdict = await self._flush.submit(ran.commit)
        except OutcomeRejected as refused:
            former, ran = ran.commit, await self._run.rejected(claim, entry, refused, hold=False)
            ran.commit.began, ran.commit.took = former.began, former.took
            try:
                verdict = await self._flush.submit(ran.commit)
            except OutcomeRejected:
                ran = await self._run.given_up(claim, entry, refused)
                ran.commit.began, ran.commit.took = former.began, former.took
                verdict = await self._flush.submit(ran.commit)
        if verdict is CommitResult.CANCEL_REQUESTED:
            return await self._cancel(claim, entry)
        return LOST if verdict is CommitResult.STALE else ran.outcome

    async def _cancel(self, claim: Claim, entry: Entry) -> str:
        """The instance was cancelled while its step ran, by the step itself or by the test."""
        asked = await self._link.run(self._services.statements.cancel_requests([(claim.id, claim.epoch)]))
        reason = await self._run.cancelled(claim, entry, asked.get(claim.id, "cancelled"), CANCEL_TIMEOUT)
        ran = self._run.ended(claim, entry, reason)
        ran.commit.began = time.perf_counter()
        return LOST if await self._flush.submit(ran.commit) is CommitResult.STALE else ran.outcome

    def _told(self, claim: Claim, outcome: str) -> Execution:
        error = self._errors.get(claim.id)
        step = self._entry(claim).spec.name
        return Execution(claim.id, claim.machine, claim.version, step, claim.attempt, outcome, error)


class _Run(Executor):
    """The same room, which also remembers what steps raised."""

    __slots__ = ("_errors",)

    def __init__(
        self,
        threads: ThreadPool,
        read_children: ReadChildren,
        doors: StepLimits,
        desk: JournalWriter,
        errors: dict[int, Exception],
        *,
        sealer: ClaimEncryption | None,
    ) -> None:
        super().__init__(WORKER, threads, read_children, doors, desk, sealer=sealer)
        self._errors = errors

    async def failed(self, claim: Claim, entry: Entry, ctx: Context, error: Exception, *, hold: bool) -> EncodedOutcome:
        self._errors[claim.id] = error
        return await super().failed(claim, entry, ctx, error, hold=hold)


def _nobody(_queues: Iterable[str] | None) -> None:
    """Nobody is woken: the next claim finds what became runnable."""
