"""A policy is changed or removed while others grant by it, ask for it from inside, or leave its line."""

from __future__ import annotations

from typing import Any

from tests.interleavings.test_claim_claim import picks
from tests.interleavings.test_limits import NOT_HERE, changes, enters, rate, slots, waiting
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, instance, seconds

from gen_durable.store.statements import Statement, StatementBuilder


async def test_policy_enter(exploring: Exploring, calls: StatementBuilder) -> None:
    """A step that asks from inside after a change to fewer slots is told by the new policy."""

    def new_policy(end: End) -> None:
        assert end.commits == "BA" or not end.right[0].is_granted, "it was let in by the policy before"

    given = slots(2) + executing(1) + executing(2, slot_key="l")
    async with exploring(quiet=[*NOT_HERE, "reapply_limit"]) as explorer:
        report = await explorer.explore(given, [changes(calls, 1)], [enters(calls, 1, 7)], new_policy)
    assert report.faults == []


async def test_removal_pick(exploring: Exploring, calls: StatementBuilder) -> None:
    """A pick blocks rows by a policy that is being removed: they are let back, for nobody else would do it."""

    def all_free(end: End) -> None:
        assert [end.rows[i]["blocked_on"] for i in (2, 3)] == [None, None]

    given = slots(1) + executing(1, slot_key="l") + waiting(2, 3)
    removes: list[Statement[Any]] = [calls.remove_limit("l")]
    async with exploring(quiet=[*NOT_HERE, "reapply_limit"]) as explorer:
        report = await explorer.explore(given, removes, [picks(calls, "b", 2)], all_free)
    assert report.faults == []


async def test_policy_cancel(exploring: Exploring, calls: StatementBuilder) -> None:
    """Rows that were told their moments are told anew as one of them is cancelled: it is not put back into the line."""

    def over(end: End) -> None:
        row = end.rows[1]
        assert (row["status"], row["blocked_on"], row["token_at"]) == ("cancelled", None, None)

    given = rate(3600, 1) + "".join(
        instance(i, rate_key="r", eligible_at=seconds(-9), token_at=seconds(600)) for i in (1, 2)
    )
    text = calls.schema.render("select changed, woken_queues from @schema.set_limit('r', 'rate', null, 1800, 1, null)")
    async with exploring(quiet=[*NOT_HERE, "unblock", "unblock_slots", "set_limit", "wake_parents"]) as explorer:
        report = await explorer.explore(
            given, [Statement(text, (), list)], [calls.cancel([(1, None)], "why", cascade=False)], over
        )
    assert report.faults == []


async def test_sweep_sweep(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two sweeps find one free slot: they let one row back, not one each."""

    def one(end: End) -> None:
        assert sum(end.rows[i]["blocked_on"] is None for i in (1, 2)) == 1

    both: list[Statement[Any]] = [calls.unblock_missed(None, 10)]
    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(slots(1) + waiting(1, 2, blocked_on="slot/l"), both, both, one)
    assert report.faults == []
