"""QueueSlots: who runs in the slots of a queue, and who comes next."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gen_durable.engine import slots as slots_module
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.slots import MAX_PICK, NEVER, RELEASE_SECONDS, QueueSlots, Slots
from gen_durable.engine.task_set import TaskSet


class Clock:
    """The time of the slots, which stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(slots_module, "time", made)
    return made


class Track:
    """One queue with two slots, and claims that run until the test ends them."""

    def __init__(self, *, prefetch: int = 2, clock: Clock | None = None, fixed_prefetch: int | None = None) -> None:
        self.test = asyncio.current_task()
        self.tasks = TaskSet()
        self.woken: list[str] = []
        notifier = cast(Any, SimpleNamespace(wake=self.woken.append))
        self.now = time.monotonic if clock is None else clock.monotonic
        self.slots = Slots({"q": 2}, fixed_prefetch, tasks=self.tasks, notifier=notifier)
        self.slots.runner = self
        self.queue = self.slots.queues["q"]
        self.queue.prefetch = prefetch  # as many as there are slots: steps are short, and slots are lent
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.errors: list[tuple[int, str]] = []
        self.released: list[int] = []

    async def run_claim(self, active: ActiveClaim) -> None:
        self.begun.append(active.claim.id)
        self.ends[active.claim.id] = asyncio.get_running_loop().create_future()
        try:
            await self.ends[active.claim.id]
        except asyncio.CancelledError:
            if self.test is not None and self.test.done():
                self.slots.stopping = True  # its loop would never run another claim
            raise

    def log_engine_error_and_postpone(self, active: ActiveClaim, error: BaseException) -> None:
        self.errors.append((active.claim.id, repr(error)))

    def release_unstarted(self, claims: list[ActiveClaim]) -> None:
        self.released += [active.claim.id for active in claims]

    def recover_from_cancellation_by_other_code(self, active: ActiveClaim) -> None:
        self.errors.append((active.claim.id, "cancelled"))

    async def take(self, *ids: int, priority: int = 0) -> list[ActiveClaim]:
        """Claims come in; those that have a slot begin."""
        entry = cast(Any, SimpleNamespace(spec=SimpleNamespace(is_async=True)))
        several = [
            ActiveClaim(
                cast(Any, SimpleNamespace(id=i, queue="q", priority=priority, is_interrupted=False)),
                entry,
                leased_at=0.0,
            )
            for i in ids
        ]
        for held in several:
            self.slots.start_or_buffer(held, self.now())
        await settled()
        return several

    async def end(self, instance: int, error: Exception | None = None) -> None:
        if error is None:
            self.ends[instance].set_result(None)
        else:
            self.ends[instance].set_exception(error)
        await settled()


async def settled() -> None:
    """What is ready to run has run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_has_no_slot_is_begun_in_order_when_one_falls_free() -> None:
    """Two slots, four claims: the others wait in the buffer, and each end begins one of them and is told."""
    track = Track()
    await track.take(1, 2, 3, 4)
    assert track.begun == [1, 2]
    assert len(track.tasks.running) == 2
    await track.end(2)
    assert track.begun == [1, 2, 3]
    assert track.slots.changed.is_set()
    await track.end(1)
    await track.end(3)
    await track.end(4)
    assert track.begun == [1, 2, 3, 4]
    assert (track.queue.running, track.queue.lent, track.tasks.running) == (0, 0, set())


async def test_a_slot_that_is_wanted_back_comes_before_the_buffer() -> None:
    """A claim that waits for its commit lends its slot to one in the buffer; the next free slot is its own again."""
    track = Track()
    first, *_ = await track.take(1, 2, 3, 4)
    track.slots.record_step_end_and_lend_slot(first)
    await settled()
    assert track.begun == [1, 2, 3]
    assert (track.queue.running, track.queue.lent, first.has_slot) == (2, 1, False)
    back = asyncio.create_task(track.slots.wait_for_slot_to_continue(first))
    await settled()
    assert not back.done()
    await track.end(2)
    assert back.done()
    assert track.begun == [1, 2, 3]
    assert (track.queue.running, track.queue.lent, first.has_slot) == (2, 0, True)


async def test_a_slot_is_lent_only_while_steps_are_short() -> None:
    """At a slow pace a claim keeps its slot during its commit, and has it when it goes on."""
    track = Track(prefetch=1)
    first, *_ = await track.take(1, 2, 3)
    track.slots.record_step_end_and_lend_slot(first)
    await track.slots.wait_for_slot_to_continue(first)
    assert (track.begun, track.queue.running, track.queue.lent) == ([1, 2], 2, 0)


async def test_a_slot_that_nobody_has_borrowed_comes_back_at_once() -> None:
    """While it is lent the picker may claim a row for it."""
    track = Track()
    (first,) = await track.take(1)
    track.slots.changed.clear()
    track.slots.record_step_end_and_lend_slot(first)
    assert track.slots.changed.is_set()
    await track.slots.wait_for_slot_to_continue(first)
    assert (track.queue.running, track.queue.lent, first.has_slot) == (1, 0, True)


@pytest.mark.parametrize("given", [False, True], ids=["still waiting", "just given"])
async def test_a_slot_is_not_lost_with_the_claim_that_wanted_it(given: bool) -> None:
    """Cancelled while it waits for its slot, or in the moment in which it gets it: the slot is another's."""
    track = Track()
    first, *_ = await track.take(1, 2, 3, 4)
    track.slots.record_step_end_and_lend_slot(first)
    await settled()
    back = asyncio.create_task(track.slots.wait_for_slot_to_continue(first))
    await settled()
    if given:
        track.ends[2].set_result(None)
        await asyncio.sleep(0)  # its task ends,
        await asyncio.sleep(0)  # and its slot is given
        assert (track.queue.running, back.done()) == (2, False)
    back.cancel()
    await settled()
    assert first.task is not None
    first.task.cancel()
    if not given:
        await track.end(2)
    await settled()
    assert track.begun == [1, 2, 3, 4]
    assert (track.queue.running, track.queue.lent) == (2, 0)


