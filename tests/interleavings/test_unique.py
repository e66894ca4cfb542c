"""Unique keys, taken by two at once: one holder, everybody is told of it, and nobody deadlocks."""

from __future__ import annotations

import json
from collections.abc import Sequence

import asyncpg
import pytest
from tests.support.breakpoints import ROW_BREAKPOINTS, Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.machine import M
from tests.support.rows import LIVE, executing, instance

from gen_durable.starts import Start
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, InsertResult


def insert(calls: StatementBuilder, keys: Sequence[str], on_conflict: str) -> Statement[list[InsertResult]]:
    return calls.insert([Start(M.s, {}, unique_key=key) for key in keys], on_conflict)


def spawn(id: int, keys: Sequence[str]) -> Commit:  # noqa: A002  # the column's name
    one = {"fsm": "m", "version": 1, "step": "s", "state": {}, "queue": "default", "priority": 0, "delay": 0}
    children = [one | {"unique_key": key.encode().hex(), "unique_scope": LIVE} for key in keys]
    return Commit(id, 1, 0, "children", step="t", extra=json.dumps({"children": children}))


def holders(end: End) -> dict[str, int]:
    held = [(row["unique_guard"].decode(), row["id"]) for row in end.rows.values() if row["unique_guard"]]
    assert len(dict(held)) == len(held), f"a key has two holders: {held}"
    return dict(held)


def all_told(end: End) -> None:
    """Each key has one holder; both callers have its id, and one of them made it."""
    held = holders(end)
    assert sorted(held) == ["a", "b"]
    for side, keys in ((end.left, "ab"), (end.right, "ba")):
        assert [one.id for one in side[0]] == [held[key] for key in keys]
    made = [one.id for side in (end.left, end.right) for one in side[0] if one.new]
    assert sorted(made) == sorted(held.values())


