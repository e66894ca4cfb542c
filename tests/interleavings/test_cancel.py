"""A cancel meets everything else: a row ends once, nothing goes on from it, and nobody waits for it for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.interleavings.test_claim_claim import KNOWN
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, instance, parent, parked, seconds, signal

from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal


def cancelling(calls: StatementBuilder, *ids: int, cascade: bool = True) -> list[Statement[Any]]:
    """Cancel, and carry on once."""
    first: Statement[Any] = calls.cancel([(i, None) for i in ids], "why", cascade=cascade)
    return [first, calls.cancel_listed_descendants(100, None)] if cascade else [first]


def verdict(side: list[Any]) -> str:
    return str(side[0][0][0].verdict)


NEXT = Commit(1, 1, 0, "next", step="t", extra=json.dumps({"consumed": [1]}))
PARK = Commit(1, 1, 0, "await", extra=json.dumps({"awaits": ["go"], "seen": []}))
CHILD = {"fsm": "m", "version": 1, "step": "s", "state": {}, "queue": "default", "priority": 0, "delay": 0}
SPREAD = Commit(1, 1, 0, "children", step="t", extra=json.dumps({"children": [CHILD]}))


@pytest.mark.parametrize("commit", [NEXT, PARK, SPREAD, Commit(1, 1, 0, "retry")], ids=lambda c: str(c.kind))
async def test_cancel_flush(exploring: Exploring, calls: StatementBuilder, commit: Commit) -> None:
    """Either the outcome came first and the row that waits is ended, or it is refused and the claim is marked."""

    def ends(end: End) -> None:
        row, asked = end.rows[1], set(end.right[0].cancel_requested_ids)
        if asked:
            assert (row["status"], row["cancel_reason"], row["seq"]) == ("executing", "why", 0)
            assert verdict(end.left) == "requested"
            assert list(end.rows) == [1]
        else:
            assert (row["status"], row["seq"], verdict(end.left)) == ("cancelled", 1, "ended")
            assert all(r["status"] == "cancelled" for r in end.rows.values())
            assert len(end.signals) == (commit is not NEXT), "only what an outcome consumed is gone"

    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1) + signal(1, 1), cancelling(calls, 1, cascade=commit is SPREAD), [calls.flush([commit])], ends
        )
    assert report.faults == []
    assert len(report.ends) == 2


async def test_without_its_condition_a_flush_leads_on_from_a_marked_row(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    """The row is runnable and marked: nobody would ever end it."""
    cure = Cure("flush", "\n      and (i.cancel_reason is null or outcome.is_end)")
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            executing(1), cancelling(calls, 1, cascade=False), [calls.flush([NEXT])], lambda _: None, first_fault=True
        )
    assert ["cancel_request_without_claim" in fault.problem for fault in report.faults] == [True]


async def test_without_its_condition_a_marked_row_starts_children(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    """Without its condition, insert_instances_of_outcomes makes children of a round that never begins."""
    cure = Cure("insert_instances_of_outcomes", " and (parent.cancel_reason is null or outcome.kind = 'done')")
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            executing(1), cancelling(calls, 1, cascade=False), [calls.flush([SPREAD])], lambda _: None, first_fault=True
        )
    assert ["child_of_unknown_round" in fault.problem for fault in report.faults] == [True]


async def test_cancel_end(exploring: Exploring, calls: StatementBuilder) -> None:
    """The step ends the instance while it is cancelled: its end stands, whoever came first."""

    def stands(end: End) -> None:
        assert (end.rows[1]["status"], end.rows[1]["claims"]) == ("done", 1)
        assert verdict(end.left) in ("requested", "over")

    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1),
            cancelling(calls, 1, cascade=False),
            [calls.flush([Commit(1, 1, 0, "done", value="1")])],
            stands,
            begin=True,
        )
    assert report.faults == []


async def test_cancel_signal(exploring: Exploring, calls: StatementBuilder) -> None:
    """A signal comes as its target is cancelled: it is kept with the row, for a retry, or it has no target."""

    def over(end: End) -> None:
        assert (end.rows[1]["status"], verdict(end.left)) == ("cancelled", "ended")
        assert (end.right[0][0][1], len(end.signals)) in (("delivered", 1), ("no_target", 0))

    async with exploring() as explorer:
        report = await explorer.explore(
            parked(1),
            cancelling(calls, 1, cascade=False),
            [calls.signal([OutgoingSignal(1, None, "go", "1", None)])],
            over,
        )
    assert report.faults == []


FAMILY = parent(1, pending=2) + executing(2, parent_id=1, parent_round=1) + parked(3, parent_id=1, parent_round=1)
LISTED = (
    FAMILY
    + "update @schema.instances set status = 'cancelled', finished_at = now(), children_pending = 0 where id = 1;"
    + "insert into @schema.cascades (parent_id, first_round, last_round, origin, reason)"
    " values (1, 0, 1, 1, 'why');"
)
LAST = Commit(2, 1, 0, "done", value="1", parent=1)


async def test_cancel_join_of_the_parent(exploring: Exploring, calls: StatementBuilder) -> None:
    """A child ends while its parent is cancelled: the parent ends as cancelled, and wakes for nobody."""

    def over(end: End) -> None:
        assert (end.rows[1]["status"], end.rows[1]["children_pending"]) == ("cancelled", 0)
        assert end.rows[2]["status"] == "done"
        assert end.right[0].follow_ups.queues == frozenset()

    async with exploring() as explorer:
        report = await explorer.explore(
            FAMILY, cancelling(calls, 1, cascade=False), [calls.flush([LAST])], over, begin=True
        )
    assert report.faults == []


async def test_cascade_join(exploring: Exploring, calls: StatementBuilder) -> None:
    """A child of a cancelled parent ends as the list comes to it: it is done, or left to be asked for the next time."""

    def either(end: End) -> None:
        assert (end.rows[2]["status"], end.rows[3]["status"]) == ("done", "cancelled")

    async with exploring() as explorer:
        report = await explorer.explore(
            LISTED, [calls.cancel_listed_descendants(9, None)], [calls.flush([LAST])], either
        )
    assert report.faults == []


async def test_cancel_join_of_the_child(exploring: Exploring, calls: StatementBuilder) -> None:
    """One child is cancelled while its sibling ends: the parent counts both, and goes on once."""

    def joined(end: End) -> None:
        row = end.rows[1]
        assert (row["status"], row["children_pending"], row["joined"]) == ("runnable", 0, True)
        assert (end.rows[2]["status"], end.rows[3]["status"]) == ("done", "cancelled")

    async with exploring() as explorer:
        report = await explorer.explore(
            FAMILY, cancelling(calls, 3, cascade=False), [calls.flush([LAST])], joined, begin=True
        )
    assert report.faults == []


async def test_cancel_join_of_both(exploring: Exploring, calls: StatementBuilder) -> None:
    """Parent and child are cancelled by two at once, in opposite orders of family: no deadlock."""

    def over(end: End) -> None:
        assert [end.rows[i]["status"] for i in (1, 3)] == ["cancelled", "cancelled"]

    async with exploring() as explorer:
        report = await explorer.explore(
            FAMILY, cancelling(calls, 3, cascade=False), cancelling(calls, 1, cascade=False), over, begin=True
        )
    assert report.faults == []


async def test_a_cancel_that_does_not_lock_the_parent_deadlocks(exploring: Exploring, calls: StatementBuilder) -> None:
    """It has the child when it comes to the parent, a delivery to both has the parent when it comes to the child."""
    both = [OutgoingSignal(1, None, "go", None, None), OutgoingSignal(3, None, "go", None, None)]
    cure = Cure("cancel", "where i.id = any (target_ids || parent_ids)", "where i.id = any (target_ids)")
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            FAMILY,
            cancelling(calls, 3, cascade=False),
            [calls.signal(both)],
            lambda _: None,
            first_fault=True,
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40P01"}]


async def test_a_cancel_without_a_join_is_found(exploring: Exploring, calls: StatementBuilder) -> None:
    cure = Cure(
        "end_or_request_cancel",
        "select released.woken_queues, released.cascade_origins into woken_queues, cascade_origins\n    "
        "from @schema.count_ended_children_and_wake_parents(ended) as released;",
        "null;",
    )
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            FAMILY, cancelling(calls, 3, cascade=False), [calls.flush([LAST])], lambda _: None, first_fault=True
        )
    assert ["wrong_children_pending" in fault.problem for fault in report.faults] == [True]


async def test_cancel_pick(exploring: Exploring, calls: StatementBuilder) -> None:
    """A row is claimed as it is cancelled: it is ended and not claimed, or claimed and marked."""

    def either(end: End) -> None:
        row, claims = end.rows[1], [c for c in end.right[0].claims if c.id == 1]
        if claims:
            assert (row["status"], row["cancel_reason"], verdict(end.left)) == ("executing", "why", "requested")
        else:
            assert (row["status"], row["claims"], verdict(end.left)) == ("cancelled", 1, "ended")

    async with exploring() as explorer:
        report = await explorer.explore(
            instance(1, eligible_at=seconds(-1)),
            cancelling(calls, 1, cascade=False),
            [calls.pick("w", {"default": 5}, KNOWN, 60)],
            either,
            begin=True,
        )
    assert report.faults == []
    assert len(report.ends) == 2


HEAD = instance(1, partition_key="k", eligible_at=seconds(-9)) + instance(
    2, partition_key="k", eligible_at=seconds(-1), queue="b"
)


def admitting(calls: StatementBuilder) -> list[Statement[Any]]:
    """The part of a pick that finds out whether row 2 may run, and blocks it if not."""
    text = (
        "select allowed from @schema.admit_or_block_rows_by_partition(array("
        "select i.ctid from @schema.instances i where i.id = 2 for no key update), '{}', '{}', 10)"
    )
    return [Statement(calls.schema.render(text), (), list)]


async def test_cancel_pick_of_a_head(exploring: Exploring, calls: StatementBuilder) -> None:
    """The head of a key is cancelled while a pick finds the next, blocks it or lets it run: nobody is stranded."""

    def goes_on(end: End) -> None:
        assert (end.rows[1]["status"], end.rows[2]["blocked_on"]) == ("cancelled", None)

    async with exploring() as explorer:
        report = await explorer.explore(HEAD, cancelling(calls, 1, cascade=False), admitting(calls), goes_on)
    assert report.faults == []


async def test_a_cancel_without_hand_over_strands(exploring: Exploring, calls: StatementBuilder) -> None:
    cure = Cure("cancel", "unblocked := @schema.unblock(outcome.freed_gates, true);", "null;")
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            HEAD, cancelling(calls, 1, cascade=False), admitting(calls), lambda _: None, first_fault=True
        )
    assert ["blocked_at_free_gate" in fault.problem for fault in report.faults] == [True]


EXPIRED_CHILD = parent(1, pending=1) + executing(2, parent_id=1, parent_round=1, lease_expires_at=seconds(-1))


@pytest.mark.parametrize("max_crashes", [None, 1])
async def test_cancel_reap(exploring: Exploring, calls: StatementBuilder, max_crashes: int | None) -> None:
    """A dead claim is taken back as it is cancelled: marked first it ends in the reaper's hands, else in ours."""

    def either(end: End) -> None:
        child, row = end.rows[2], end.rows[1]
        if child["status"] == "executing":  # the reaper passed over it: its next turn ends it
            assert (child["cancel_reason"], row["status"]) == ("why", "awaiting_children")
        else:
            assert child["status"] in ("cancelled", "failed" if max_crashes else "cancelled")
            assert (row["status"], row["children_pending"]) == ("runnable", 0)

    async with exploring() as explorer:
        report = await explorer.explore(
            EXPIRED_CHILD,
            cancelling(calls, 2, cascade=False),
            [calls.reap(10, max_crashes)],
            either,
        )
    assert report.faults == []


