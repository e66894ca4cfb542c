"""Rejecting, restoring and deleting signals against deliveries and outcomes."""

from __future__ import annotations

import pytest
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, instance, parked, signal

from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

GO = OutgoingSignal(1, None, "go", "1", None)
WAITING = executing(1, awaits=["go"]) + signal(7, 1)
REJECTED = {"consumed": True, "rejection": "no", "rejected_by": ["old"], "dedup_key": "d"}


def reject(calls: StatementBuilder) -> Statement[object]:
    return InboxStatementBuilder(calls.schema).reject_signals_and_release_claims(1, 1, [7], ["no"], "old")


def woken(end: End) -> None:
    assert end.rows[1]["status"] == "runnable", "the instance sleeps although its signal has come"
    assert (end.signals[0]["id"], end.signals[0]["rejection"]) == (7, "no")
    assert end.right[0][0][:2] == (1, "delivered")


async def test_reject_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """A signal comes while the only other one is rejected: the row does not wait beside it."""
    async with exploring() as explorer:
        report = await explorer.explore(WAITING, [reject(calls)], [calls.signal([GO])], woken, begin=True)
    assert report.faults == []
    assert report.schedules > 4


async def test_without_the_lock_a_signal_is_slept_on(exploring: Exploring, calls: StatementBuilder) -> None:
    cure = Cure(
        "reject_signals_and_release_claims",
        "where i.id = any (ids) order by i.id for no key update",
        "where i.id = any (ids)",
    )
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            WAITING, [reject(calls)], [calls.signal([GO])], woken, begin=True, first_fault=True
        )
    assert len(report.faults) == 1


async def test_reject_flush(exploring: Exploring, calls: StatementBuilder) -> None:
    """An outcome and a rejection of one claim: one of them counts."""

    def one(end: End) -> None:
        status = end.rows[1]["status"]
        assert status in ("done", "awaiting_signal")
        assert (status == "done") == (end.left[0].ids == frozenset()) == (end.right[0].stale_ids == frozenset())

    done = calls.flush([Commit(1, 1, 0, "done", value="1")])
    async with exploring() as explorer:
        report = await explorer.explore(WAITING, [reject(calls)], [done], one)
    assert report.faults == []


@pytest.mark.parametrize("by", ["operator", "worker"])
async def test_restore_deliver(exploring: Exploring, calls: StatementBuilder, by: str) -> None:
    """A signal with the dedup key of one that is restored: one of the two has the key, and the row is woken."""
    admin = InboxStatementBuilder(calls.schema)
    restore = (
        admin.restore_signals([7])
        if by == "operator"
        else admin.retry_signals_others_rejected([("m", 1, "new")], (0, 0), 10)
    )

    def once(end: End) -> None:
        verdict = end.right[0][0][1]
        valid = [s for s in end.signals if s["rejection"] is None]
        assert len(valid) == 1
        assert (verdict == "delivered") == (valid[0]["id"] != 7)
        assert end.rows[1]["status"] == "runnable"

    again = calls.signal([OutgoingSignal(1, None, "go", "1", "d")])
    async with exploring() as explorer:
        report = await explorer.explore(parked(1) + signal(7, 1, **REJECTED), [restore], [again], once, begin=True)
    assert report.faults == []
    assert report.schedules > 2


async def test_restore_restore(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two rejected signals with one dedup key, restored at once: one returns."""

    def one(end: End) -> None:
        assert sorted([end.left[0][0][0], end.right[0][0][0]]) == ["duplicate", "restored"]

    admin = InboxStatementBuilder(calls.schema)
    given = parked(1) + signal(7, 1, **REJECTED) + signal(8, 1, **REJECTED)
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [admin.restore_signals([7])], [admin.restore_signals([8])], one, begin=True
        )
    assert report.faults == []


async def test_delete_signals_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """An inbox is emptied while a signal comes: the row waits if and only if nothing is left for it."""

    def consistent(end: End) -> None:
        assert (end.rows[1]["status"] == "runnable") == (len(end.signals) == 1)
        assert 7 not in {s["id"] for s in end.signals}

    given = instance(1, awaits=["go"], claims=1, seq=1) + signal(7, 1)
    empty = InboxStatementBuilder(calls.schema).delete_signals(1, None, None)
    async with exploring() as explorer:
        report = await explorer.explore(given, [empty], [calls.signal([GO])], consistent, begin=True)
    assert report.faults == []
    assert report.schedules > 2


async def test_delete_signals_claim(exploring: Exploring, calls: StatementBuilder) -> None:
    """An inbox is emptied while its row is claimed: the claim has the signal, or the row waits."""

    def consistent(end: End) -> None:
        claims = end.right[0].claims
        assert end.rows[1]["status"] == ("executing" if claims else "awaiting_signal")
        assert end.signals == []

    given = instance(1, awaits=["go"], claims=1, seq=1) + signal(7, 1)
    empty = InboxStatementBuilder(calls.schema).delete_signals(1, None, None)
    picks = [calls.pick("w", {"default": 1}, ["m/1/s"], 60)]
    async with exploring() as explorer:
        report = await explorer.explore(given, [empty], picks, consistent)
    assert report.faults == []
