"""Ids that were drawn for rows to insert: two calls with one id, and the collector beside an insert."""

from __future__ import annotations

import asyncpg
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.machine import M

from gen_durable.starts import Start
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import InsertResult

DRAWN = "insert into @schema.allocated_ids (id, allocated_at) values (50, now() - interval '2 days');"
USED_BEFORE = frozenset({"GD008"})


def insert(calls: StatementBuilder) -> Statement[list[InsertResult]]:
    return calls.insert_with_ids(calls.insert([Start(M.s, {})], "raise"), [50], ["{}"], [])


async def test_insert_insert_one_id(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two calls with one id: one row, and the other call is refused, without a collision of rows."""

    def once(end: End) -> None:
        answers = [end.left[0], end.right[0]]
        assert sorted(isinstance(answer, asyncpg.PostgresError) for answer in answers) == [False, True]
        assert list(end.rows) == [50]

    async with exploring() as explorer:
        report = await explorer.explore(DRAWN, [insert(calls)], [insert(calls)], once, errors=USED_BEFORE, begin=True)
    assert report.faults == []
    assert report.schedules > 1


async def test_gc_allocated_insert(exploring: Exploring, calls: StatementBuilder) -> None:
    """The id is used or forgotten, never both; the collector waits for no insert."""

    def used_or_forgotten(end: End) -> None:
        forgotten, answer = end.left[0], end.right[0]
        assert forgotten == (1 if isinstance(answer, asyncpg.PostgresError) else 0)
        assert list(end.rows) == ([] if forgotten else [50])

    async with exploring() as explorer:
        report = await explorer.explore(
            DRAWN, [calls.gc_unused_ids(10)], [insert(calls)], used_or_forgotten, errors=USED_BEFORE, begin=True
        )
    assert report.faults == []
    assert len(report.ends) == 2


async def test_without_the_check_an_id_is_used_by_both(exploring: Exploring, calls: StatementBuilder) -> None:
    """Taken out: the second call collides with the row of the first, or uses an id that was forgotten."""
    unchecked = Cure("use_up_allocated_ids", "taken <> cardinality(ids)", "false")
    async with exploring(unchecked) as explorer:
        report = await explorer.explore(DRAWN, [calls.gc_unused_ids(10)], [insert(calls)], check_unused, begin=True)
    assert report.faults != []


def check_unused(end: End) -> None:
    assert not (end.left[0] == 1 and end.rows)
