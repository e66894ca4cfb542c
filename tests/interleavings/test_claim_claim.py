"""Two workers pick at once: a row goes to one of them, and of a partition key one row runs, in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, instance, seconds

from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, PickResult

KNOWN = ["m/1/s"]
PAIR = instance(1, partition_key="k", eligible_at=seconds(-2)) + instance(2, partition_key="k", eligible_at=seconds(-1))


def picks(calls: StatementBuilder, worker: str, demand: int = 1) -> Statement[PickResult]:
    return calls.pick(worker, {"default": demand}, KNOWN, 60)


def taken(answers: Sequence[object]) -> list[int]:
    return [claim.id for answer in answers if isinstance(answer, PickResult) for claim in answer.claims]


async def test_claim_claim_one_row(exploring: Exploring, calls: StatementBuilder) -> None:
    """One due row, two pickers: exactly one gets it, claimed once."""

    def one(end: End) -> None:
        assert taken(end.left) + taken(end.right) == [1]
        assert (end.rows[1]["status"], end.rows[1]["claims"]) == ("executing", 1)

    async with exploring() as explorer:
        report = await explorer.explore(instance(1), [picks(calls, "a")], [picks(calls, "b")], one, begin=True)
    assert report.faults == []
    assert report.schedules > 10


async def test_claim_claim_two_rows(exploring: Exploring, calls: StatementBuilder) -> None:
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


async def test_claim_claim_one_key(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two due rows of one partition key, two pickers: one takes the first or looks again; none takes the second."""

    def first(end: End) -> None:
        one_runs(end)
        assert set(taken(end.left) + taken(end.right)) <= {1}

    async with exploring() as explorer:
        report = await explorer.explore(PAIR, [picks(calls, "a")], [picks(calls, "b")], first)
    assert report.faults == []


def urgent(calls: StatementBuilder) -> list[Statement[PickResult]]:
    """A row that overtakes the others of its key comes in, and its worker picks."""
    row = instance(2, partition_key="k", priority=-1).replace(";", " returning id")
    return [Statement(calls.schema.render(row), (), lambda _rows: PickResult([], [])), picks(calls, "b")]


WAITING = instance(1, partition_key="k", eligible_at=seconds(-1))


def one_runs(end: End) -> None:
    ids = taken(end.left) + taken(end.right)
    assert len(ids) <= 1, "two of one key run"
    if not ids:
        news = [n for answer in (*end.left, *end.right) if isinstance(answer, PickResult) for n in answer.unmet]
        assert any(n.next_due is not None and n.next_due < 1 for n in news), "nobody was told to look again"


async def test_claim_claim_overtaken(exploring: Exploring, calls: StatementBuilder) -> None:
    """A more urgent row of the key arrives while the first is being claimed: at most one of them runs.

    If each picker steps back for the other, at least one of them is told to look again at once.
    """
    async with exploring() as explorer:
        report = await explorer.explore(WAITING, [picks(calls, "a")], urgent(calls), one_runs)
    assert report.faults == []


TRY_LOCK = """
    select from @schema.gate_locks lock where lock.id = @schema.gate_row_id(@schema.gate_name('partition', wanted.key))
    for no key update skip locked"""


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(Cure("admit_or_block_rows_by_partition", TRY_LOCK, "select"), id="no-lock-of-the-key"),
        pytest.param(
            Cure("admit_or_block_rows_by_partition", "not key_state.is_busy and candidate.id", "candidate.id"),
            id="no-look-at-who-executes",
        ),
    ],
)
async def test_without_its_cure_two_claims_collide(exploring: Exploring, calls: StatementBuilder, cure: Cure) -> None:
    """Without the key's lock, or the check under it, two pickers claim one key: the index refuses the second."""
    async with exploring(cure) as explorer:
        report = await explorer.explore(WAITING, [picks(calls, "a")], urgent(calls), one_runs, first_fault=True)
    assert [fault.sqlstates for fault in report.faults] == [{"23505"}]


async def test_without_the_head_check_order_breaks(exploring: Exploring, calls: StatementBuilder) -> None:
    """Without the look at who comes before, a later row of the key runs first, or two of them."""
    cure = Cure(
        "admit_or_block_rows_by_partition",
        "(not key_state.is_busy and candidate.id = key_state.head)",
        "not key_state.is_busy",
    )
    async with exploring(cure) as explorer:
        report = await explorer.explore(PAIR, [picks(calls, "a", 2)], [picks(calls, "b")], head_only, first_fault=True)
    assert len(report.faults) == 1


