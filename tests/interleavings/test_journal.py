"""What a step writes before its outcome, against those who take its claim away: it counts, or its writer is told."""

from __future__ import annotations

import pytest
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import ended, executing, seconds

from gen_durable.store.journal import Fence, JournalStatementBuilder, ProgressReport
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit

EXPIRED = executing(1, lease_expires_at=seconds(-1))
FENCE = Fence(1, 1, 0)


@pytest.fixture
def journal(calls: StatementBuilder) -> JournalStatementBuilder:
    return JournalStatementBuilder(calls.schema)


def accepted_is_seen(end: End) -> None:
    """Who claims the row next has the checkpoint if its writer was told that it counts, and else not."""
    reaped, picked = end.left
    accepted = end.right[0]
    assert bool(end.checkpoints) == accepted
    for claim in picked.claims:
        assert (claim.journal is not None) == accepted, f"accepted {accepted}, the next claim has {claim.journal}"
    assert accepted or reaped.claims


async def test_reap_checkpoint(exploring: Exploring, calls: StatementBuilder, journal: JournalStatementBuilder) -> None:
    """A lease runs out as a checkpoint is written: the next claim sees it, or its writer has lost the claim."""
    left = [calls.reap(10, None), calls.pick("w", {"default": 1}, ["m/1/s"], 60)]
    async with exploring() as explorer:
        report = await explorer.explore(
            EXPIRED, left, [journal.record_checkpoint(FENCE, "1")], accepted_is_seen, begin=True
        )
    assert report.faults == []
    assert report.schedules > 10


async def test_a_fence_without_a_lock_loses_a_checkpoint(
    exploring: Exploring, calls: StatementBuilder, journal: JournalStatementBuilder
) -> None:
    """Merely looked at, the claim may be gone before the write is committed: it is accepted and nobody sees it."""
    left = [calls.reap(10, None), calls.pick("w", {"default": 1}, ["m/1/s"], 60)]
    async with exploring(Cure("lock_row_for_journal", "\n  for no key update")) as explorer:
        report = await explorer.explore(
            EXPIRED, left, [journal.record_checkpoint(FENCE, "1")], accepted_is_seen, first_fault=True
        )
    assert len(report.faults) == 1


async def test_progress_flush(exploring: Exploring, calls: StatementBuilder, journal: JournalStatementBuilder) -> None:
    """Reports of two rows while their outcomes commit: nobody waits for the other in a circle, the outcomes stand."""

    def stands(end: End) -> None:
        assert [end.rows[i]["status"] for i in (1, 2)] == ["done", "done"]
        assert end.right[0].stale_ids == set()
        locked = end.left[0]
        assert {row["instance_id"] for row in end.progress} == {1, 2} - locked

    both = [ProgressReport(i, 1, "s", "", 0.5, None, None) for i in (1, 2)]
    done = [Commit(i, 1, 0, "done", value="1") for i in (1, 2)]
    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1) + executing(2), [journal.record_progress(both)], [calls.flush(done)], stands, begin=True
        )
    assert report.faults == []


async def test_progress_gc(exploring: Exploring, calls: StatementBuilder, journal: JournalStatementBuilder) -> None:
    """A last report meets retention: no report is left of an instance that is gone (the doctor looks)."""

    def whole(end: End) -> None:
        assert {row["instance_id"] for row in end.progress} <= set(end.rows)

    async with exploring() as explorer:
        report = await explorer.explore(
            ended(1),
            [journal.record_progress([ProgressReport(1, 1, "s", "", 1.0, None, None)])],
            [calls.gc(60, 60, 60, 10)],
            whole,
            begin=True,
        )
    assert report.faults == []
