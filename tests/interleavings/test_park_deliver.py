"""Parking against delivery: whatever the order, a signal that has come wakes whoever waits for it."""

from __future__ import annotations

import pytest
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, parked, signal

from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

GO = OutgoingSignal(1, None, "go", "1", None)
PARK = Commit(1, 1, 0, "await", step="woken", delay=None, extra='{"awaits": ["go"], "seen": []}')
PARK_AGAIN = Commit(1, 1, 0, "await", delay=None, extra='{"awaits": ["go"], "seen": [7]}')
DONE = Commit(1, 1, 0, "done", value="1")


def woken(end: End) -> None:
    assert end.rows[1]["status"] == "runnable", "the instance sleeps although its signal has come"
    assert end.rows[1]["has_signals"]
    assert end.right[0][0][:2] == (1, "delivered")
    assert "default" in {end.right[0][0][2], *end.left[0].follow_ups.queues}, "nobody was told of the woken row"


async def test_park_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """A parking flush and a delivery, in every order: the signal is stored and the instance is runnable."""
    async with exploring() as explorer:
        report = await explorer.explore(executing(1), [calls.flush([PARK])], [calls.signal([GO])], woken, begin=True)
    assert report.faults == []
    assert report.schedules > 20


async def test_park_deliver_without_waiting(exploring: Exploring, calls: StatementBuilder) -> None:
    """A delivery that skips locked rows is refused as locked, and stores nothing, or wakes the instance."""

    def woken_or_skipped(end: End) -> None:
        if end.right[0][0][1] == "locked":
            assert end.signals == []
            assert end.rows[1]["status"] == "awaiting_signal"
        else:
            woken(end)

    deliver = calls.signal([GO], skip_locked=True)
    async with exploring() as explorer:
        report = await explorer.explore(executing(1), [calls.flush([PARK])], [deliver], woken_or_skipped, begin=True)
    assert report.faults == []
    assert report.schedules > 20


async def test_park_again_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """A step that was shown a signal parks again: that one does not wake it, the next one does, in every order."""
    given = executing(1) + signal(7, 1)
    async with exploring() as explorer:
        report = await explorer.explore(given, [calls.flush([PARK_AGAIN])], [calls.signal([GO])], woken)
    assert report.faults == []


async def test_deliver_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two deliveries of one dedup key: one is delivered and wakes, the other is a duplicate."""

    def once(end: End) -> None:
        assert sorted([end.left[0][0][1], end.right[0][0][1]]) == ["delivered", "duplicate"]
        assert len(end.signals) == 1
        assert end.rows[1]["status"] == "runnable"

    same = [calls.signal([OutgoingSignal(1, None, "go", None, "event-7")])]
    async with exploring() as explorer:
        report = await explorer.explore(parked(1), same, same, once)
    assert report.faults == []


async def test_end_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """An instance ends while it is sent a signal: it is refused, or kept with the ended instance."""

    def kept(end: End) -> None:
        assert end.rows[1]["status"] == "done"
        assert (end.right[0][0][1], len(end.signals)) in (("delivered", 1), ("no_target", 0))

    async with exploring() as explorer:
        report = await explorer.explore(executing(1), [calls.flush([DONE])], [calls.signal([GO])], kept)
    assert report.faults == []


async def test_claim_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """A deadline falls due while the signal comes: the row is claimed or runnable, and the signal is there."""

    def there(end: End) -> None:
        assert end.right[0][0][:2] == (1, "delivered")
        assert len(end.signals) == 1
        claims = end.left[0].claims
        assert end.rows[1]["status"] == ("executing" if claims else "runnable")

    given = parked(1) + ("update @schema.instances set await_deadline = now() - interval '1 second' where id = 1;")
    picks = [calls.pick("w", {"default": 1}, ["m/1/s"], 60)]
    async with exploring() as explorer:
        report = await explorer.explore(given, picks, [calls.signal([GO])], there)
    assert report.faults == []


LOCK = "where i.id = any (resolved) order by i.id for no key update"


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(Cure("signal", LOCK, LOCK.removesuffix(" for no key update")), id="no-lock"),
        pytest.param(Cure("flush", "more := @schema.wake_if_signal_came(parked_places);"), id="no-recheck"),
        pytest.param(Cure("signal", "has_signals = true,", "has_signals = i.has_signals,"), id="no-flag"),
    ],
)
async def test_without_its_cure_a_wakeup_is_lost(exploring: Exploring, calls: StatementBuilder, cure: Cure) -> None:
    """With either half of the cure taken out, some schedule leaves the instance asleep, or without its signal."""
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            executing(1), [calls.flush([PARK])], [calls.signal([GO])], woken, begin=True, first_fault=True
        )
    assert len(report.faults) == 1


async def test_without_seen_a_pack_spins(exploring: Exploring, calls: StatementBuilder) -> None:
    """Without the list of signals already shown, parking again wakes on the same signal at once."""

    def asleep(end: End) -> None:
        assert end.rows[1]["status"] == "awaiting_signal"

    cure = Cure("wake_if_signal_came", "\n        and signal.id <> all (i.seen)")
    other = calls.signal([OutgoingSignal(1, None, "other", None, None)])
    given = executing(1) + signal(7, 1)
    async with exploring() as explorer:
        assert (await explorer.explore(given, [calls.flush([PARK_AGAIN])], [other], asleep)).faults == []
    async with exploring(cure) as explorer:
        report = await explorer.explore(given, [calls.flush([PARK_AGAIN])], [other], asleep, first_fault=True)
    assert len(report.faults) == 1


async def test_take_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """A step takes the first of two signals and waits for more, while a third is sent: the second wakes it at once.

    What it took is gone, what it did not take and what came since are there, in every order.
    """

    def woken_by_the_rest(end: End) -> None:
        assert end.rows[1]["status"] == "runnable"
        assert end.right[0][0][:2] == (1, "delivered")
        assert [s["id"] for s in end.signals][:1] == [8]
        assert len(end.signals) == 2

    took = Commit(1, 1, 0, "await", delay=None, extra='{"awaits": ["go"], "seen": [], "consumed": [7]}')
    given = executing(1, awaits=["go"]) + signal(7, 1) + signal(8, 1)
    async with exploring() as explorer:
        report = await explorer.explore(given, [calls.flush([took])], [calls.signal([GO])], woken_by_the_rest)
    assert report.faults == []
    assert report.schedules > 4