async def test_a_reaper_that_does_not_look_puts_a_marked_row_back(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    """Back in the queue, and marked: it would run, and no outcome of it would be taken."""
    mark = (
        "when i.cancel_reason is not null then 'cancelled' when i.id = any (ending) then 'failed' "
        "else 'runnable'\n      end::@schema.durable_status,"
    )
    unmarked = mark.replace("any (ending)", "any (ending) and i.cancel_reason is null")
    cure = Cure("reap", mark, unmarked.replace("i.cancel_reason is not null", "false"))
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            EXPIRED_CHILD,
            cancelling(calls, 2, cascade=False),
            [calls.reap(10, None)],
            lambda _: None,
            first_fault=True,
        )
    assert len(report.faults) == 1


async def test_cancel_release(exploring: Exploring, calls: StatementBuilder) -> None:
    """A claim is given back as it is cancelled: it ends at once, or is left to the reaper; it is never picked again."""

    def either(end: End) -> None:
        row = end.rows[1]
        if row["status"] == "executing":
            assert (row["cancel_reason"], row["claims"]) == ("why", 2)
        else:
            assert row["status"] == "cancelled"

    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1),
            cancelling(calls, 1, cascade=False),
            [calls.release_claims([(1, 1, None, None)])],
            either,
            begin=True,
        )
    assert report.faults == []


