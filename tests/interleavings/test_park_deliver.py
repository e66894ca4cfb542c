"""Parking against delivery: whatever the order, a signal that has come wakes whoever waits for it."""

from __future__ import annotations

import pytest

from gen_durable.store.calls import Calls
from gen_durable.store.rows import Commit, Delivery
from tests.interleavings.breakpoints import Cure
from tests.interleavings.conftest import Exploring
from tests.interleavings.explorer import End
from tests.interleavings.given import executing

PARK = Commit(1, 1, 0, "await", step="woken", delay=None, extra='{"awaits": ["go"], "seen": []}')
DELIVERY = Delivery(1, None, "go", "1", None)


def woken(end: End) -> None:
    assert end.rows[1]["status"] == "runnable", "the instance sleeps although its signal has come"
    assert [s["name"] for s in end.signals] == ["go"]
    assert end.right == [[(1, "delivered", end.right[0][0][2])]]


async def test_park_deliver(exploring: Exploring, calls: Calls) -> None:
    """A parking flush and a delivery, in every order: the signal is stored and the instance is runnable."""
    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1), [calls.flush([PARK])], [calls.signal([DELIVERY])], woken, begin=True
        )
        assert report.faults == []
        assert report.schedules > 10
