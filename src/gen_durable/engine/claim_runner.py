"""ClaimRunner: the life of a claim, from its first step to the commit that ends it.

In: a held claim. Out: steps run, outcomes handed in. A plain `Next` keeps the claim: the task waits for the commit and
goes on with the next step, from the state that was committed. Any other outcome ends the task as soon as it is handed
in: its slot is free for the next claim while the commit is under way, for a slot counts user code that runs. The claim
stays in the holdings, and so keeps its lease, until the commit is answered.

A claim that is to be cancelled has its step interrupted, if that can be done, or else loses its outcome, unless that is
an end; then `on_cancel` runs, in the same slot, and the claim ends with an outcome of its own.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gen_durable.config import WorkerOptions
from gen_durable.core.completions import CompletionWatcher
from gen_durable.core.notifier import Notifier
from gen_durable.engine.claims import ActiveClaim, ClaimTable
from gen_durable.engine.committer import CANCEL_REQUESTED, STALE, CommitResult, Committer, Settled
from gen_durable.engine.executor import Executor, StepRaised, UndecodableState
from gen_durable.engine.outcome_encoder import EncodedOutcome, advance
from gen_durable.engine.transactional import TransactionalExecutor
from gen_durable.errors import LeaseLost, OutcomeRejected
from gen_durable.instances import Status
from gen_durable.registry import Registry
from gen_durable.store.types import Commit
from gen_durable.telemetry import Events, StaleOutcome, StateUndecodable, StepCommitted

log = logging.getLogger("gen_durable.worker")


class ClaimRunner:
    """Lives the claims of one worker."""

    def __init__(
        self,
        run: Executor,
        flush: Committer,
        transact: TransactionalExecutor,
        *,
        registry: Registry,
        holdings: ClaimTable,
        options: WorkerOptions,
        events: Events,
        endings: CompletionWatcher,
        wake: Notifier,
        on_due: Callable[[str, float], None],
        lend: Callable[[ActiveClaim], None],
        take_back: Callable[[ActiveClaim], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        give_back: Callable[[ActiveClaim, str], None],
        ask_why: Callable[[ActiveClaim], Awaitable[str]],
    ) -> None:
        self._run = run
        self._flush = flush
        self._transact = transact
        self._registry = registry
        self._holdings = holdings
        self._budget = options.run_ahead_time.total_seconds()
        self._steps = options.run_ahead_steps
        self._events = events
        self._endings = endings
        self._wake = wake
        self._on_due = on_due
        self._lend = lend
        self._take_back = take_back
        self._spawn = spawn
        self._give_back = give_back
        self._ask_why = ask_why
        self._cancel_timeout = options.cancel_timeout.total_seconds()
        self.stopping = False

    async def claim(self, held: ActiveClaim) -> None:
        """Executor a claim's step, hand in its outcome, and again while the claim is kept."""
        claim, steps = held.claim, 0
        began = started = time.perf_counter()
        after: EncodedOutcome | None = None
        try:
            while True:
                steps += 1
                hold = steps <= self._steps and not self.stopping and started - began < self._budget
                if held.to_be_cancelled():  # before it began, or while it was between two steps
                    return await self._cancelled(held, 0.0, began=False)
                if held.entry.spec.transactional:
                    return await self._transacted(held, started)
                held.in_step = True
                ran = await self._run.step(claim, held.entry, hold=hold, after=after, task=held.task)
                held.in_step = False
                took = time.perf_counter() - started
                ran.commit.began, ran.commit.took = started, took
                if held.to_be_cancelled() and ran.commit.kind not in ("done", "fail"):
                    return await self._cancelled(held, took)
                if ran.commit.kind != "continue":
                    await self._hand_in(held, ran, took)
                    return None
                try:
                    committing = self._flush.submit(ran.commit)
                    self._lend(held)
                    verdict = await committing
                except OutcomeRejected as refused:
                    await self._mend(held, refused, ran.commit)
                    return None
                if verdict is STALE:
                    self._settled(held, ran, took, verdict)
                    return None
                if not held.slot:
                    await self._take_back(held)
                if verdict is CANCEL_REQUESTED:
                    return await self._cancelled(held, took)
                if self._events.active:
                    self._tell(held, ran, took)
                started = time.perf_counter()
                advance(claim, ran)
                after = ran
                held.entry = self._registry.following(claim.machine, claim.version, claim.step)
                held.in_thread = not held.entry.spec.is_async
        except UndecodableState as error:
            self._undecodable(held, str(error))
        except LeaseLost:
            log.warning("instance %d: the claim was lost in the middle of a step", claim.id)
            self._holdings.remove(held)
        except asyncio.CancelledError:
            if held.reason is None or not held.in_step:
                raise
            held.in_step = False
            await self._cancelled(held, time.perf_counter() - started)

    def drop(self, held: ActiveClaim) -> None:
        """A claim that has not begun is to be cancelled."""
        self._spawn(self._cancelled(held, 0.0, began=False))

    async def _cancelled(self, held: ActiveClaim, took: float, *, began: bool = True) -> None:
        """End a claim that is to be cancelled, in the task of its step or in another."""
        claim, task = held.claim, asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()  # it was meant for the step, which has seen it
        reason = held.reason if held.reason is not None else await self._ask_why(held)
        held.reason = reason
        if began:
            reason = await self._run.cancelled(claim, held.entry, reason, self._cancel_timeout)
        ran = self._run.ended(claim, held.entry, reason)
        ran.commit.began, ran.commit.took = time.perf_counter() - took, took
        self._flush.hand_in(ran.commit, functools.partial(self._settled, held, ran, took))

    async def _transacted(self, held: ActiveClaim, started: float) -> None:
        """A step whose writes commit with its outcome. Its error is answered when they are rolled back."""
        try:
            ran, verdict = await self._transact.step(held.claim, held.entry, held)
        except StepRaised as raised:
            took = time.perf_counter() - started
            ran = await self._run.rejected(held.claim, held.entry, raised.error, hold=False)
            ran.commit.began, ran.commit.took = started, took
            await self._hand_in(held, ran, took)
        else:
            self._settled(held, ran, time.perf_counter() - started, verdict)

    async def _hand_in(self, held: ActiveClaim, ran: EncodedOutcome, took: float) -> None:
        settled = functools.partial(self._settled, held, ran, took)
        if ran.commit.brood is not None:
            await self._brooded(ran, settled)
        else:
            self._flush.hand_in(ran.commit, settled)

    async def _brooded(self, ran: EncodedOutcome, settled: Settled) -> None:
        """Wait until many children are started: they are large, so no others are drawn in this slot meanwhile."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answer(verdict: CommitResult | OutcomeRejected) -> None:
            settled(verdict)
            if not answered.done():
                answered.set_result(None)

        self._flush.hand_in(ran.commit, answer)
        await answered

    def _settled(
        self, held: ActiveClaim, ran: EncodedOutcome, took: float, verdict: CommitResult | OutcomeRejected
    ) -> None:
        """An outcome that ends the claim was answered."""
        claim, commit = held.claim, ran.commit
        if isinstance(verdict, OutcomeRejected):
            if commit.kind == "cancel":
                self._give_back(held, str(verdict))
            else:
                self._spawn(self._mend(held, verdict, commit))
            return
        if verdict is CANCEL_REQUESTED:
            self._spawn(self._cancelled(held, took))
            return
        self._holdings.remove(held)
        if verdict is STALE:
            log.warning("instance %d: its outcome came too late, another worker has the claim", claim.id)
            if self._events.active:
                self._events.emit(StaleOutcome(claim.id, claim.machine, held.entry.spec.name))
            return
        if commit.kind == "done":
            self._endings.report_end(claim.id, Status.DONE, commit.value, None, commit.began + commit.took)
        elif commit.kind == "fail":
            self._endings.report_end(claim.id, Status.FAILED, None, commit.error, commit.began + commit.took)
        elif commit.kind == "cancel":
            self._endings.report_end(claim.id, Status.CANCELLED, None, commit.error, commit.began + commit.took)
        elif commit.delay:
            self._on_due(claim.queue if ran.queue is None else ran.queue, commit.delay)
        if claim.partition_key is not None:
            self._wake.wake(claim.queue)  # its key is free now
        if self._events.active:
            self._tell(held, ran, took)

    async def _mend(self, held: ActiveClaim, refused: OutcomeRejected, former: Commit) -> None:
        """The database refused an outcome: that is the step's error. If the answer to it is refused too, it fails."""
        ran = await self._run.rejected(held.claim, held.entry, refused, hold=False)
        ran.commit.began, ran.commit.took = former.began, former.took
        try:
            verdict = await self._flush.submit(ran.commit)
        except OutcomeRejected:
            ran = await self._run.given_up(held.claim, held.entry, refused)
            ran.commit.began, ran.commit.took = former.began, former.took
            try:
                verdict = await self._flush.submit(ran.commit)
            except OutcomeRejected as again:
                self._give_back(held, str(again))
                return
        self._settled(held, ran, former.took, verdict)

    def _tell(self, held: ActiveClaim, ran: EncodedOutcome, took: float) -> None:
        claim = held.claim
        self._events.emit(
            StepCommitted(
                claim.id, claim.machine, claim.version, held.entry.spec.name, ran.outcome, claim.attempt, took
            )
        )

    def _undecodable(self, held: ActiveClaim, error: str) -> None:
        claim = held.claim
        log.error("instance %d of %s: %s", claim.id, held.entry.spec.label, error)
        if self._events.active:
            self._events.emit(StateUndecodable(claim.id, claim.machine, claim.step, error))
        self._give_back(held, error)