async def test_release_claim(exploring: Exploring, calls: StatementBuilder) -> None:
    """A row of a key is given back while another worker picks: the other gets the head or nothing, never the second."""

    def in_order(end: End) -> None:
        assert taken(end.right) in ([], [1])

    given = executing(1, partition_key="k", eligible_at=seconds(-2)) + instance(
        2, partition_key="k", eligible_at=seconds(-1)
    )
    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.release_claims([(1, 1, None, None)])], [picks(calls, "b", 2)], in_order, begin=True
        )
    assert report.faults == []


HELD = executing(1, partition_key="k", eligible_at=seconds(-2)) + instance(
    2, partition_key="k", eligible_at=seconds(-1)
)
DONE = Commit(1, 1, 0, "done")


def handed_over(end: End) -> None:
    """The second row was claimed, or may be; the picker was not told that it waits for nothing."""
    assert (end.rows[2]["status"], end.rows[2]["blocked_on"]) in (("runnable", None), ("executing", None))


async def test_block_release(exploring: Exploring, calls: StatementBuilder) -> None:
    """A row is blocked for a key that is being freed: whoever frees it sees the row, or the row is not blocked."""
    async with exploring() as explorer:
        report = await explorer.explore(HELD, [calls.flush([DONE])], [picks(calls, "b")], handed_over, begin=True)
    assert report.faults == []
    assert report.schedules > 10


async def test_block_release_by_delay(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same when the holder goes away for a while: its key is free meanwhile."""
    later = calls.flush([Commit(1, 1, 0, "retry", delay=3600.0)])
    async with exploring() as explorer:
        report = await explorer.explore(HELD, [later], [picks(calls, "b")], handed_over, begin=True)
    assert report.faults == []


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(Cure("flush", "more := @schema.unblock(freed_gates, true);"), id="no-hand-over"),
        pytest.param(
            Cure(
                "unblock",
                """perform from @schema.gate_locks lock
    where lock.id = any (array(select @schema.gate_row_id(freed.gate) from unnest(gates) as freed (gate)))
    order by lock.id
    for no key update;""",
                "null;",
            ),
            id="no-lock-of-the-key",
        ),
    ],
)
async def test_without_its_cure_a_row_is_stranded(exploring: Exploring, calls: StatementBuilder, cure: Cure) -> None:
    """Without the hand-over, or the key's lock around it, some schedule leaves the row blocked for good."""
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            HELD, [calls.flush([DONE])], [picks(calls, "b")], handed_over, begin=True, first_fault=True
        )
    assert len(report.faults) == 1


async def test_two_free_and_take_two_keys(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two commits free the same two keys, in their own orders, while rows wait: nobody deadlocks, all are let go."""
    given = "".join(
        executing(i, partition_key=key) for i, key in ((1, "a"), (2, "b"))
    ) + "".join(
        instance(i, partition_key=key, blocked_on=f"partition/{key}") for i, key in ((3, "a"), (4, "b"))
    )  # fmt: skip

    def free(end: End) -> None:
        assert [end.rows[i]["blocked_on"] for i in (3, 4)] == [None, None]

    one, two = calls.flush([Commit(1, 1, 0, "done")]), calls.flush([Commit(2, 1, 0, "done")])
    async with exploring() as explorer:
        report = await explorer.explore(given, [one], [two], free, begin=True)
    assert report.faults == []


async def test_sweep_pick(exploring: Exploring, calls: StatementBuilder) -> None:
    """The backstop lets a stranded row back while a pick blocks another of its key: the first of them may run."""
    given = instance(1, partition_key="k", eligible_at=seconds(-2), blocked_on="partition/k") + instance(
        2, partition_key="k", eligible_at=seconds(-1)
    )

    def first_goes(end: End) -> None:
        assert end.rows[1]["blocked_on"] is None
        assert end.rows[2]["status"] == "runnable"

    async with exploring() as explorer:
        report = await explorer.explore(
            given, [calls.unblock_missed_rows(None, 10)], [picks(calls, "b", 2)], first_goes
        )
    assert report.faults == []
