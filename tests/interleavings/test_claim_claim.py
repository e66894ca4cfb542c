"""Two workers pick at once: a row goes to one of them, and of a partition key one row runs, in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.interleavings.breakpoints import Cure
from tests.interleavings.conftest import Exploring
from tests.interleavings.explorer import End
from tests.interleavings.given import executing, instance, seconds

from gen_durable.store.calls import Call, Calls
from gen_durable.store.rows import Picked

KNOWN = ["m/1/s"]
PAIR = instance(1, partition_key="k", eligible_at=seconds(-2)) + instance(2, partition_key="k", eligible_at=seconds(-1))


def picks(calls: Calls, worker: str, demand: int = 1) -> Call[Picked]:
    return calls.pick(worker, {"default": demand}, KNOWN, 60)


def taken(answers: Sequence[object]) -> list[int]:
    return [claim.id for answer in answers if isinstance(answer, Picked) for claim in answer.claims]


async def test_claim_claim_one_row(exploring: Exploring, calls: Calls) -> None:
    """One due row, two pickers: exactly one gets it, claimed once."""

    def one(end: End) -> None:
        assert taken(end.left) + taken(end.right) == [1]
        assert (end.rows[1]["status"], end.rows[1]["claims"]) == ("executing", 1)

    async with exploring() as explorer:
        report = await explorer.explore(instance(1), [picks(calls, "a")], [picks(calls, "b")], one, begin=True)
    assert report.faults == []
    assert report.schedules > 10


async def test_claim_claim_two_rows(exploring: Exploring, calls: Calls) -> None:
    """Two due rows, two pickers with room for both: no row is taken twice, none is left."""

    def all_once(end: End) -> None:
        assert sorted(taken(end.left) + taken(end.right)) == [1, 2]

    async with exploring() as explorer:
        report = await explorer.explore(
            instance(1) + instance(2), [picks(calls, "a", 2)], [picks(calls, "b", 2)], all_once
        )
    assert report.faults == []


def head_only(end: End) -> None:
    assert taken(end.left) + taken(end.right) == [1], "not exactly the first row of the key"


@pytest.mark.parametrize("in_scans", [False, True])
async def test_claim_claim_one_key(exploring: Exploring, calls: Calls, in_scans: bool) -> None:
    """Two due rows of one partition key, two pickers: one takes the first row, nobody takes the second."""
    async with exploring(in_scans=in_scans) as explorer:
        report = await explorer.explore(PAIR, [picks(calls, "a")], [picks(calls, "b")], head_only)
    assert report.faults == []


def urgent(calls: Calls) -> list[Call[Picked]]:
    """A row that overtakes the others of its key comes in, and its worker picks."""
    row = instance(2, partition_key="k", priority=-1).replace(";", " returning id")
    return [Call(calls.schema.render(row), (), lambda _rows: Picked([], [])), picks(calls, "b")]


WAITING = instance(1, partition_key="k", eligible_at=seconds(-1))


def one_runs(end: End) -> None:
    ids = taken(end.left) + taken(end.right)
    assert len(ids) <= 1, "two of one key run"
    if not ids:
        news = [n for answer in (*end.left, *end.right) if isinstance(answer, Picked) for n in answer.news]
        assert any(n.next_due is not None and n.next_due < 1 for n in news), "nobody was told to look again"


async def test_claim_claim_overtaken(exploring: Exploring, calls: Calls) -> None:
    """A more urgent row of the key arrives while the first is being claimed: at most one of them runs.

    If each picker steps back for the other, at least one of them is told to look again at once.
    """
    async with exploring() as explorer:
        report = await explorer.explore(WAITING, [picks(calls, "a")], urgent(calls), one_runs)
    assert report.faults == []


CHECK_AGAIN = "and @schema.heads_partition(c.partition_key, c.priority, c.due_at, c.id)\n        );"
TRY_LOCK = " filter (where pg_try_advisory_xact_lock(hashtextextended('@schema/' || k.key, 0)))"


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(Cure("pick", TRY_LOCK), id="no-advisory-lock"),
        pytest.param(Cure("pick", CHECK_AGAIN, ");"), id="no-second-check"),
    ],
)
async def test_without_its_cure_two_claims_collide(exploring: Exploring, calls: Calls, cure: Cure) -> None:
    """Without the key's lock, or the check under it, two pickers claim one key: the index refuses the second."""
    async with exploring(cure) as explorer:
        report = await explorer.explore(WAITING, [picks(calls, "a")], urgent(calls), one_runs, first_fault=True)
    assert [fault.sqlstates for fault in report.faults] == [{"23505"}]


async def test_without_the_head_check_order_breaks(exploring: Exploring, calls: Calls) -> None:
    """Without the look at who comes before, a later row of the key runs first."""
    before = """and not exists (
    select from @schema.gen_durable h
    where h.partition_key = key and h.due_at <= now()
      and (h.priority, h.due_at, h.id) < (of_priority, of_due_at, of_id)
  )"""
    async with exploring(Cure("heads_partition", before)) as explorer:
        report = await explorer.explore(PAIR, [picks(calls, "a")], [picks(calls, "b")], head_only, first_fault=True)
    assert len(report.faults) == 1


async def test_release_claim(exploring: Exploring, calls: Calls) -> None:
    """A row of a key is given back while another worker picks: the other gets the head or nothing, never the second."""

    def in_order(end: End) -> None:
        assert taken(end.right) in ([], [1])

    given = executing(1, partition_key="k", eligible_at=seconds(-2)) + instance(
        2, partition_key="k", eligible_at=seconds(-1)
    )
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.release([(1, 1, None, None)])], [picks(calls, "b", 2)], in_order, begin=True
        )
    assert report.faults == []