async def test_insert_insert_existing(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two batches with the same keys in opposite order: no deadlock, one holder each, both are told its id."""
    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(
            "", [insert(calls, "ab", "existing")], [insert(calls, "ba", "existing")], all_told
        )
    assert report.faults == []
    assert report.schedules > 10


async def test_insert_insert_skip(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same, skipping what is taken: each key was made by exactly one of the two."""

    def made_once(end: End) -> None:
        made = sorted(one.id for side in (end.left, end.right) for one in side[0] if one.new)
        assert made == sorted(holders(end).values())
        assert all((one.id is not None) == one.new for side in (end.left, end.right) for one in side[0])

    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore("", [insert(calls, "ab", "skip")], [insert(calls, "ba", "skip")], made_once)
    assert report.faults == []


async def test_insert_insert_raise(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same, refusing what is taken: one call makes both rows, the other makes none and is told who holds a key."""

    def one_made_all(end: End) -> None:
        held = holders(end)
        refused = [a for a in (*end.left, *end.right) if isinstance(a, asyncpg.PostgresError)]
        assert len(refused) == 1
        assert int(refused[0].hint or 0) in held.values()
        assert sorted(held) == ["a", "b"]

    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(
            "",
            [insert(calls, "ab", "raise")],
            [insert(calls, "ba", "raise")],
            one_made_all,
            errors=frozenset({"GD001"}),
        )
    assert report.faults == []


@pytest.mark.parametrize("on_conflict", ["existing", "skip"])
async def test_insert_end(exploring: Exploring, calls: StatementBuilder, on_conflict: str) -> None:
    """The holder ends while its key is asked for: the caller gets the old holder, is skipped, or makes a new one."""

    def told(end: End) -> None:
        (one,) = end.left[0]
        assert one.new in (True, False)
        if one.new:
            assert holders(end) == {"a": one.id}
        else:
            assert one.id == (1 if on_conflict == "existing" else None)

    given = executing(1, unique_key=b"a", unique_scope=LIVE)
    ends = [calls.flush([Commit(1, 1, 0, "done", value="1")])]
    async with exploring() as explorer:
        report = await explorer.explore(given, [insert(calls, "a", on_conflict)], ends, told, begin=True)
    assert report.faults == []


PARENTS = executing(1) + executing(2)


def counted(end: End) -> None:
    """Each key was made once; a parent waits for the children it made, or goes on if it made none."""
    held = holders(end)
    assert sorted(held) == ["a", "b"]
    for id_ in (1, 2):
        mine = [row for row in end.rows.values() if row["parent_id"] == id_]
        row = end.rows[id_]
        assert row["children_pending"] == len(mine)
        assert row["status"] == ("awaiting_children" if mine else "runnable")


async def test_spawn_spawn(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two parents start children with the same keys in opposite order: one child each, counted by who made it."""
    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(
            PARENTS, [calls.flush([spawn(1, "ab")])], [calls.flush([spawn(2, "ba")])], counted
        )
    assert report.faults == []
    assert len(report.ends) >= 2


async def test_spawn_insert(exploring: Exploring, calls: StatementBuilder) -> None:
    """A parent starts children whose keys are inserted at the same time, in opposite order: one holder each."""

    def one_each(end: End) -> None:
        held = holders(end)
        assert [one.id for one in end.right[0]] == [held["b"], held["a"]]

    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(
            executing(1), [calls.flush([spawn(1, "ab")])], [insert(calls, "ba", "existing")], one_each
        )
    assert report.faults == []


HOLDERS = executing(1, unique_key=b"a", unique_scope=LIVE) + executing(2, unique_key=b"b", unique_scope=LIVE)


async def test_spawn_spawn_of_each_other(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two holders of keys start children under each other's key: neither is made, nobody deadlocks, both go on."""

    def both_go_on(end: End) -> None:
        assert {row["status"] for row in end.rows.values()} == {"runnable"}
        assert len(end.rows) == 2

    async with exploring() as explorer:
        report = await explorer.explore(
            HOLDERS, [calls.flush([spawn(1, "b")])], [calls.flush([spawn(2, "a")])], both_go_on
        )
    assert report.faults == []


async def test_parents_changed_before_their_children_go_in_deadlock(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    """An insert waits for a change of the row that holds its key: a parent that was changed first closes the circle."""
    start = "spawn_queues := @schema.insert_instances_of_outcomes(ids, claims, seqs, kinds, extras);"
    change = "update @schema.instances i set updated_at = now() where i.id = any (ids);"
    async with exploring(Cure("flush", start, change + start)) as explorer:
        report = await explorer.explore(
            HOLDERS, [calls.flush([spawn(1, "b")])], [calls.flush([spawn(2, "a")])], lambda _: None, first_fault=True
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40P01"}]


async def test_spawn_insert_of_the_parents_key(exploring: Exploring, calls: StatementBuilder) -> None:
    """A batch asks for the parent's key and for its child's: nobody deadlocks, and the batch is told both ids."""

    def told(end: End) -> None:
        held = holders(end)
        assert [one.id for one in end.right[0]] == [held["a"], held["b"]]

    given = executing(1, unique_key=b"b", unique_scope=LIVE)
    async with exploring(also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(given, [calls.flush([spawn(1, "a")])], [insert(calls, "ab", "existing")], told)
    assert report.faults == []


async def test_insert_without_key_order_deadlocks(exploring: Exploring, calls: StatementBuilder) -> None:
    """Batches that take their keys as they come wait for each other in a circle."""
    async with exploring(
        Cure("insert", "order by given.unique_key, given.ord", "order by given.ord"), also=ROW_BREAKPOINTS
    ) as explorer:
        report = await explorer.explore(
            "", [insert(calls, "ab", "existing")], [insert(calls, "ba", "existing")], all_told, first_fault=True
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40P01"}]


async def test_spawn_without_key_order_deadlocks(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same for children."""
    by_key = "order by decode(start.unique_key, 'hex'), start.child_id"
    cure = Cure("insert_instances_of_outcomes", by_key, "order by start.id")
    async with exploring(cure, also=ROW_BREAKPOINTS) as explorer:
        report = await explorer.explore(
            PARENTS, [calls.flush([spawn(1, "ab")])], [calls.flush([spawn(2, "ba")])], counted, first_fault=True
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40P01"}]


async def test_insert_that_reads_before_it_waits_is_found(exploring: Exploring, calls: StatementBuilder) -> None:
    """Without a second try, a caller whose holder has just ended gets neither the holder nor a new row."""
    given = executing(1, unique_key=b"a", unique_scope=LIVE)
    ends = [calls.flush([Commit(1, 1, 0, "done", value="1")])]

    def told(end: End) -> None:
        assert [one.id is not None for one in end.left[0]] == [True]

    async with exploring(Cure("insert", "for try in 1..20 loop", "for try in 1..1 loop")) as explorer:
        report = await explorer.explore(given, [insert(calls, "a", "existing")], ends, told, first_fault=True)
    assert [fault.sqlstates for fault in report.faults] == [{"40001"}]


async def test_insert_claim(exploring: Exploring, calls: StatementBuilder) -> None:
    """A key is asked for while its holder is being claimed: the caller waits, and is told the holder."""

    def told(end: End) -> None:
        assert [(one.id, one.new) for one in end.left[0]] == [(1, False)]
        assert [claim.id for claim in end.right[0].claims] == [1]

    given = instance(1, unique_key=b"a", unique_scope=LIVE)
    pick = calls.pick("w", {"default": 1}, ["m/1/s"], 60)
    async with exploring() as explorer:
        report = await explorer.explore(given, [insert(calls, "a", "existing")], [pick], told)
    assert report.faults == []
