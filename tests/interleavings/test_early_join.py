"""Barriers that open before all children have ended, against the ends of the others."""

from __future__ import annotations

from tests.interleavings.test_claim_claim import KNOWN
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, parent, seconds

from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit


def child(id: int, of: int = 1) -> str:  # noqa: A002  # the column's name
    return executing(id, parent_id=of, parent_round=1)


def ends(id: int, kind: str = "done") -> Commit:  # noqa: A002
    return Commit(id, 1, 0, kind, value="1", error="no", parent=1)


def opened(end: End) -> None:
    """The parent went on once, waits for nobody, and was not disturbed by what came later."""
    row = end.rows[1]
    assert (row["status"], row["children_pending"], row["joined"]) == ("runnable", 0, True)
    assert sum("default" in f.follow_ups.queues for f in (*end.left, *end.right)) == 1


async def test_join_early(exploring: Exploring, calls: StatementBuilder) -> None:
    """join="any": the first that is done opens the barrier, the last one's end disturbs nobody."""
    given = parent(1, pending=2, children_needed=1) + child(2) + child(3)
    async with exploring() as explorer:
        report = await explorer.explore(given, [calls.flush([ends(2)])], [calls.flush([ends(3)])], opened, begin=True)
    assert report.faults == []


async def test_join_early_by_a_failure(exploring: Exploring, calls: StatementBuilder) -> None:
    """One fails and one is done, with on_child_failure="cancel_rest": opened once, whoever comes first."""

    def once(end: End) -> None:
        opened(end)
        assert {r["status"] for i, r in end.rows.items() if i in (2, 3)} == {"done", "failed"}

    given = parent(1, pending=3, on_failure="cancel_rest") + child(2) + child(3) + child(4)
    async with exploring() as explorer:
        report = await explorer.explore(given, [calls.flush([ends(2, "fail")])], [calls.flush([ends(3)])], once)
    assert report.faults == []


async def test_join_early_when_too_few_are_left(exploring: Exploring, calls: StatementBuilder) -> None:
    """join=2 of 3: two fail at once, the third still runs."""
    given = parent(1, pending=3, children_needed=2) + child(2) + child(3) + child(4)
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.flush([ends(2, "fail")])], [calls.flush([ends(3, "fail")])], opened
        )
    assert report.faults == []


async def test_join_deadline(exploring: Exploring, calls: StatementBuilder) -> None:
    """The deadline's pick meets the end of the last child: claimed once, or woken and left to the next pick."""

    def either(end: End) -> None:
        row, claims = end.rows[1], end.left[0].claims
        assert (row["children_pending"], row["joined"], row["await_deadline"]) == (0, True, None)
        assert row["status"] == ("executing" if claims else "runnable")

    given = parent(1, pending=1, await_deadline=seconds(-1), cancel_rest=True) + child(2)
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.pick("w", {"default": 1}, KNOWN, 60)], [calls.flush([ends(2)])], either, begin=True
        )
    assert report.faults == []


async def test_without_its_round_a_late_end_is_counted(exploring: Exploring, calls: StatementBuilder) -> None:
    """The parent waits for its second round: a child of the first, not asked for its round, would be counted there."""
    given = (
        parent(1, pending=2, round=2)
        + child(2)
        + executing(3, parent_id=1, parent_round=2)
        + executing(4, parent_id=1, parent_round=2)
    )

    def waits(end: End) -> None:
        assert (end.rows[1]["status"], end.rows[1]["children_pending"]) == ("awaiting_children", 1)

    cure = Cure("count_ended_children_and_wake_parents", "parent.round = round_ends.parent_round and ")
    for cures, faults in (((), 0), ((cure,), 1)):
        async with exploring(*cures) as explorer:
            report = await explorer.explore(
                given,
                [calls.flush([ends(2)])],
                [calls.flush([ends(3)])],
                waits,
                first_fault=True,
            )
        assert len(report.faults) == faults


async def test_without_its_status_a_late_end_wakes_again(exploring: Exploring, calls: StatementBuilder) -> None:
    """A parent that has gone on and parked elsewhere would be made runnable by the rest of its children."""
    given = parent(1, pending=2, children_needed=1) + child(2) + child(3)
    cure = Cure("count_ended_children_and_wake_parents", " and parent.status = 'awaiting_children'")
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            given, [calls.flush([ends(2)])], [calls.flush([ends(3)])], opened, first_fault=True
        )
    assert len(report.faults) == 1
