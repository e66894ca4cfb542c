"""A key that is held beyond the end, against the collector that deletes its holder, and workers that start at once."""

from __future__ import annotations

import asyncpg
import pytest
from tests.interleavings.test_unique import holders
from tests.support.breakpoints import ROW_BREAKPOINTS, Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.machine import M, fan_out
from tests.support.rows import LIVE, ended, executing

from gen_durable.retention import Retention
from gen_durable.starts import Start
from gen_durable.store.instance_admin import InstanceAdminStatementBuilder
from gen_durable.store.retention import RetentionStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import InsertResult

FOREVER = LIVE[:-1] + ",done,failed,cancelled}"
HOLDER = ended(1, unique_key=b"a", unique_scope=FOREVER, keep_seconds=60)


def insert(calls: StatementBuilder, on_conflict: str) -> Statement[list[InsertResult]]:
    return calls.insert([Start(M.s, {}, unique_key="a", unique="forever")], on_conflict)


def collect(calls: StatementBuilder) -> Statement[object]:
    return RetentionStatementBuilder(calls.schema).gc_rows_with_own_retention(10)


@pytest.mark.parametrize("on_conflict", ["existing", "skip", "raise"])
async def test_gc_kept_insert(exploring: Exploring, calls: StatementBuilder, on_conflict: str) -> None:
    """The key is inserted while its ended holder is deleted: a new row, or the answer about the old one; one holder."""

    def one_holder(end: End) -> None:
        assert end.left[0].deleted == 1
        held = holders(end)
        answer = end.right[0]
        if isinstance(answer, asyncpg.PostgresError):
            assert (on_conflict, held) == ("raise", {})
            return
        (one,) = answer
        if one.new:
            assert held == {"a": one.id}
        else:
            assert (one.id, held) == (1 if on_conflict == "existing" else None, {})

    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(
            HOLDER,
            [collect(calls)],
            [insert(calls, on_conflict)],
            one_holder,
            errors=frozenset({"GD001"} if on_conflict == "raise" else ()),
            begin=True,
        )
    assert report.faults == []
    assert len(report.ends) >= 2


async def test_gc_kept_child(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same for a child: it is inserted and waited for, or left out."""

    def joined(end: End) -> None:
        children = [row for row in end.rows.values() if row["parent_id"] == 2]
        assert end.rows[2]["children_pending"] == len(children)
        assert end.rows[2]["status"] == ("awaiting_children" if children else "runnable")
        assert 1 not in end.rows

    child = {"fsm": "m", "version": 1, "step": "s", "state": {}, "queue": "default", "priority": 0, "delay": 0}
    child |= {"unique_key": b"a".hex(), "unique_scope": FOREVER, "keep": "Infinity"}
    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(
            HOLDER + executing(2), [collect(calls)], [calls.flush([fan_out(2, child)])], joined, begin=True
        )
    assert report.faults == []
    assert len(report.ends) >= 2


async def test_gc_forever(exploring: Exploring, calls: StatementBuilder) -> None:
    """A holder that is kept for good is deleted by neither collector, and its key stays taken."""

    def refused(end: End) -> None:
        assert [end.left[0].deleted, end.left[1].deleted] == [0, 0]
        assert holders(end) == {"a": 1}
        assert [(one.id, one.new) for one in end.right[0]] == [(1, False)]

    given = ended(1, unique_key=b"a", unique_scope=FOREVER, keep_seconds="Infinity")
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.gc(60, 60, 60, 10), collect(calls)], [insert(calls, "existing")], refused
        )
    assert report.faults == []


async def test_gc_kept_retry(exploring: Exploring, calls: StatementBuilder) -> None:
    """An operator retries by key while the collector deletes: the instance runs again, or is unknown."""

    def either(end: End) -> None:
        assert (end.left[0].deleted == 0) == (end.right[0] is not None)
        assert [row["status"] for row in end.rows.values()] == (["runnable"] if end.right[0] else [])

    retry = InstanceAdminStatementBuilder(calls.schema).retry(None, b"a")
    given = ended(1, status="failed", unique_key=b"a", unique_scope=FOREVER, keep_seconds=60)
    async with exploring() as explorer:
        report = await explorer.explore(given, [collect(calls)], [retry], either, begin=True)
    assert report.faults == []


async def test_insert_without_a_second_try_loses_the_key(exploring: Exploring, calls: StatementBuilder) -> None:
    """Without the second try, a caller whose holder was just deleted gets neither the holder nor a new row."""

    async with exploring(Cure("insert", "for try in 1..20 loop", "for try in 1..1 loop")) as explorer:
        report = await explorer.explore(
            HOLDER, [collect(calls)], [insert(calls, "existing")], lambda _: None, first_fault=True
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40001"}]


def declare(calls: StatementBuilder, **retentions: Retention | None) -> Statement[bool]:
    return RetentionStatementBuilder(calls.schema).declare_retentions(retentions)


OLD, NEW = Retention(1, 1, 1), Retention(2, 2, 2)
DECLARED = """
delete from @schema.retentions;
insert into @schema.retentions (fsm, done) values ('a', 3), ('b', 3);
"""


async def test_declare_declare(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two workers with different code start at once: both start, and one of them has the last word on all machines."""
    stored: list[Statement[object]] = [RetentionStatementBuilder(calls.schema).declared_retentions()]
    left, right = declare(calls, a=None, b=OLD), declare(calls, a=NEW, b=None)

    def one_of_them(end: End) -> None:
        assert (end.left[0], end.right[0]) == (True, True)
        assert end.left[1] in ({"b": OLD}, {"a": NEW})

    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(DECLARED, [left, *stored], [right], one_of_them)
    assert report.faults == []


async def test_declare_without_its_lock_deadlocks(exploring: Exploring, calls: StatementBuilder) -> None:
    """Each deletes a row that the other one wants to write."""
    cure = Cure("declare_retentions", "lock table @schema.retentions in share row exclusive mode;", "")
    async with exploring(cure, also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(
            DECLARED, [declare(calls, a=None, b=OLD)], [declare(calls, b=None, a=NEW)], lambda _: None, first_fault=True
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40P01"}]
