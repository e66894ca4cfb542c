"""A cancel in somebody's transaction: it holds no gate, so it stands in nobody's way, and nobody is stranded by it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.interleavings.test_cancel import HEAD, admitting
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, instance, parent, seconds

from gen_durable.store.caller_statements import CallerStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit

QUIET = (
    "end_or_request_cancel",
    "cancel_listed_descendants",
    "count_ended_children_and_wake_parents",
    "unblock_partition_rows",
)
"""What happens in them happens under locks that were taken before, or that nobody else asks for."""


def guest_cancel(calls: StatementBuilder, target: int) -> list[Statement[Any]]:
    """The caller's transaction; then a worker carries on."""
    return [
        CallerStatementBuilder(calls).cancel(target, None, "why", cascade=True, notify=False),
        calls.cancel_listed_descendants(9, target),
    ]


def guest_cancel_and_signal(calls: StatementBuilder, cancelled: int, signalled: int) -> Statement[Any]:
    """A caller's transaction that goes on to lock another row."""
    text = (
        f"select c.verdict, s.verdict from @schema.cancel(array[{cancelled}::bigint], array[null::bytea], 'why', true, "
        f"true) as c, lateral @schema.signal(array[c.target + {signalled - cancelled}], array[null::bytea], "
        "array['go'], array['1'::jsonb], array[null::text]) as s"
    )
    return Statement(calls.schema.render(text), (), list)


BEHIND = executing(1, partition_key="k") + instance(
    2, partition_key="k", blocked_on="partition/k", eligible_at=seconds(-1)
)
DONE = Commit(1, 1, 0, "done", value="1")


async def test_guest_cancel_flush_at_one_gate(exploring: Exploring, calls: StatementBuilder) -> None:
    """The caller cancels a row, then signals one that is being flushed, both of one key: neither waits for ever."""

    def both(end: End) -> None:
        assert (end.rows[1]["status"], end.rows[2]["status"]) == ("done", "cancelled")

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(BEHIND, [guest_cancel_and_signal(calls, 2, 1)], [calls.flush([DONE])], both)
    assert report.faults == []


async def test_a_guest_that_locks_gates_deadlocks(exploring: Exploring, calls: StatementBuilder) -> None:
    async with exploring(Cure("cancel", "if in_transaction then", "if false then"), quiet=QUIET) as explorer:
        report = await explorer.explore(
            BEHIND,
            [guest_cancel_and_signal(calls, 2, 1)],
            [calls.flush([DONE])],
            lambda _: None,
            first_fault=True,
        )
    assert [re.search("[Dd]eadlock", fault.problem) is not None for fault in report.faults] == [True]


async def test_guest_cancel_pick_of_a_head(exploring: Exploring, calls: StatementBuilder) -> None:
    """As with a cancel of ours: the one behind is let back when the guest's cancel is carried on."""

    def goes_on(end: End) -> None:
        assert (end.rows[1]["status"], end.rows[2]["blocked_on"]) == ("cancelled", None)

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(HEAD, guest_cancel(calls, 1), admitting(calls), goes_on)
    assert report.faults == []


async def test_without_the_listed_gates_a_row_is_stranded(exploring: Exploring, calls: StatementBuilder) -> None:
    cure = Cure("cancel_listed_descendants", "gates := gates || outcome.freed_gates;", "gates := outcome.freed_gates;")
    async with exploring(cure, quiet=QUIET) as explorer:
        report = await explorer.explore(
            HEAD, guest_cancel(calls, 1), admitting(calls), lambda _: None, first_fault=True
        )
    assert ["blocked_at_free_gate" in fault.problem for fault in report.faults] == [True]


TREE = parent(1, pending=2) + executing(2, parent_id=1, parent_round=1) + instance(3, parent_id=1, parent_round=1)


@pytest.mark.parametrize("target", [1, 3])
async def test_guest_cancel_flush_in_a_tree(exploring: Exploring, calls: StatementBuilder, target: int) -> None:
    """A child ends as its parent, or its sibling, is cancelled by a guest: no deadlock, and the join counts right."""

    def over(end: End) -> None:
        assert (end.rows[2]["status"], end.rows[3]["status"]) == ("done", "cancelled")
        assert end.rows[1]["status"] == ("cancelled" if target == 1 else "runnable")

    flush = calls.flush([Commit(2, 1, 0, "done", value="1", parent=1)])
    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(TREE, guest_cancel(calls, target), [flush], over)
    assert report.faults == []
