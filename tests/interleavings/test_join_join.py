"""Children that end at the same time: the parent counts each once, and goes on exactly when the last has ended."""

from __future__ import annotations

from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, parent

from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal


def child(id: int, of: int) -> str:  # noqa: A002  # the column's name
    return executing(id, parent_id=of, parent_round=1)


def done(id: int, of: int | None) -> Commit:  # noqa: A002
    return Commit(id, 1, 0, "done", value="1", parent=of)


FAMILY = parent(1, pending=2) + child(2, 1) + child(3, 1)
TWO_FAMILIES = parent(1, pending=2) + parent(2, pending=2) + child(3, 1) + child(4, 2) + child(5, 1) + child(6, 2)


def joined(end: End) -> None:
    parents = [row for row in end.rows.values() if row["round"] == 1]
    for row in parents:
        assert (row["status"], row["joined"], row["children_pending"]) == ("runnable", True, 0)
    assert sum(bool(f.follow_ups.queues) for f in (*end.left, *end.right)) in (1, len(parents))


async def test_join_join(exploring: Exploring, calls: StatementBuilder) -> None:
    """The last two children end in two flushes: the parent is released once, by whichever commits last."""
    async with exploring() as explorer:
        report = await explorer.explore(
            FAMILY, [calls.flush([done(2, 1)])], [calls.flush([done(3, 1)])], joined, begin=True
        )
    assert report.faults == []
    assert report.schedules > 10


async def test_join_join_of_two_parents(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two flushes end one child of each of two parents, named in opposite orders: no deadlock, both are released."""
    left = [calls.flush([done(3, 1), done(4, 2)])]
    right = [calls.flush([done(5, 1), done(6, 2)])]
    async with exploring() as explorer:
        report = await explorer.explore(TWO_FAMILIES, left, right, joined)
    assert report.faults == []


async def test_done_and_stop_join_alike(exploring: Exploring, calls: StatementBuilder) -> None:
    """A child that fails releases its place like one that is done."""
    stop = Commit(3, 1, 0, "fail", error="no", parent=1)
    async with exploring() as explorer:
        report = await explorer.explore(FAMILY, [calls.flush([done(2, 1)])], [calls.flush([stop])], joined)
    assert report.faults == []


async def test_join_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """The last child ends while the parent is sent a signal: released once, and the signal waits in its inbox."""

    def both(end: End) -> None:
        assert (end.rows[1]["status"], end.rows[1]["joined"], end.rows[1]["has_signals"]) == ("runnable", True, True)
        assert end.right[0][0][:2] == (1, "delivered")

    given = parent(1, pending=1) + child(2, 1)
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.flush([done(2, 1)])], [calls.signal([OutgoingSignal(1, None, "go", None, None)])], both
        )
    assert report.faults == []


def told(end: End) -> None:
    assert end.rows[1]["status"] == "runnable"
    assert end.right[0][0][:2] == (1, "delivered")
    assert end.right[0][1][1] in ("delivered", "no_target")


FAMILY_OF_ONE = parent(1, pending=1) + child(2, 1)
TO_BOTH = [OutgoingSignal(1, None, "go", None, None), OutgoingSignal(2, None, "go", None, None)]


async def test_join_deliver_to_both(exploring: Exploring, calls: StatementBuilder) -> None:
    """One batch of signals goes to parent and child while the child ends: both lock by id, nobody deadlocks."""
    async with exploring() as explorer:
        report = await explorer.explore(
            FAMILY_OF_ONE, [calls.flush([done(2, 1)])], [calls.signal(TO_BOTH)], told, begin=True
        )
    assert report.faults == []


async def test_without_the_lock_on_parents_a_join_deadlocks(exploring: Exploring, calls: StatementBuilder) -> None:
    """A flush that does not lock parents first takes child before parent, a delivery parent before child."""
    cure = Cure(
        "flush",
        "perform from @schema.instances i where i.id = any (ids || parents) order by i.id for no key update;",
        "null;",
    )
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            FAMILY_OF_ONE, [calls.flush([done(2, 1)])], [calls.signal(TO_BOTH)], told, first_fault=True
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40P01"}]
