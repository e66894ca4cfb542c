"""The cascader: cancels the descendants of cancelled instances, in batches, in transactions of their own.

The table `cascades` lists what is left to do, so a tree is cancelled to its last leaf even if the process that began it
dies: the reaper of any worker finds an old entry. The client's `cancel` runs a cascade and counts it; the notifier
starts one in the background.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple, Protocol

from gen_durable.backoff import GrowingPauses
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import describe_for_log
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import FollowUps

log = get_escaping_logger("gen_durable.cascade")
BATCH: Final = 1000
REPORT_SECONDS: Final = 600.0  # a child that is refused in each batch is logged so often
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.5
MAX_EMPTY_BATCHES: Final = 10
REQUEST_SECONDS: Final = 0.05  # messages start a cascade at most so often
MAX_REQUESTS: Final = (
    8  # origins that wait for that, and cascades under way; with more of them, one cascade of any origin
)


class FollowUpHandler(Protocol):
    """The part of the notifier that the cascader calls."""

    def act_on_follow_ups(self, follow_ups: FollowUps) -> None:
        """Act on the follow-ups of a transaction."""
        ...


class CascadeCount(NamedTuple):
    """Descendants that were ended, and that execute and got a cancel request."""

    ended: int
    requested: int


class CancelCascader:
    """Cancels children for one `Durable`."""

    __slots__ = (
        "_follow_up_handler",
        "_reported_at",
        "_request_task",
        "_requested",
        "_requested_at",
        "_statement_runner",
        "_statements",
        "_tasks",
    )

    def __init__(
        self, statement_runner: StatementRunner, statements: StatementBuilder, follow_up_handler: FollowUpHandler
    ) -> None:
        self._statement_runner = statement_runner
        self._statements = statements
        self._follow_up_handler = follow_up_handler
        self._tasks: dict[int | None, asyncio.Task[None]] = {}
        self._requested: set[int | None] = set()
        self._request_task: asyncio.Task[None] | None = None
        self._requested_at = -REQUEST_SECONDS
        self._reported_at = -REPORT_SECONDS

    def start_cascade(self, origin: int | None) -> None:
        """Cancel the descendants of `origin`, or (None) of any, in the background; at most one task per origin."""
        former = self._tasks.get(origin)
        if former is None or former.done():
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._run_cascade_and_log_errors(origin), name="gen_durable cascade")
            task.add_done_callback(lambda done: self._remove_task(origin, done))
            self._tasks[origin] = task

    def request_cascade_at_bounded_rate(self, origin: int | None) -> None:
        """A message names `origin`, perhaps without a reason: look at what is listed for it, at a bounded rate."""
        if None in self._requested or origin in self._requested:
            return
        if origin is None or len(self._requested) >= MAX_REQUESTS:
            self._requested = {None}
        else:
            self._requested.add(origin)
        if self._request_task is None or self._request_task.done():
            self._request_task = asyncio.get_running_loop().create_task(
                self._start_requested_cascades(), name="gen_durable requested cascades"
            )

    async def _start_requested_cascades(self) -> None:
        while self._requested:
            if (wait := self._requested_at + REQUEST_SECONDS - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._requested_at = time.monotonic()
            origin = self._requested.pop()
            self.start_cascade(origin if len(self._tasks) < MAX_REQUESTS else None)

    def _remove_task(self, origin: int | None, task: asyncio.Task[None]) -> None:
        if self._tasks.get(origin) is task:
            del self._tasks[origin]

    async def run_cascade(self, origin: int | None) -> CascadeCount:
        """Cancel the descendants of `origin`, or (None) of any, until none is left that can be locked."""
        ended = requested = 0
        pauses, empty_batches_left = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE), MAX_EMPTY_BATCHES
        try:
            while True:
                batch = await self._statement_runner.run(
                    self._statements.cancel_listed_descendants(BATCH, origin), "cancel", may_run_twice=True
                )
                self._follow_up_handler.act_on_follow_ups(batch.follow_ups)
                if batch.refused:
                    self._report_refused_children(batch.refused, batch.refusal)
                ended, requested = ended + batch.ended, requested + batch.requested
                if not batch.more:
                    return CascadeCount(ended, requested)
                if batch.ended + batch.requested > 0:
                    pauses.reset()
                    empty_batches_left = MAX_EMPTY_BATCHES
                    continue
                empty_batches_left -= 1  # the rows that are left are locked or refused
                if empty_batches_left == 0:
                    break
                await asyncio.sleep(pauses.next_seconds())
        except (DatabaseRefused, DatabaseUnavailable) as error:
            log.warning("cascade of instance %s interrupted (%s)", origin, error)
        log.info("cascade of instance %s: the remaining children are left to the reaper of a worker", origin)
        return CascadeCount(ended, requested)

    async def close(self) -> None:
        """Stop the background tasks; the reaper of any worker finds what they leave."""
        tasks = list(self._tasks.values())
        if self._request_task is not None:
            tasks.append(self._request_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _report_refused_children(self, children: list[int], code: str | None) -> None:
        now = time.monotonic()
        if now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            log.error(
                "the database refuses to cancel instance %d (SQLSTATE %s; %d in this batch); trying again later",
                children[0], code, len(children),
            )  # fmt: skip

    async def _run_cascade_and_log_errors(self, origin: int | None) -> None:
        try:
            await self.run_cascade(origin)
        except Exception as error:
            log.error(
                "cascade of instance %s failed (%s); the reaper of a worker tries again",
                origin,
                describe_for_log(error),
            )
