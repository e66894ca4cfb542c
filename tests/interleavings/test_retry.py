"""Retry and delete against whatever else happens to the same rows."""

from __future__ import annotations

import json

from tests.interleavings.test_cancel import CHILD
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import ended, executing, instance, parent, signal

from gen_durable.store.instance_admin import InstanceAdminStatementBuilder
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

FAMILY = (
    parent(1, pending=1)
    + executing(2, parent_id=1, parent_round=1)
    + ended(3, status="failed", parent_id=1, parent_round=1)
)


async def test_retry_join(exploring: Exploring, calls: StatementBuilder) -> None:
    """A child is tried again while its last sibling ends: the parent waits for it, or has gone on; never half of it."""

    def consistent(end: End) -> None:
        one = end.rows[1]
        assert end.rows[3]["status"] == "runnable"
        waits = one["status"] == "awaiting_children"
        assert (one["children_pending"], one["joined"]) == ((1, False) if waits else (0, True))

    retry = InstanceAdminStatementBuilder(calls.schema).retry(3, None)
    done = calls.flush([Commit(2, 1, 0, "done", value="1", parent=1)])
    async with exploring() as explorer:
        report = await explorer.explore(FAMILY, [retry], [done], consistent, begin=True)
    assert report.faults == []
    assert report.schedules > 4


async def test_retry_retry(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two at once: one of them does it, the other finds it live."""

    def once(end: End) -> None:
        assert sorted(r.queue or "" for r in (*end.left, *end.right)) == ["", "default"]
        assert (end.rows[1]["children_pending"], end.rows[3]["claims"]) == (2, 2)

    retry = InstanceAdminStatementBuilder(calls.schema).retry(3, None)
    async with exploring() as explorer:
        report = await explorer.explore(FAMILY, [retry], [retry], once, begin=True)
    assert report.faults == []


async def test_retry_remove(exploring: Exploring, calls: StatementBuilder) -> None:
    """Retry and delete: either it lives, or it is gone."""

    def either(end: End) -> None:
        assert (1 in end.rows) == (end.left[0] is not None) == (not end.right[0].deleted)
        assert all(row["status"] == "runnable" for row in end.rows.values())

    reads = InstanceAdminStatementBuilder(calls.schema)
    async with exploring() as explorer:
        report = await explorer.explore(
            ended(1, status="failed"), [reads.retry(1, None)], [reads.delete_instance(1, None)], either, begin=True
        )
    assert report.faults == []


async def test_retry_gc(exploring: Exploring, calls: StatementBuilder) -> None:
    """Retry and retention: either it lives, or it is gone."""

    def either(end: End) -> None:
        assert (1 in end.rows) == (end.left[0] is not None) == (end.right[0].deleted == 0)

    retry = InstanceAdminStatementBuilder(calls.schema).retry(1, None)
    async with exploring() as explorer:
        report = await explorer.explore(
            ended(1, status="failed"), [retry], [calls.gc(60, 60, 60, 10)], either, begin=True
        )
    assert report.faults == []


LISTED = (
    instance(2, parent_id=1, parent_round=1, queue="b")
    + instance(3, parent_id=1, parent_round=1, queue="b")
    + "insert into @schema.cascades (parent_id, first_round, last_round, origin, reason)"
    " values (1, 0, 1, 1, 'why');"
)
QUIET = ("unblock", "count_ended_children_and_wake_parents", "insert_instances_of_outcomes", "end_or_request_cancel")
SPREAD = Commit(1, 3, 1, "children", step="t", extra=json.dumps({"children": [CHILD]}))


async def test_retry_cascade(exploring: Exploring, calls: StatementBuilder) -> None:
    """A parent is tried again while its children are cancelled: it goes on, and they end."""

    def both(end: End) -> None:
        assert [end.rows[i]["status"] for i in (1, 2, 3)] == ["runnable", "cancelled", "cancelled"]

    given = ended(1, status="cancelled", round=1, ago=1) + LISTED
    retry = InstanceAdminStatementBuilder(calls.schema).retry(1, None)
    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(given, [retry], [calls.cancel_listed_descendants(9, None)], both)
    assert report.faults == []


def apart(end: End) -> None:
    assert [end.rows[i]["status"] for i in (1, 2, 3)] == ["awaiting_children", "cancelled", "cancelled"]
    assert (end.rows[101]["status"], end.rows[101]["parent_round"]) == ("runnable", 2)


async def test_spawn_cascade(exploring: Exploring, calls: StatementBuilder) -> None:
    """It starts children of its next round while those of the last are cancelled: those are, and no others."""
    given = executing(1, claims=3, seq=1, round=1) + LISTED
    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(
            given,
            [calls.flush([SPREAD])],
            [calls.cancel_listed_descendants(2, None)],
            apart,
            then="select @schema.cancel_listed_descendants(9, null)",
        )
    assert report.faults == []
    assert report.schedules > 20


async def test_a_cascade_that_is_bound_to_no_round_cancels_the_next(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    """The children of the new round are cancelled for what was done to the old one."""
    given = executing(1, claims=3, seq=1, round=1) + LISTED
    cure = Cure(
        "cancel_listed_descendants",
        "child.parent_round between entry.first_round and entry.last_round",
        "child.parent_round >= entry.first_round",
    )
    async with exploring(cure, quiet=QUIET) as explorer:
        report = await explorer.explore(
            given, [calls.flush([SPREAD])], [calls.cancel_listed_descendants(9, None)], apart, first_fault=True
        )
    assert len(report.faults) == 1


async def test_retry_deliver(exploring: Exploring, calls: StatementBuilder) -> None:
    """A cancelled wait is retried while its signal is sent: it is refused, or it wakes the instance; never neither."""

    def not_lost(end: End) -> None:
        (_, verdict, _), row = end.right[0][0], end.rows[1]
        assert (verdict, row["status"]) in (("no_target", "awaiting_signal"), ("delivered", "runnable"))
        assert len(end.signals) == (verdict == "delivered")

    given = ended(1, status="cancelled", awaits=["go"], seen=[])
    retry = InstanceAdminStatementBuilder(calls.schema).retry(1, None)
    send = calls.signal([OutgoingSignal(1, None, "go", None, None)])
    async with exploring() as explorer:
        report = await explorer.explore(given, [retry], [send], not_lost, begin=True)
    assert report.faults == []
    assert len(report.ends) == 2


async def test_retry_late_take(exploring: Exploring, calls: StatementBuilder) -> None:
    """A worker that lost its claim sends an outcome that took a signal, while an operator retries the failed row.

    The outcome is stale, and the next claim is given the signal.
    """

    def kept(end: End) -> None:
        assert end.right[0].stale_ids == {1}
        assert [s["id"] for s in end.signals] == [7]
        assert (end.rows[1]["status"], end.rows[1]["awaits"]) == ("runnable", ["go"])

    given = ended(1, status="failed", claims=2, awaits=["go"]) + signal(7, 1)
    retry = InstanceAdminStatementBuilder(calls.schema).retry(1, None)
    late = calls.flush([Commit(1, 1, 0, "next", step="t", value="1", extra='{"consumed": [7]}')])
    async with exploring() as explorer:
        report = await explorer.explore(given, [retry], [late], kept, begin=True)
    assert report.faults == []
