"""What happens without an outcome, beside outcomes and deliveries: the history has it exactly if it took effect."""

from __future__ import annotations

from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.machine import park
from tests.support.rows import executing, instance, seconds

from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

LINE = "-1\t0\t0\tN\ts\tt\t1\t0\t0\tstart\tw\n"
RAN = f"update @schema.instances set history = E'{LINE.encode('unicode_escape').decode()}';"
PARKED = instance(1, status="awaiting_signal", seq=1, claims=1, awaits="{go}", seen="{}") + RAN
EXPIRED = executing(1, seq=1, lease_expires_at=seconds(-1)) + RAN


def cancel_is_told_once(end: End) -> None:
    row = end.rows[1]
    ended_waiting = row["status"] == "cancelled"
    assert [t["outcome"] for t in end.transitions] == ["Cancel"] * ended_waiting
    if ended_waiting:
        assert (end.transitions[0]["seq"], end.transitions[0]["n"]) == (row["seq"], row["claims"])


async def test_cancel_of_a_waiting_row_beside_a_signal(exploring: Exploring, calls: StatementBuilder) -> None:
    """A cancel meets the signal that the row waits for: in both orders it ends, and its history says so once."""
    go = OutgoingSignal(1, None, "go", "1", None)
    async with exploring() as explorer:
        report = await explorer.explore(
            PARKED,
            [calls.cancel([(1, None)], "why", cascade=True)],
            [calls.signal([go])],
            cancel_is_told_once,
            begin=True,
        )
    assert report.faults == []


async def test_cancel_beside_the_flush_that_parks(exploring: Exploring, calls: StatementBuilder) -> None:
    """A cancel meets the outcome that parks the row: it ends the parked row, which is told, or leaves a request."""
    commit = park(1, "go")
    commit.seq, commit.ran_step = 1, "s"
    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1, seq=1) + RAN,
            [calls.cancel([(1, None)], "why", cascade=True)],
            [calls.flush([commit], "w")],
            cancel_is_told_once,
            begin=True,
        )
    assert report.faults == []
    assert len(report.ends) == 2


async def test_two_cancels_are_told_once(exploring: Exploring, calls: StatementBuilder) -> None:
    async with exploring() as explorer:
        cancel = [calls.cancel([(1, None)], "why", cascade=True)]
        report = await explorer.explore(PARKED, cancel, cancel, cancel_is_told_once, begin=True)
    assert report.faults == []


def crash_or_outcome(end: End) -> None:
    """The history has the crash if the claim was taken back, and the late outcome if not; never both or none."""
    reaped, stale = bool(end.left[0].claims), bool(end.right[0].stale_ids)
    lines = end.rows[1]["history"].count("\n")
    assert [(t["seq"], t["outcome"]) for t in end.transitions] == [(1, "Crashed")] * reaped
    assert (reaped, lines) in ((True, 1), (False, 2)), f"reaped {reaped}, stale {stale}, {lines} lines"


LATE = Commit(1, 1, 1, "next", step="t", value="1", ran_step="s")


async def test_reap_late_outcome(exploring: Exploring, calls: StatementBuilder) -> None:
    """A lease runs out as the outcome comes: the history has the one that counts."""
    async with exploring() as explorer:
        report = await explorer.explore(
            EXPIRED, [calls.reap(10, None)], [calls.flush([LATE], "w")], crash_or_outcome, begin=True
        )
    assert report.faults == []


async def test_a_reap_that_does_not_look_again_tells_of_a_crash_that_was_none(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    """The lease is read again under the lock; without that the outcome and a crash are both in the history."""
    async with exploring(Cure("reap", "where i.id = any (candidates) and i.lease_expires_at < now()")) as explorer:
        report = await explorer.explore(
            EXPIRED, [calls.reap(10, None)], [calls.flush([LATE], "w")], crash_or_outcome, first_fault=True
        )
    assert len(report.faults) == 1
