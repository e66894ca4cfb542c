"""QueueSlots: who runs in the slots of a queue, and who comes next."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.slots import RELEASE_SECONDS, Slots
from gen_durable.engine.task_set import TaskSet


class Track:
    """One queue with two slots, and claims that run until the test ends them."""

    def __init__(self, *, prefetch: int = 2) -> None:
        self.test = asyncio.current_task()
        self.tasks = TaskSet()
        self.slots = Slots({"q": 2}, None, tasks=self.tasks, notifier=cast(Any, None))
        self.slots.runner = self
        self.queue = self.slots.queues["q"]
        self.queue.prefetch = prefetch  # as many as there are slots: steps are short, and slots are lent
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.errors: list[tuple[int, str]] = []
        self.released: list[int] = []

    async def run(self, active: ActiveClaim) -> None:
        self.begun.append(active.claim.id)
        self.ends[active.claim.id] = asyncio.get_running_loop().create_future()
        try:
            await self.ends[active.claim.id]
        except asyncio.CancelledError:
            if self.test is not None and self.test.done():
                self.slots.stopping = True  # its loop would never run another claim
            raise

    def handle_engine_error(self, active: ActiveClaim, error: BaseException) -> None:
        self.errors.append((active.claim.id, repr(error)))

    def release_unstarted(self, claims: list[ActiveClaim]) -> None:
        self.released += [active.claim.id for active in claims]

    def handle_stray_cancellation(self, active: ActiveClaim) -> None:
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
            self.slots.start(held, time.monotonic())
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
    track.slots.lend_slot(first)
    await settled()
    assert track.begun == [1, 2, 3]
    assert (track.queue.running, track.queue.lent, first.has_slot) == (2, 1, False)
    back = asyncio.create_task(track.slots.regain_slot(first))
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
    track.slots.lend_slot(first)
    await track.slots.regain_slot(first)
    assert (track.begun, track.queue.running, track.queue.lent) == ([1, 2], 2, 0)


@pytest.mark.parametrize("given", [False, True], ids=["still waiting", "just given"])
async def test_a_slot_is_not_lost_with_the_claim_that_wanted_it(given: bool) -> None:
    """Cancelled while it waits for its slot, or in the moment in which it gets it: the slot is another's."""
    track = Track()
    first, *_ = await track.take(1, 2, 3, 4)
    track.slots.lend_slot(first)
    await settled()
    back = asyncio.create_task(track.slots.regain_slot(first))
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
    track.slots.lend_slot(first)
    await settled()
    track.slots.stopping = True
    back = asyncio.create_task(track.slots.regain_slot(first))
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
    track.slots.start_to_cancel(third)
    await settled()
    assert track.begun == [1, 2, 3]
    assert (track.queue.running, len(track.queue.buffer)) == (2, 1)
    await track.end(3)
    assert (track.begun, track.queue.running) == ([1, 2, 3], 2)


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
    assert (track.released, list(track.queue.buffer)) == ([4, 5], [])
    assert track.queue.count_rows_to_pick(1) == 0
    await track.end(2)
    track.queue.adapt_prefetch(asyncio.get_running_loop().time())
    assert track.queue.count_rows_to_pick(1) >= 1
