"""A policy is changed or removed while others grant by it, ask for it from inside, or leave its line."""

from __future__ import annotations

from typing import Any

import asyncpg
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
    async with exploring(
        quiet=[*NOT_HERE, "unblock", "unblock_slot_rows", "set_limit", "count_ended_children_and_wake_parents"]
    ) as explorer:
        report = await explorer.explore(
            given, [Statement(text, (), list)], [calls.cancel([(1, None)], "why", cascade=False)], over
        )
    assert report.faults == []


async def test_reapply_cancel(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same under the locks of the gates, for a row that was told its moment just before them."""

    def over(end: End) -> None:
        row = end.rows[1]
        assert (row["status"], row["blocked_on"], row["token_at"]) == ("cancelled", None, None)

    given = rate(3600, 1) + instance(1, rate_key="r", eligible_at=seconds(-9), token_at=seconds(600))
    reapplies: Statement[Any] = Statement(calls.schema.render("select @schema.reapply_limit('r')"), (), list)
    async with exploring(
        quiet=[*NOT_HERE, "unblock", "unblock_slot_rows", "count_ended_children_and_wake_parents"]
    ) as explorer:
        report = await explorer.explore(given, [reapplies], [calls.cancel([(1, None)], "why", cascade=False)], over)
    assert report.faults == []


async def test_declare_declare(exploring: Exploring, calls: StatementBuilder) -> None:
    """A limit is declared twice at once, with both kinds: the second declaration is refused, and changes nothing."""

    def one_is_refused(end: End) -> None:
        assert sum(isinstance(answer, asyncpg.PostgresError) for answer in (*end.left, *end.right)) == 1

    text = calls.schema.render("select changed, woken_queues from @schema.set_limit('l', 'rate', null, 1, 1, null)")
    async with exploring(quiet=[*NOT_HERE, "reapply_limit", "reblock_rows_and_lock_limit_gates"]) as explorer:
        report = await explorer.explore(
            "select 1;\n", [changes(calls, 1)], [Statement(text, (), list)], one_is_refused, errors=frozenset({"GD005"})
        )
    assert report.faults == []


async def test_removal_declare(exploring: Exploring, calls: StatementBuilder) -> None:
    """A limit is removed while it is set again: the answers fit to the order of the commits."""

    def in_order(end: End) -> None:
        (answer,) = end.right[0]
        assert answer["changed"] == (end.commits == "AB"), "the call that created the limit did not say so"

    removes: list[Statement[Any]] = [calls.remove_limit("l")]
    async with exploring(quiet=[*NOT_HERE, "reapply_limit", "reblock_rows_and_lock_limit_gates"]) as explorer:
        report = await explorer.explore(slots(1), removes, [changes(calls, 1)], in_order)
    assert report.faults == []


async def test_sweep_sweep(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two sweeps find one free slot: they let one row back, not one each."""

    def one(end: End) -> None:
        assert sum(end.rows[i]["blocked_on"] is None for i in (1, 2)) == 1

    both: list[Statement[Any]] = [calls.unblock_missed_rows(None, 10)]
    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(slots(1) + waiting(1, 2, blocked_on="slot/l"), both, both, one)
    assert report.faults == []


# Commits an outcome whose next step has the limit l. The server rejects it while l is not declared; its worker then
# puts the claim back, in a transaction of its own.
FLUSH_OR_REJECT = """
create or replace function @schema.flush_or_reject(epoch bigint) returns text language plpgsql as $$
begin
  perform from @schema.flush(
    '{1}', array[epoch], '{0}', '{next}', '{s2}', '{"1"}', '{}', '{}', '{}',
    array['{"limits": [["l", null, 1]]}'::jsonb]
  );
  return 'written';
exception when sqlstate 'GD002' then
  return 'rejected';
end
$$;
"""
REASON = "Unknown limit 'l'"


async def test_put_back_declare(exploring: Exploring, calls: StatementBuilder) -> None:
    """An outcome names a limit while that is declared: it is written, or its row rests for a moment and then runs again
    and is written. Nothing is counted, and the row never ends.
    """
    flush = calls.schema.render("select @schema.flush_or_reject($1)")
    ends: set[str] = set()

    def flushes(epoch: int) -> Statement[str]:
        return Statement(flush, (epoch,), lambda rows: str(rows[0][0]))

    def puts_back(answers: list[Any]) -> Statement[Any] | None:
        return calls.release_claims([(1, 1, 1.0, REASON)], 30.0) if answers == ["rejected"] else None

    def written_or_resting(end: End) -> None:
        row = end.rows[1]
        ends.add(end.left[0])
        assert (row["status"], row["attempt"], row["step_errors"], row["crashes"]) == ("runnable", 0, 0, 0)
        if end.left[0] == "written":
            assert (row["step"], row["slot_key"], row["seq"], row["last_error"]) == ("s2", "l", 1, None)
        else:
            assert (row["step"], row["slot_key"], row["seq"], row["last_error"]) == ("s", None, 0, REASON)
            assert 1 <= (row["eligible_at"] - row["updated_at"]).total_seconds() < 1.2

    quiet = [name for name in NOT_HERE if name != "keys_of_limits"] + ["reapply_limit"]
    async with exploring(also=FLUSH_OR_REJECT, quiet=quiet) as explorer:
        report = await explorer.explore(
            executing(1), [flushes(1), puts_back], [changes(calls, 1)], written_or_resting, begin=True
        )
        assert report.faults == []
        assert ends == {"written", "rejected"}

        def written(end: End) -> None:
            row = end.rows[1]
            assert (row["step"], row["slot_key"], row["seq"], row["last_error"]) == ("s2", "l", 1, None)

        # The worker that picks the row again, after the limit was declared.
        report = await explorer.explore(
            slots(1) + instance(1, last_error=REASON, postponements=1),
            [picks(calls, "b"), flushes(1)],
            [changes(calls, 2)],
            written,
        )
    assert report.faults == []