async def test_nothing_is_begun_while_stopping() -> None:
    """What has not begun stays in the buffer, to be given back; what runs gets its slot back all the same."""
    track = Track()
    first, _, _, fourth = await track.take(1, 2, 3, 4)
    track.slots.record_step_end_and_lend_slot(first)
    await settled()
    track.slots.stopping = True
    back = asyncio.create_task(track.slots.wait_for_slot_to_continue(first))
    await settled()
    await track.end(2)
    assert back.done()
    await track.end(3)
    assert track.begun == [1, 2, 3]
    assert list(track.queue.buffer) == [fourth]
    track.slots.remove_from_buffer(fourth)
    assert not track.queue.buffer


async def test_an_engine_error_is_reported_and_frees_the_slot() -> None:
    """The runner is given the claim and the error; the next claim starts in the slot."""
    track = Track()
    await track.take(1, 2, 3)
    await track.end(1, ValueError("a bug"))
    assert track.errors == [(1, "ValueError('a bug')")]
    assert track.begun == [1, 2, 3]


async def test_a_buffered_claim_starts_without_a_slot_to_be_cancelled() -> None:
    """It runs at once, out of the buffer, and neither takes a slot nor frees one when it ends."""
    track = Track()
    *_, third, _fourth = await track.take(1, 2, 3, 4)
    track.slots.start_cancel_of_buffered_claim(third)
    await settled()
    assert track.begun == [1, 2, 3]
    assert (track.queue.running, len(track.queue.buffer)) == (2, 1)
    await track.end(3, ValueError("a bug"))
    assert (track.begun, track.queue.running) == ([1, 2, 3], 2)
    assert track.errors == [(3, "ValueError('a bug')")]


async def test_the_buffer_is_ordered_by_priority() -> None:
    """An urgent claim starts before those that were buffered earlier; equal ones keep their order."""
    track = Track()
    await track.take(1, 2, 3, 4)
    await track.take(5, 6, priority=-5)
    await track.take(7)
    assert [active.claim.id for active in track.queue.buffer] == [5, 6, 3, 4, 7]
    await track.end(1)
    await track.end(2)
    assert track.begun == [1, 2, 5, 6]


async def test_claims_that_wait_too_long_are_released_and_none_is_claimed_ahead_until_a_step_ends() -> None:
    """The slots are busy for longer than expected: the buffer is given up, and the queue asks for no more rows."""
    track = Track()
    await track.take(1, 2)
    await track.end(1)
    await track.take(3, 4, 5)
    await asyncio.sleep(RELEASE_SECONDS + 0.05)
    assert (track.released, list(track.queue.buffer), track.queue.release_timer) == ([4, 5], [], None)
    assert track.queue.count_rows_to_pick(1) == 0
    await track.end(2)
    track.queue.adapt_prefetch(asyncio.get_running_loop().time())
    assert track.queue.count_rows_to_pick(1) >= 1