async def test_cancel_cancel(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two cancel one instance at once: it ends once, and its children are listed once."""

    def once(end: End) -> None:
        assert sorted((verdict(end.left), verdict(end.right))) == ["ended", "over"]
        assert (end.rows[1]["status"], end.rows[1]["claims"]) == ("cancelled", 2)

    given = parent(1, pending=0) + "update @schema.instances set status = 'runnable' where id = 1;"
    both = cancelling(calls, 1)[:1]
    async with exploring() as explorer:
        report = await explorer.explore(given, both, both, once, begin=True)
    assert report.faults == []


async def test_cascade_cascade(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two carry on with one list: every child ends once, each claim is marked once."""

    def once(end: End) -> None:
        assert [end.rows[i]["status"] for i in (2, 3)] == ["executing", "cancelled"]
        assert (end.rows[2]["cancel_reason"], end.rows[3]["claims"]) == ("why", 2)
        assert sum(side[0].ended for side in (end.left, end.right)) == 1
        assert sum(side[0].requested for side in (end.left, end.right)) == 1

    async with exploring() as explorer:
        report = await explorer.explore(
            LISTED, [calls.cancel_listed_descendants(9, None)], [calls.cancel_listed_descendants(9, 1)], once
        )
    assert report.faults == []


async def test_cascade_flush_of_a_child_that_spreads(exploring: Exploring, calls: StatementBuilder) -> None:
    """A child starts children of its own as the tree is cancelled: they are cancelled too, or never begin."""
    given = parent(1, pending=0, status="cancelled", finished_at=seconds(0)) + executing(2, parent_id=1, parent_round=1)
    given += (
        "insert into @schema.cascades (parent_id, first_round, last_round, origin, reason) values (1, 0, 1, 1, 'why');"
    )

    def over(end: End) -> None:
        match end.rows[2]["status"]:
            case "executing":
                assert (list(end.rows), end.rows[2]["cancel_reason"]) == ([1, 2], "why")
            case "cancelled":
                assert end.left[0].more  # its child is listed
            case status:
                assert (status, end.left[0].more) == ("awaiting_children", True)  # it was held: the list stays

    spread = Commit(2, 1, 0, "children", step="t", extra=json.dumps({"children": [CHILD]}))
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.cancel_listed_descendants(9, None)], [calls.flush([spread])], over
        )
    assert report.faults == []
