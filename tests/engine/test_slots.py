"""QueueSlots: who runs in the slots of a queue, and who comes next."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gen_durable.engine.claims import ActiveClaim
from gen_durable.engine.slots import QueueSlots, Slots


class Track:
    """One lane with two slots, and claims that run until they are told to end."""

    def __init__(self, *, ahead: int = 2) -> None:
        self.lane = QueueSlots("q", 2, None)
        self.lane.ahead = ahead  # as many as there are slots: steps are short, and slots are lent
        self.tasks: set[asyncio.Task[None]] = set()
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.given_back: list[tuple[int, str]] = []
        self.told = 0
        self.lanes = Slots(
            {"q": self.lane}, self.tasks, claim=self._claim, give_back=self._give_back, on_free=self._on_free
        )

    async def _claim(self, held: ActiveClaim) -> None:
        self.begun.append(held.claim.id)
        self.ends[held.claim.id] = asyncio.get_running_loop().create_future()
        await self.ends[held.claim.id]

    def _give_back(self, held: ActiveClaim, reason: str) -> None:
        self.given_back.append((held.claim.id, reason))

    def _on_free(self) -> None:
        self.told += 1

    async def take(self, *ids: int) -> list[ActiveClaim]:
        """Claims come in; those that have a slot begin."""
        entry = cast(Any, SimpleNamespace(spec=SimpleNamespace(is_async=True)))
        several = [ActiveClaim(cast(Any, SimpleNamespace(id=i, queue="q")), entry, extended=0.0) for i in ids]
        for held in several:
            self.lanes.take(held)
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
    assert (track.begun, track.told) == ([1, 2, 3], 1)
    await track.end(1)
    await track.end(3)
    await track.end(4)
    assert (track.begun, track.told) == ([1, 2, 3, 4], 4)
    assert (track.lane.running, track.lane.lent, track.tasks) == (0, 0, set())


async def test_a_slot_that_is_wanted_back_comes_before_the_buffer() -> None:
    """A claim that waits for its commit lends its slot to one in the buffer; the next free slot is its own again."""
    track = Track()
    first, *_ = await track.take(1, 2, 3, 4)
    track.lanes.lend(first)
    await settled()
    assert track.begun == [1, 2, 3]
    assert (track.lane.running, track.lane.lent, first.slot) == (2, 1, False)
    back = asyncio.create_task(track.lanes.take_back(first))
    await settled()
    assert not back.done()
    await track.end(2)
    assert back.done()
    assert track.begun == [1, 2, 3]
    assert (track.lane.running, track.lane.lent, first.slot) == (2, 0, True)


async def test_a_slot_is_lent_only_while_steps_are_short() -> None:
    """At a slow pace a claim keeps its slot during its commit, and has it when it goes on."""
    track = Track(ahead=1)
    first, *_ = await track.take(1, 2, 3)
    track.lanes.lend(first)
    await track.lanes.take_back(first)
    assert (track.begun, track.lane.running, track.lane.lent) == ([1, 2], 2, 0)


@pytest.mark.parametrize("given", [False, True], ids=["still waiting", "just given"])
async def test_a_slot_is_not_lost_with_the_claim_that_wanted_it(given: bool) -> None:
    """Cancelled while it waits for its slot, or in the moment in which it gets it: the slot is another's."""
    track = Track()
    first, *_ = await track.take(1, 2, 3, 4)
    track.lanes.lend(first)
    await settled()
    back = asyncio.create_task(track.lanes.take_back(first))
    await settled()
    if given:
        track.ends[2].set_result(None)
        await asyncio.sleep(0)  # its task ends,
        await asyncio.sleep(0)  # and its slot is given
        assert (track.lane.running, back.done()) == (2, False)
    back.cancel()
    await settled()
    assert first.task is not None
    first.task.cancel()
    if not given:
        await track.end(2)
    await settled()
    assert track.begun == [1, 2, 3, 4]
    assert (track.lane.running, track.lane.lent) == (2, 0)


async def test_nothing_is_begun_while_stopping() -> None:
    """What has not begun stays in the buffer, to be given back; what runs gets its slot back all the same."""
    track = Track()
    first, _, _, fourth = await track.take(1, 2, 3, 4)
    track.lanes.lend(first)
    await settled()
    track.lanes.stopping = True
    back = asyncio.create_task(track.lanes.take_back(first))
    await settled()
    await track.end(2)
    assert back.done()
    await track.end(3)
    assert track.begun == [1, 2, 3]
    assert list(track.lane.buffer) == [fourth]
    track.lanes.drop(fourth)
    assert not track.lane.buffer


async def test_a_claim_that_breaks_is_given_back(caplog: pytest.LogCaptureFixture) -> None:
    """An error of the engine in the life of a claim is logged, and its row is put back; its words are not told."""
    track = Track()
    await track.take(1, 2, 3)
    await track.end(1, ValueError("a bug"))
    assert track.given_back == [(1, "an error of the engine: ValueError")]
    assert "instance 1: ValueError\n" in caplog.text
    assert "ValueError: a bug" not in caplog.text
    assert track.begun == [1, 2, 3]