async def test_claims_that_do_not_start_in_time_stop_the_claiming_ahead_of_short_steps(clock: Clock) -> None:
    """Steps are short, but those of chains, which come before the buffer."""
    track = Track(clock=clock)
    *_, third = await track.take(1, 2, 3)
    track.queue.pace.record_step_end(0.0001, clock.now)
    track.queue.adapt_prefetch(clock.now)
    assert track.queue.prefetch > 0
    third.start_by = 0.0
    track.slots._release_overdue_claims(track.queue)
    assert (track.released, track.queue.prefetch) == ([3], 0)


async def test_one_timer_serves_the_buffer_and_is_set_for_the_claim_that_is_due_next(clock: Clock) -> None:
    """When it fires, it releases the claims that are overdue, and is set again for the first of the others."""
    track = Track(clock=clock)
    *_, third, fourth, fifth = await track.take(1, 2, 3, 4, 5)
    timer = track.queue.release_timer
    assert timer is not None
    await track.take(6)
    assert track.queue.release_timer is timer
    timer.cancel()
    third.start_by, fourth.start_by, fifth.start_by = 0.0, clock.now + 2000, clock.now + 1000
    track.queue.buffer.pop()
    began = asyncio.get_running_loop().time()
    track.slots._release_overdue_claims(track.queue)
    assert (track.released, list(track.queue.buffer)) == ([3], [fourth, fifth])
    assert track.queue.release_timer is not timer
    assert track.queue.release_timer is not None
    assert 1000 <= track.queue.release_timer.when() - began < 1100


async def test_claims_ahead_that_the_user_has_asked_for_are_not_released() -> None:
    """A fixed `prefetch` has no timer."""
    track = Track(fixed_prefetch=3)
    await track.take(1, 2, 3)
    assert (len(track.queue.buffer), track.queue.release_timer) == (1, None)


async def test_a_buffered_claim_is_expected_behind_the_buffer_and_the_lent_slots(clock: Clock) -> None:
    """Behind one that is buffered and one that continues, it is the third to start."""
    track = Track(clock=clock)
    await track.take(1, 2, 3)
    track.queue.pace.seconds_per_start = 0.5
    track.queue.lent = 1
    (fourth,) = await track.take(4)
    assert fourth.start_by == pytest.approx(clock.now + 3 * 0.5 + RELEASE_SECONDS)


async def test_a_step_is_measured_from_its_start_or_from_the_commit_before_it(clock: Clock) -> None:
    """Two steps of one claim, of 0.5 and 0.25 s, in a queue that then runs empty."""
    track = Track(prefetch=1, clock=clock)
    (first,) = await track.take(1)
    clock.now += 0.5
    track.slots.record_step_end_and_lend_slot(first)
    clock.now += 0.25
    await track.end(1)
    track.queue.adapt_prefetch(clock.now)
    mean, steps_per_claim = 0.5 + (0.25 - 0.5) / 8, 2
    assert track.queue.pace.seconds_per_start == pytest.approx(mean / 2 * steps_per_claim)


async def test_the_wait_for_a_slot_is_not_part_of_a_step(clock: Clock) -> None:
    """Two steps of 0.5 s, with five seconds between them in which the slot was lent."""
    track = Track(clock=clock)
    (first,) = await track.take(1)
    clock.now += 0.5
    track.slots.record_step_end_and_lend_slot(first)
    clock.now += 5
    await track.slots.wait_for_slot_to_continue(first)
    clock.now += 0.5
    await track.end(1)
    track.queue.adapt_prefetch(clock.now)
    assert track.queue.pace.seconds_per_start == pytest.approx(0.5 / 2 * 2)


async def test_only_a_queue_without_a_free_slot_becomes_slow_while_no_step_ends(clock: Clock) -> None:
    track = Track(clock=clock)
    track.queue.pace.record_step_end(0.0001, clock.now)
    track.queue.pace.record_empty_buffer()
    await track.take(1)
    clock.now += 1
    track.queue.adapt_prefetch(clock.now)
    assert track.queue.prefetch > 0
    await track.take(2)
    track.queue.adapt_prefetch(clock.now)
    assert track.queue.prefetch == 0


async def test_a_fixed_prefetch_does_not_follow_the_pace() -> None:
    queue = QueueSlots(2, 3)
    queue.adapt_prefetch(time.monotonic())
    assert (queue.prefetch, queue.has_adaptive_prefetch, queue.may_lend_slots) == (3, False, False)
    assert QueueSlots(2, None).has_adaptive_prefetch is True


