"""Claims due rows while the worker has free slots.

One statement picks for all queues. The picker sleeps until a wake-up arrives, a slot falls free, the next known row
becomes due, or the poll interval ends; the interval doubles up to its maximum while picks find nothing. So timers fire
on time and an idle worker sends few statements.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from gen_durable.core.background_task import BackgroundTask
from gen_durable.core.hand_off import AddPick
from gen_durable.core.notifier import Notifier
from gen_durable.engine.claim_table import ClaimTable
from gen_durable.engine.committer import Committer
from gen_durable.engine.pick_scan_positions import PickScanPositions
from gen_durable.engine.slots import Slots
from gen_durable.engine.wakeup_budget import WakeupBudget
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import SqlError, describe_for_log, is_caused_by_data
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.blocked_rows import merge_blocked_rows
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import PickResult
from gen_durable.telemetry import Events, QueueLoadMeasured, RowsPicked, RowsUnblocked
from gen_durable.worker_options import WorkerOptions

T = TypeVar("T")
log = get_escaping_logger("gen_durable.worker")
STOP_SECONDS: Final = 5.0
MAX_UNCOMMITTED: Final = 2000
UNCOMMITTED_PAUSE: Final = 0.005
MAX_HAND_OFF: Final = 50  # rows of one queue: their claims come with the answer that a client waits for


class FairQueueCursors:
    """Which group each fair queue served last, so that the next pick continues with the group after it.

    Each worker goes round all groups that have work by itself, so the workers are fair together.
    """

    __slots__ = ("_group_kinds", "_last_groups")

    def __init__(self, group_kinds: Mapping[str, str]) -> None:
        self._group_kinds = group_kinds
        self._last_groups: dict[str, str | None] = {}

    def to_pick_argument(self, queues: Iterable[str]) -> str | None:
        """The cursors of these queues as JSON for `pick`; None if none of them is fair."""
        if not self._group_kinds:
            return None
        fair = {q: (self._group_kinds[q], self._last_groups.get(q)) for q in queues if q in self._group_kinds}
        return msgspec.json.encode(fair).decode() if fair else None

    def update_from_pick(self, picked: PickResult) -> None:
        self._last_groups.update(picked.last_groups)


class Picker(BackgroundTask):
    """The picker of one worker."""

    def __init__(
        self,
        connection: PersistentConnection,
        statements: StatementBuilder,
        options: WorkerOptions,
        *,
        worker: str,
        known_step_keys: list[str],
        slots: Slots,
        claims: ClaimTable,
        committer: Committer,
        notifier: Notifier,
        events: Events,
    ) -> None:
        super().__init__("picker")
        self._connection = connection
        self._statements = statements
        self._worker = worker
        self._known_step_keys = known_step_keys
        self._slots = slots
        self._claims = claims
        self._committer = committer
        self._notifier = notifier
        self._events = events
        self._lease_seconds = options.lease_ttl.total_seconds()
        self._min_demand = options.min_demand
        self._poll_seconds = self._min_poll_seconds = options.poll_interval.total_seconds()
        self._max_poll_seconds = options.max_poll_interval.total_seconds()
        self._picked_at = 0.0
        self._scan_positions = PickScanPositions()
        self._cursors = FairQueueCursors(options.group_kind_by_queue)
        self._pick_task: asyncio.Task[PickResult] | None = None
        self._hand_off_task: asyncio.Task[object] | None = None
        self._may_pick = False  # the last pick succeeded, so the login has the right to pick
        self._budget = WakeupBudget(time.monotonic())

    def wake_and_get_capacity(self, queue: str) -> int:
        """Pick from a queue as soon as it has capacity. Returns how many more rows this worker could take."""
        slots = self._slots.queues.get(queue)
        if slots is None or self._stopping:
            return 0
        slots.has_work = True
        self._slots.changed.set()
        return slots.remaining_capacity

    def wake_by_message(self, queue: str) -> None:
        """A message reports work in a queue, truly or not: pick now, or when the budget for messages allows it."""
        slots = self._slots.queues.get(queue)
        if slots is None or slots.has_work or self._stopping:
            return
        now = time.monotonic()
        pick_at = self._budget.reserve_pick_time(now)
        if pick_at <= now:
            self.wake_and_get_capacity(queue)
        elif pick_at < slots.due_at:
            slots.due_at = pick_at
            self._slots.changed.set()

    def notify_if_pick_misses(self, queue: str, count: int) -> None:
        """The next pick from a queue should find `count` rows; other processes are notified if it does not."""
        slots = self._slots.queues.get(queue)
        if slots is not None:
            slots.expected += count

    def wake_all(self) -> None:
        for name in self._slots.queues:
            self.wake_and_get_capacity(name)

    async def stop(self) -> None:
        """Stop picking. Waits for a pick under way: the claims it returns must reach the table."""
        await super().stop()
        hand_off, self._hand_off_task = self._hand_off_task, None
        if hand_off is not None:
            await asyncio.wait([hand_off], timeout=STOP_SECONDS)
        pick, self._pick_task = self._pick_task, None
        if pick is not None:
            await asyncio.wait([pick], timeout=STOP_SECONDS)
            pick.cancel()
            await asyncio.wait([pick])
            if not pick.cancelled():
                pick.exception()

    async def run_once(self) -> float:
        """Pick for every queue with capacity and a reason; then wait for the next reason."""
        self._slots.changed.clear()
        demands = self._adapt_prefetch_and_count_demands()
        if demands:
            picked = await self._pick_uninterrupted(demands)
            if picked.claims:
                return 0.0
        wait = self._seconds_to_next_pick()
        try:
            async with asyncio.timeout(wait):
                await self._slots.changed.wait()
        except TimeoutError:
            pass
        return 0.0

    async def _pick_uninterrupted(self, demands: dict[str, int]) -> PickResult:
        expected = {name: self._slots.queues[name].clear_pick_reasons_and_get_expected() for name in demands}
        self._pick_task = asyncio.get_running_loop().create_task(
            self._pick_and_notify_of_missed_rows(demands, expected), name="gen_durable pick"
        )
        try:
            # A stop must not interrupt the pick: rows claimed by a statement whose answer is dropped are lost to
            # everyone until their leases end.
            return await asyncio.shield(self._pick_task)
        except BaseException:
            for name in demands:
                self._slots.queues[name].has_work = True
                self._slots.queues[name].expected += expected[name]
            raise

    async def _pick_and_notify_of_missed_rows(self, demands: dict[str, int], expected: dict[str, int]) -> PickResult:
        try:
            picked = await self._pick_and_start_claims(demands)
        except SqlError as error:
            if not is_caused_by_data(error):
                raise
            picked = await self._pick_one_by_one(demands)
        self._notify_of_missed_rows(expected, picked)
        return picked

    async def _pick_one_by_one(self, demands: dict[str, int]) -> PickResult:
        """Claim rows singly, because one of them fails the statement; that one is set aside with a growing rest.

        Returns the last result; the claims of all have been started.
        """
        last = PickResult([], [])
        for queue, demand in demands.items():
            for _ in range(demand):
                try:
                    last = await self._pick_and_start_claims({queue: 1})
                except SqlError as error:
                    if not is_caused_by_data(error):
                        raise
                    last = await self._postpone_unreadable_head(queue, error)
                if not last.claims or self._stopping:
                    break
        return last

    async def _postpone_unreadable_head(self, queue: str, error: SqlError) -> PickResult:
        """Claim the head of a queue without its payloads, and return it with a back-off and the reason."""
        started = time.monotonic()
        statement = self._statements.pick_without_payloads(self._make_pick_statement({queue: 1}, None))
        try:
            picked = await self._connection.run(statement)
        except SqlError as again:
            if not is_caused_by_data(again):
                raise
            log.error("queue %s: its first row cannot be claimed (%s)", queue, describe_for_log(again))
            return PickResult([], [])
        for claim in picked.claims:
            reason = (
                f"its claim cannot be read ({describe_for_log(error)}): look at its signals, children and activities"
            )
            log.error("instance %d of %s: %s", claim.id, claim.machine, reason)
            self._claims.postpone_soon(self._claims.register(claim, started), reason)
        if picked.woken_queues:
            self._notifier.wake_queues(picked.woken_queues)
        return picked

    def _make_pick_statement(self, demands: dict[str, int], scan_positions: str | None) -> Statement[PickResult]:
        free = [self._slots.queues[name].free_count for name in demands]
        return self._statements.pick(
            self._worker,
            demands,
            self._known_step_keys,
            self._lease_seconds,
            scan_positions=scan_positions,
            fair=self._cursors.to_pick_argument(demands),
            free=free if any(map(operator.lt, free, demands.values())) else None,
            crashed=self._claims.crashed.free_count,
            last_chance=self._claims.crashed.is_idle,
        )

    async def _pick_and_start_claims(self, demands: dict[str, int]) -> PickResult:
        started = time.monotonic()
        scan_positions = self._scan_positions.to_pick_argument(demands)
        self._may_pick = False
        picked = await self._connection.run(self._make_pick_statement(demands, scan_positions))
        self._may_pick = True
        self._scan_positions.update_from_pick(picked, scan_positions, time.monotonic() - started)
        self._start_claims_and_plan_next_pick(demands, picked, started)
        self._adapt_poll_interval(has_claims=bool(picked.claims))
        return picked

    def _start_claims_and_plan_next_pick(self, demands: dict[str, int], picked: PickResult, started: float) -> None:
        self._cursors.update_from_pick(picked)
        if picked.claims:
            self._claims.add_and_start(picked.claims, started)
            self._budget.refill_after_find()
        self._plan_next_pick_and_notify_if_full(demands, picked)
        if self._events.active:
            self._emit_pick_events(demands, picked)
        if picked.woken_queues:
            self._notifier.wake_queues(picked.woken_queues)

    def start_hand_off(
        self, rows_by_queue: Mapping[str, int], add_pick: AddPick[T]
    ) -> asyncio.Task[tuple[T, frozenset[int]]] | None:
        """Claim rows with the statement that makes them runnable: `HandOffTarget` in core/hand_off.py.

        The pick demands all free slots: what it leaves unmet tells that nothing more is due. They are reserved until
        the answer is here, and the picker leaves these queues alone, so two picks never use one turn of a fair queue.
        """
        under_way = (self._pick_task, self._hand_off_task)
        if (
            self._stopping
            or self._slots.stopping
            or not self._may_pick
            or any(task is not None and not task.done() for task in under_way)
            or self._committer.unanswered_in_batches > MAX_UNCOMMITTED
        ):
            return None
        now = time.monotonic()
        demands: dict[str, int] = {}
        for name, count in rows_by_queue.items():
            slots = self._slots.queues.get(name)
            if slots is None or slots.has_work or slots.needs_slot or slots.buffer or slots.due_at <= now:
                return None
            demands[name] = min(slots.free_count, MAX_HAND_OFF)
            if demands[name] < count or not slots.count_rows_to_pick(self._min_demand):
                return None
        for name, demand in demands.items():
            self._slots.queues[name].reserved = demand
        task = asyncio.get_running_loop().create_task(self._hand_off(demands, add_pick), name="gen_durable hand-off")
        task.add_done_callback(lambda done: self._free_reserved_slots(demands, done))
        self._hand_off_task = task
        return task

    async def _hand_off(self, demands: dict[str, int], add_pick: AddPick[T]) -> tuple[T, frozenset[int]]:
        started = time.monotonic()
        pick = self._make_pick_statement(demands, self._scan_positions.to_pick_argument(demands))
        answer = await self._connection.run(add_pick(pick))
        for name in demands:
            self._slots.queues[name].reserved = 0
        self._start_claims_and_plan_next_pick(demands, answer.picked, started)
        return answer.result, frozenset(claim.id for claim in answer.picked.claims)

    def _free_reserved_slots(self, demands: dict[str, int], task: asyncio.Task[tuple[T, frozenset[int]]]) -> None:
        """In a callback: also if other code has cancelled the task before it began."""
        for name in demands:
            self._slots.queues[name].reserved = 0
        self._slots.changed.set()
        if not task.cancelled():
            task.exception()  # its caller may be gone

    def _plan_next_pick_and_notify_if_full(self, demands: dict[str, int], picked: PickResult) -> None:
        now = time.monotonic()
        reports = {report.queue: report for report in picked.unmet}
        for name in demands:
            slots, report = self._slots.queues[name], reports.get(name)
            if report is None:
                slots.has_work = True  # the demand was met, so there may be more rows
                self._notifier.notify_full_pick(name)
            else:
                slots.needs_slot = report.needs_slot
                moments = [
                    m for m in (report.next_due, self._scan_positions.seconds_to_full_scan(name)) if m is not None
                ]
                if moments:
                    # schedule_pick_or_wake_others may have set a nearer moment while the statement was under way.
                    slots.due_at = min(slots.due_at, now + max(min(moments), 0.0))

    def _adapt_poll_interval(self, *, has_claims: bool) -> None:
        if has_claims:
            self._poll_seconds = self._min_poll_seconds
        else:
            self._poll_seconds = min(self._poll_seconds * 2, self._max_poll_seconds)
        self._picked_at = time.monotonic()

    def _notify_of_missed_rows(self, expected: dict[str, int], picked: PickResult) -> None:
        """Rows that this worker was woken for and did not find may have steps that only other workers know."""
        for report in picked.unmet:
            count = expected[report.queue]
            if count and sum(claim.queue == report.queue for claim in picked.claims) < count:
                self._notifier.notify_rows_not_found(report.queue)

    def _emit_pick_events(self, demands: dict[str, int], picked: PickResult) -> None:
        counts = dict.fromkeys(demands, 0)
        for claim in picked.claims:
            counts[claim.queue] += 1
        for name, demand in demands.items():
            slots = self._slots.queues[name]
            self._events.emit(RowsPicked(name, counts[name], demand, self._worker))
            self._events.emit(
                QueueLoadMeasured(name, slots.running, len(slots.buffer), slots.concurrency, slots.prefetch)
            )
        for blocked in merge_blocked_rows(picked.blocked):
            self._events.emit(blocked.to_event())
        for queue in picked.woken_queues:
            self._events.emit(RowsUnblocked(queue))

    def _adapt_prefetch_and_count_demands(self) -> dict[str, int]:
        """How many rows to pick from each queue now; empty if no queue has both capacity and a reason."""
        if self._committer.unanswered_in_batches > MAX_UNCOMMITTED:
            return {}  # the database does not keep up with the outcomes: claim no more rows
        now = time.monotonic()
        polling = now - self._picked_at >= self._poll_seconds
        demands: dict[str, int] = {}
        for name, slots in self._slots.queues.items():
            if slots.has_work or polling or slots.due_at <= now:
                slots.adapt_prefetch(now)
                if demand := slots.count_rows_to_pick(self._min_demand):
                    demands[name] = demand
        return demands

    def _seconds_to_next_pick(self) -> float | None:
        """Seconds until the next poll or due row; None means wait for `slots.changed`.

        Ignores due times of full queues: a slot that falls free wakes the picker, and waking up at once for a due
        time that has passed would spin.
        """
        if self._committer.unanswered_in_batches > MAX_UNCOMMITTED:
            return UNCOMMITTED_PAUSE
        due = [slots.due_at for slots in self._slots.queues.values() if slots.count_rows_to_pick(self._min_demand)]
        if not due:
            return None
        return max(min(self._picked_at + self._poll_seconds, *due) - time.monotonic(), 0.0)
