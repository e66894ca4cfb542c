"""Retention against the living: what is deleted had ended, and nobody writes to it afterwards."""

from __future__ import annotations

from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import ended, executing

from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

GO = OutgoingSignal(1, None, "go", None, None)


async def test_gc_signal(exploring: Exploring, calls: StatementBuilder) -> None:
    """A signal to an instance that is being deleted: no target, no error, no signal left over."""

    def gone(end: End) -> None:
        assert end.right[0] == [(None, "no_target", None)]
        assert end.signals == []
        assert len(end.rows) == 1 - end.left[0].deleted

    async with exploring() as explorer:
        report = await explorer.explore(ended(1), [calls.gc(60, 60, 60, 10)], [calls.signal([GO])], gone, begin=True)
    assert report.faults == []


async def test_gc_gc(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two collectors at once delete each row once and never wait for each other."""

    def once(end: End) -> None:
        assert (end.left[0].deleted + end.right[0].deleted, end.rows) == (2, {})

    given = ended(1) + ended(2)
    async with exploring() as explorer:
        report = await explorer.explore(given, [calls.gc(60, 60, 60, 10)], [calls.gc(60, 60, 60, 10)], once, begin=True)
    assert report.faults == []


FAMILY = executing(1, round=1) + ended(2, parent_id=1, parent_round=1)


async def test_gc_end_of_parent(exploring: Exploring, calls: StatementBuilder) -> None:
    """A parent ends while its old child is looked at: the child goes only when the parent has ended."""

    def spared(end: End) -> None:
        assert end.rows[1]["status"] == "done"
        assert (2 in end.rows) == (end.left[0].deleted == 0)

    done = Commit(1, 1, 0, "done", value="1")
    async with exploring() as explorer:
        report = await explorer.explore(FAMILY, [calls.gc(60, 60, 60, 10)], [calls.flush([done])], spared, begin=True)
    assert report.faults == []


async def test_gc_claim_of_parent(exploring: Exploring, calls: StatementBuilder) -> None:
    """A parent that is about to read its children finds them, whatever the collector does meanwhile."""

    def reads(end: End) -> None:
        (claim,) = end.right[0].claims
        assert [child.id for child in claim.children] == [2]
        assert 2 in end.rows

    given = (
        "insert into @schema.instances (id, fsm, step, round, joined) overriding system value"
        " values (1, 'm', 's', 1, true);" + ended(2, parent_id=1, parent_round=1)
    )
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.gc(60, 60, 60, 10)], [calls.pick("w", {"default": 1}, ["m/1/s"], 60)], reads, begin=True
        )
    assert report.faults == []


async def test_a_signal_without_its_lock_meets_the_collector(exploring: Exploring, calls: StatementBuilder) -> None:
    """Without the look at finished_at, a signal is delivered to a row that is being deleted."""
    cure = Cure(
        "signal", "where i.ctid = any (locked_places) and i.finished_at is null", "where i.ctid = any (locked_places)"
    )

    def gone(end: End) -> None:
        assert end.right[0] == [(None, "no_target", None)]

    async with exploring(cure) as explorer:
        report = await explorer.explore(
            ended(1), [calls.gc(60, 60, 60, 10)], [calls.signal([GO])], gone, first_fault=True
        )
    assert len(report.faults) == 1