def test_the_capacity_is_what_slots_and_buffer_have_left() -> None:
    """Claims that run, that wait for a commit, or that are buffered take it up. Only a slot starts a claim at once."""
    assert QueueSlots(10, None).remaining_capacity == 10
    queue = QueueSlots(10, 4)
    queue.running, queue.lent = 3, 2
    queue.buffer.append(cast(Any, "a claim"))
    assert (queue.remaining_capacity, queue.free_count) == (8, 4)
    queue.running = 9
    assert (queue.remaining_capacity, queue.free_count) == (2, 0)


def test_a_full_queue_picks_no_fewer_rows_than_half_its_prefetch() -> None:
    """A queue with an idle slot picks what it can, no queue picks less than `least`, and none more than the maximum."""
    queue = QueueSlots(2, 12)
    queue.running, queue.lent = 2, 6
    assert queue.count_rows_to_pick(1) == 6
    assert queue.count_rows_to_pick(7) == 0
    queue.lent = 7
    assert queue.count_rows_to_pick(1) == 0
    queue.running = 1
    assert queue.count_rows_to_pick(6) == 6
    assert queue.count_rows_to_pick(7) == 0
    queue.lent = 8
    assert queue.count_rows_to_pick(1) == 5
    queue.buffer.append(cast(Any, "a claim"))
    assert queue.count_rows_to_pick(1) == 0
    assert QueueSlots(2, 3 * MAX_PICK).count_rows_to_pick(1) == MAX_PICK


def test_a_pick_answers_all_reasons_for_it() -> None:
    """A new queue has a reason, but expects no row."""
    queue = QueueSlots(2, None)
    assert (queue.has_work, queue.clear_pick_reasons_and_get_expected()) == (True, 0)
    assert (queue.has_work, queue.clear_pick_reasons_and_get_expected()) == (False, 0)
    queue.expected, queue.due_at = 3, 5.0
    assert queue.clear_pick_reasons_and_get_expected() == 3
    assert (queue.expected, queue.due_at) == (0, NEVER)


async def test_a_free_slot_is_a_reason_to_pick_if_rows_wait_for_one() -> None:
    track = Track()
    track.queue.clear_pick_reasons_and_get_expected()
    await track.take(1, 2)
    await track.end(1)
    assert not track.queue.has_work
    track.queue.needs_slot = True
    await track.end(2)
    assert (track.queue.has_work, track.queue.needs_slot) == (True, False)


async def test_the_picker_is_woken_for_the_row_that_is_due_next(clock: Clock) -> None:
    """Not for later rows. Rows of other queues are due for other workers, which are woken."""
    track = Track(clock=clock)
    track.slots.schedule_pick_or_wake_others("q", 5.0)
    assert (track.queue.due_at, track.slots.changed.is_set()) == (105.0, True)
    track.slots.changed.clear()
    track.slots.schedule_pick_or_wake_others("q", 7.0)
    assert (track.queue.due_at, track.slots.changed.is_set()) == (105.0, False)
    track.slots.schedule_pick_or_wake_others("q", 3.0)
    assert (track.queue.due_at, track.slots.changed.is_set()) == (103.0, True)
    assert track.woken == []
    track.slots.schedule_pick_or_wake_others("elsewhere", 1.0)
    assert (track.woken, track.queue.due_at) == (["elsewhere"], 103.0)


async def test_a_request_for_picks_wakes_the_picker_for_every_queue() -> None:
    track = Track()
    track.queue.clear_pick_reasons_and_get_expected()
    track.slots.request_pick_of_every_queue()
    assert track.queue.has_work
    assert track.slots.changed.is_set()


async def test_only_a_buffered_claim_is_taken_out_of_the_buffer() -> None:
    """One that runs is left alone, and so is one of a queue that this worker does not serve."""
    track = Track()
    first, *_, third = await track.take(1, 2, 3)
    track.slots.remove_from_buffer(first)
    first.claim.queue = "elsewhere"
    track.slots.remove_from_buffer(first)
    first.claim.queue = "q"
    assert list(track.queue.buffer) == [third]


@pytest.mark.parametrize("mark", ["none", "interrupted", "outcome"])
async def test_a_cancelled_task_is_reported_unless_its_claim_is_taken_care_of(mark: str) -> None:
    """Neither a task that the engine has interrupted is reported, nor one whose outcome is with the committer."""
    track = Track()
    (first,) = await track.take(1)
    first.claim.is_interrupted, first.has_outcome = mark == "interrupted", mark == "outcome"
    assert first.task is not None
    first.task.cancel()
    await settled()
    assert track.errors == ([(1, "cancelled")] if mark == "none" else [])
    assert track.queue.running == 0
