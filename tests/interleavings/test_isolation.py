"""Calls in transactions that are not READ COMMITTED: each is safe, or fails with an error. None loses a wake-up."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from tests.interleavings.test_cancel import HEAD, admitting
from tests.interleavings.test_cancel_in_transaction import QUIET, TREE, guest_cancel
from tests.interleavings.test_park_deliver import DONE, GO, PARK, PARK_AGAIN, woken
from tests.support.breakpoints import Cure
from tests.support.explorer import READ_COMMITTED, End
from tests.support.exploring import Exploring
from tests.support.machine import M
from tests.support.rows import executing, signal

from gen_durable.starts import Start
from gen_durable.store.caller_statements import CallerStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit

pytestmark = pytest.mark.long  # tests/store/test_isolation.py has the short form
SERIALIZATION = frozenset({"40001"})
REFUSED = frozenset({"GD006"})
LEVELS = ["repeatable read", "serializable"]
UNGUARDED = (Cure("flush", "perform @schema.require_read_committed();"),)


def failed(answers: list[Any]) -> bool:
    return any(isinstance(answer, asyncpg.PostgresError) for answer in answers)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("parks_again", [False, True])
async def test_a_strict_signal_meets_a_park(
    exploring: Exploring, calls: StatementBuilder, level: str, parks_again: bool
) -> None:
    """The delivery locks the row that parks: it sees it parked, or gets a serialization failure."""

    def delivered(end: End) -> None:
        if not failed(end.right):
            woken(end)

    given = executing(1) + (signal(7, 1) if parks_again else "")
    park = calls.flush([PARK_AGAIN if parks_again else PARK])
    send = CallerStatementBuilder(calls).signal(GO, notify=False)
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [park], [send], delivered, begin=True, errors=SERIALIZATION, levels=(READ_COMMITTED, level)
        )
    assert report.faults == []
    assert report.schedules > 10


@pytest.mark.parametrize("level", LEVELS)
async def test_a_strict_signal_meets_an_end(exploring: Exploring, calls: StatementBuilder, level: str) -> None:
    """It is delivered before the end and kept, finds no target, or fails and leaves nothing."""

    def kept_or_refused(end: End) -> None:
        assert end.rows[1]["status"] == "done"
        delivered = not failed(end.right) and end.right[0][0][1] == "delivered"
        assert len(end.signals) == delivered

    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1),
            [calls.flush([DONE])],
            [CallerStatementBuilder(calls).signal(GO, notify=False)],
            kept_or_refused,
            begin=True,
            errors=SERIALIZATION,
            levels=(READ_COMMITTED, level),
        )
    assert report.faults == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("target", [1, 3])
async def test_a_strict_cancel_meets_an_end_in_a_tree(
    exploring: Exploring, calls: StatementBuilder, level: str, target: int
) -> None:
    """The join counts right, or the cancel fails and has changed nothing."""

    def counted(end: End) -> None:
        assert end.rows[2]["status"] == "done"
        if not failed(end.right):
            assert end.rows[1]["status"] == ("cancelled" if target == 1 else "runnable")

    flush = calls.flush([Commit(2, 1, 0, "done", value="1", parent=1)])
    cancel = guest_cancel(calls, target)[:1]
    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(
            TREE, [flush], cancel, counted, begin=True, errors=SERIALIZATION, levels=(READ_COMMITTED, level)
        )
    assert report.faults == []


@pytest.mark.parametrize("level", LEVELS)
async def test_a_strict_cancel_meets_a_pick_at_its_gate(
    exploring: Exploring, calls: StatementBuilder, level: str
) -> None:
    """In a caller's transaction the gate is listed for a worker, and the row behind is unblocked by it."""

    def goes_on(end: End) -> None:
        if not failed(end.left):
            assert (end.rows[1]["status"], end.rows[2]["blocked_on"]) == ("cancelled", None)

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(
            HEAD,
            guest_cancel(calls, 1)[:1],
            admitting(calls),
            goes_on,
            errors=SERIALIZATION,
            then="select @schema.cancel_listed_descendants(9, 1)",
            levels=(level, READ_COMMITTED),
        )
    assert report.faults == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("on_conflict", ["skip", "existing", "raise"])
async def test_a_strict_insert_meets_an_insert(
    exploring: Exploring, calls: StatementBuilder, level: str, on_conflict: str
) -> None:
    """One key, two inserts: one instance, and the other insert knows it or fails."""

    def once(end: End) -> None:
        assert len(end.rows) == 1

    insert = calls.insert([Start(M.s, {}, unique_key="k")], on_conflict)
    async with exploring() as explorer:
        report = await explorer.explore(
            "",
            [insert],
            [CallerStatementBuilder(calls).insert(insert, notify=False)],
            once,
            begin=True,
            errors=SERIALIZATION | {"GD001"},
            levels=(READ_COMMITTED, level),
        )
    assert report.faults == []


def strict_flush(calls: StatementBuilder) -> list[Statement[Any]]:
    return [calls.flush([PARK_AGAIN])]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_strict_flush_is_refused(exploring: Exploring, calls: StatementBuilder, level: str) -> None:
    """Its second look at the inbox would miss a signal, so nothing is written."""

    def unchanged(end: End) -> None:
        assert failed(end.left)
        assert end.rows[1]["status"] == "executing"

    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1) + signal(7, 1),
            strict_flush(calls),
            [calls.signal([GO])],
            unchanged,
            errors=REFUSED,
            levels=(level, READ_COMMITTED),
        )
    assert report.faults == []


async def test_without_the_check_a_strict_flush_loses_a_wakeup(exploring: Exploring, calls: StatementBuilder) -> None:
    async with exploring(*UNGUARDED) as explorer:
        report = await explorer.explore(
            executing(1) + signal(7, 1),
            strict_flush(calls),
            [calls.signal([GO])],
            lambda end: None if failed(end.left) else woken(end),
            begin=True,
            errors=SERIALIZATION,
            levels=("repeatable read", READ_COMMITTED),
            first_fault=True,
        )
    assert len(report.faults) == 1
