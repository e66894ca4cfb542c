"""Partition keys in corners, by interleaving."""

from __future__ import annotations

from typing import Any

from tests.interleavings.test_claim_claim import KNOWN, taken
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, instance, parked, seconds

from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal, PickResult


def urgent_elsewhere(calls: StatementBuilder) -> list[Statement[Any]]:
    row = instance(2, partition_key="k", priority=-1, queue="b", eligible_at=seconds(-1)).replace(";", " returning id")
    return [Statement(calls.schema.render(row), (), lambda _rows: PickResult([], []))]


async def test_a_pick_of_two_queues_overtaken(exploring: Exploring, calls: StatementBuilder) -> None:
    """The first row of a key is admitted in one queue; then a more urgent one comes into the other."""

    def one(end: End) -> None:
        assert len(set(taken(end.left)) & {1, 2}) == 1

    given = instance(1, partition_key="k", queue="a", eligible_at=seconds(-1)) + instance(
        3, priority=-1, queue="b", eligible_at=seconds(-9)
    )
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.pick("w", {"a": 1, "b": 2}, KNOWN, 60)], urgent_elsewhere(calls), one
        )
    assert report.faults == []


def not_stranded(end: End) -> None:
    pass


async def test_signal_of_the_head_and_a_pick_of_another(exploring: Exploring, calls: StatementBuilder) -> None:
    """A parked head whose deadline has passed is due and first; a signal puts it behind; a pick is under way."""
    given = parked(1, partition_key="k", await_deadline=seconds(-5)) + instance(
        2, partition_key="k", eligible_at=seconds(-1)
    )
    async with exploring() as explorer:
        report = await explorer.explore(
            given,
            [calls.signal([OutgoingSignal(1, None, "go", "1", None)])],
            [calls.pick("b", {"default": 1}, KNOWN, 60)],
            not_stranded,
            begin=True,
        )
    assert report.faults == []


async def test_replay_and_insert_and_pick(exploring: Exploring, calls: StatementBuilder) -> None:
    given = (
        executing(1, partition_key="k", eligible_at=seconds(-9))
        + instance(2, partition_key="k", eligible_at=seconds(-1))
        + instance(3, partition_key="k", eligible_at=seconds(-2), blocked_on="partition/k")
    )
    async with exploring() as explorer:
        report = await explorer.explore(
            given,
            [calls.flush([Commit(1, 1, 0, "retry")])],
            [calls.pick("b", {"default": 1}, KNOWN, 60)],
            not_stranded,
            begin=True,
        )
    assert report.faults == []


async def test_release_and_pick_of_the_blocked(exploring: Exploring, calls: StatementBuilder) -> None:
    given = executing(1, partition_key="k", eligible_at=seconds(-9)) + instance(
        2, partition_key="k", eligible_at=seconds(-1)
    )
    async with exploring() as explorer:
        report = await explorer.explore(
            given,
            [calls.release_claims([(1, 1, 60.0, "x")])],
            [calls.pick("b", {"default": 1}, KNOWN, 60)],
            not_stranded,
            begin=True,
        )
    assert report.faults == []
