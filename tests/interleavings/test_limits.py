"""Limits by interleaving: never above the slots, never more tokens than there are, nobody left behind at a gate."""

from __future__ import annotations

from typing import Any

import pytest
from tests.interleavings.test_claim_claim import picks, taken
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, instance, seconds

from gen_durable.limits import Limit
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import AcquireLimitResult, Commit

DONE = Commit(1, 1, 0, "done")
# No partition keys here, except where it is said.
NOT_HERE = ["admit_or_block_rows_by_partition", "unblock_partition_rows", "unblock_rate_rows", "keys_of_limits"]


def slots(count: int) -> str:
    """The limit l, made a while ago."""
    return (
        "insert into @schema.limits (name, kind, slots, updated_at)"
        f" values ('l', 'concurrency', {count}, now() - interval '1 hour');\n"
    )


def rate(period: float, burst: int) -> str:
    """The limit r."""
    return f"insert into @schema.limits (name, kind, period, burst) values ('r', 'rate', {period}, {burst});\n"


def waiting(first: int, last: int, **columns: object) -> str:
    return "".join(instance(i, slot_key="l", eligible_at=seconds(i - 50), **columns) for i in range(first, last + 1))


def changes(calls: StatementBuilder, count: int) -> Statement[Any]:
    """A change of the policy of l."""
    text = calls.schema.render(
        "select changed, woken_queues from @schema.set_limit('l', 'concurrency', $1, null, null, null)"
    )
    return Statement(text, (count,), list)


def enters(calls: StatementBuilder, instance: int, ticket: int, name: str = "l") -> Statement[AcquireLimitResult]:
    return calls.acquire_step_limit(instance, 1, Limit(name), ticket)


def running(end: End) -> list[int]:
    return [i for i, row in end.rows.items() if row["status"] == "executing" and row["slot_key"] == "l"]


HELD = slots(1) + executing(1, slot_key="l") + waiting(2, 2)


def handed_over(end: End) -> None:
    """The second row was claimed, or may be."""
    assert end.rows[2]["blocked_on"] is None
    assert len(running(end)) <= 1


async def test_block_release_of_a_slot(exploring: Exploring, calls: StatementBuilder) -> None:
    """A row is blocked for a slot that is being freed: whoever frees it sees the row, or the row is not blocked."""
    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(HELD, [calls.flush([DONE])], [picks(calls, "b")], handed_over)
    assert report.faults == []
    assert report.schedules > 10


async def test_release_and_block_of_a_slot(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same when the claim is given back, and waits for a while."""
    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(
            HELD, [calls.release_claims([(1, 1, 60.0, "x")])], [picks(calls, "b")], handed_over
        )
    assert report.faults == []


WAIT = """perform from @schema.gate_locks lock
    where lock.id = any (array(select @schema.gate_row_id(freed.gate) from unnest(gates) as freed (gate)))
    order by lock.id
    for no key update;"""
GATE = """
    select from @schema.gate_locks lock where lock.id = @schema.gate_row_id(wanted.gate)
    for no key update skip locked"""
POLICY = "perform from @schema.gate_locks lock where lock.id >= 2048 order by lock.id for no key update;"


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(Cure("flush", "more := @schema.unblock(freed_gates, true);"), id="no-hand-over"),
        pytest.param(Cure("unblock", WAIT, "null;"), id="no-lock-of-the-gate"),
        pytest.param(Cure("admit_or_block_rows_by_limit", GATE, "select"), id="no-lock-of-the-gate-in-the-pick"),
    ],
)
async def test_without_its_cure_a_row_is_stranded_at_a_slot(
    exploring: Exploring, calls: StatementBuilder, cure: Cure
) -> None:
    async with exploring(cure, quiet=NOT_HERE) as explorer:
        report = await explorer.explore(HELD, [calls.flush([DONE])], [picks(calls, "b")], handed_over, first_fault=True)
    assert len(report.faults) == 1


def not_above(count: int) -> Any:
    def check(end: End) -> None:
        assert len(running(end)) <= count, f"{running(end)} run"

    return check


TWO = slots(1) + waiting(1, 2)


async def test_pick_pick_of_one_slot(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two pickers, one slot: one row runs, or both look again."""
    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(TWO, [picks(calls, "a")], [picks(calls, "b")], not_above(1))
    assert report.faults == []


async def test_without_the_gate_two_take_one_slot(exploring: Exploring, calls: StatementBuilder) -> None:
    async with exploring(Cure("admit_or_block_rows_by_limit", GATE, "select"), quiet=NOT_HERE) as explorer:
        report = await explorer.explore(TWO, [picks(calls, "a")], [picks(calls, "b")], not_above(1), first_fault=True)
    assert len(report.faults) == 1


TOKENS = rate(3600, 1) + "".join(instance(i, rate_key="r", eligible_at=seconds(i - 50)) for i in (1, 2))


def one_token(end: End) -> None:
    assert len(taken(end.left) + taken(end.right)) <= 1, "two tokens out of a bucket of one"


async def test_grant_grant_of_a_cold_bucket(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two pickers at a bucket that nobody has used: its tokens are granted once."""
    async with exploring(quiet=[*NOT_HERE, "unblock", "unblock_slot_rows"]) as explorer:
        report = await explorer.explore(TOKENS, [picks(calls, "a")], [picks(calls, "b")], one_token)
    assert report.faults == []


async def test_without_the_gate_a_token_is_granted_twice(exploring: Exploring, calls: StatementBuilder) -> None:
    cure = Cure("admit_or_block_rows_by_limit", GATE, "select")
    async with exploring(cure, quiet=[*NOT_HERE, "unblock", "unblock_slot_rows"]) as explorer:
        report = await explorer.explore(TOKENS, [picks(calls, "a")], [picks(calls, "b")], one_token, first_fault=True)
    assert len(report.faults) == 1


FEWER = slots(2) + waiting(1, 2)


def new_policy(end: End) -> None:
    """The left one has changed the policy to one slot."""
    assert end.commits == "BA" or len(running(end)) <= 1, "a pick that was committed later went by the policy before"


async def test_policy_pick_fewer_slots(exploring: Exploring, calls: StatementBuilder) -> None:
    """A pick that is committed after a change to fewer slots goes by the new policy."""
    async with exploring(quiet=[*NOT_HERE, "reapply_limit"]) as explorer:
        report = await explorer.explore(FEWER, [changes(calls, 1)], [picks(calls, "b", 2)], new_policy)
    assert report.faults == []


async def test_without_the_lock_of_the_policy_a_pick_goes_by_the_old_one(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    cure = Cure("reblock_rows_and_lock_limit_gates", POLICY)
    async with exploring(cure, quiet=[*NOT_HERE, "reapply_limit"]) as explorer:
        report = await explorer.explore(
            FEWER, [changes(calls, 1)], [picks(calls, "b", 2)], new_policy, first_fault=True
        )
    assert len(report.faults) == 1


MORE = slots(1) + executing(1, slot_key="l") + waiting(2, 3)


def all_free(end: End) -> None:
    assert [end.rows[i]["blocked_on"] for i in (2, 3)] == [None, None]


async def test_policy_pick_more_slots(exploring: Exploring, calls: StatementBuilder) -> None:
    """A pick blocks rows by the old policy while there come to be more slots: they are let back."""
    async with exploring(quiet=[*NOT_HERE, "reapply_limit"]) as explorer:
        report = await explorer.explore(MORE, [changes(calls, 3)], [picks(calls, "b", 2)], all_free)
    assert report.faults == []


async def test_without_the_lock_of_the_policy_rows_are_left_behind(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    cure = Cure("reblock_rows_and_lock_limit_gates", POLICY)
    async with exploring(cure, quiet=[*NOT_HERE, "reapply_limit"]) as explorer:
        report = await explorer.explore(MORE, [changes(calls, 3)], [picks(calls, "b", 2)], all_free, first_fault=True)
    assert len(report.faults) == 1


async def test_policy_flush(exploring: Exploring, calls: StatementBuilder) -> None:
    """A slot falls free by the old policy while there come to be more: as many are let back as there are slots."""
    given = slots(1) + executing(1, slot_key="l") + waiting(2, 3, blocked_on="slot/l")
    async with exploring(quiet=[*NOT_HERE, "reapply_limit"]) as explorer:
        report = await explorer.explore(given, [changes(calls, 2)], [calls.flush([DONE])], all_free)
    assert report.faults == []


TOLD = rate(3600, 1) + (
    "insert into @schema.rate_buckets values ('r', now() + interval '1 hour');\n"
    + instance(1, rate_key="r", eligible_at=seconds(-9), blocked_on="rate/r")
)


def told_anew(end: End) -> None:
    row = end.rows[1]
    assert (row["token_at"] - row["eligible_at"]).total_seconds() < 60, "the row waits by the policy before"


def faster(calls: StatementBuilder) -> Statement[Any]:
    text = calls.schema.render("select changed, woken_queues from @schema.set_limit('r', 'rate', null, 1, 1, null)")
    return Statement(text, (), list)


async def test_policy_sweep(exploring: Exploring, calls: StatementBuilder) -> None:
    """The sweep tells a row its moment while the policy is changed: it is told by the new one in the end."""
    async with exploring(quiet=["unblock_slot_rows", "reapply_limit"]) as explorer:
        report = await explorer.explore(TOLD, [faster(calls)], [calls.unblock_missed_rows(None, 10)], told_anew)
    assert report.faults == []


async def test_without_the_lock_of_the_policy_the_sweep_tells_by_the_old_one(
    exploring: Exploring, calls: StatementBuilder
) -> None:
    async with exploring(
        Cure("reblock_rows_and_lock_limit_gates", POLICY), quiet=["unblock_slot_rows", "reapply_limit"]
    ) as explorer:
        report = await explorer.explore(
            TOLD, [faster(calls)], [calls.unblock_missed_rows(None, 10)], told_anew, first_fault=True
        )
    assert len(report.faults) == 1


INSIDE = slots(1) + executing(1) + executing(2) + waiting(3, 3)


def insiders(end: End) -> list[AcquireLimitResult]:
    return [a for a in (*end.left, *end.right) if isinstance(a, AcquireLimitResult) and a.is_granted]


def one_inside(end: End) -> None:
    assert len(insiders(end)) + len(running(end)) <= 1, "two in one slot"


async def test_enter_pick(exploring: Exploring, calls: StatementBuilder) -> None:
    """A step asks for the slot from inside while a row is picked for it: one of them has it."""
    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(INSIDE, [enters(calls, 1, 7)], [picks(calls, "b")], one_inside)
    assert report.faults == []


async def test_enter_enter(exploring: Exploring, calls: StatementBuilder) -> None:
    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(INSIDE, [enters(calls, 1, 7)], [enters(calls, 2, 8)], one_inside)
    assert report.faults == []


ENTER_GATE = """perform from @schema.gate_locks lock
    where lock.id = @schema.gate_row_id(
      @schema.gate_name(case locked_kind when 'rate' then 'rate' else 'slot' end, key)
    )
    for no key update;"""


@pytest.mark.parametrize("with_a_pick", [True, False])
async def test_without_the_gate_two_enter(exploring: Exploring, calls: StatementBuilder, with_a_pick: bool) -> None:
    async with exploring(Cure("acquire_step_limit", ENTER_GATE), quiet=NOT_HERE) as explorer:
        other = picks(calls, "b") if with_a_pick else enters(calls, 2, 8)
        report = await explorer.explore(INSIDE, [enters(calls, 1, 7)], [other], one_inside, first_fault=True)
    assert len(report.faults) == 1


async def test_enter_enter_for_a_token(exploring: Exploring, calls: StatementBuilder) -> None:
    """One token, two that ask for it from inside, or one from inside and one row."""

    def once(end: End) -> None:
        assert len(insiders(end)) + len(taken(end.right)) <= 1

    given = rate(3600, 1) + executing(1) + executing(2) + instance(3, rate_key="r")
    async with exploring(quiet=[*NOT_HERE, "unblock", "unblock_slot_rows"]) as explorer:
        for other in (enters(calls, 2, 8, "r"), picks(calls, "b")):
            report = await explorer.explore(given, [enters(calls, 1, 7, "r")], [other], once)
            assert report.faults == []


TICKET = "insert into @schema.step_slots (ticket, slot_key, instance_id, claim) values (7, 'l', 1, 1);\n"


async def test_leave_pick(exploring: Exploring, calls: StatementBuilder) -> None:
    """A slot is given back from inside while a row is blocked for it: the row is let back."""

    def let_back(end: End) -> None:
        assert end.rows[3]["blocked_on"] is None

    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(INSIDE + TICKET, [calls.release_step_limit(7)], [picks(calls, "b")], let_back)
    assert report.faults == []


async def test_without_the_hand_over_leaving_strands_a_row(exploring: Exploring, calls: StatementBuilder) -> None:
    def let_back(end: End) -> None:
        assert end.rows[3]["blocked_on"] is None

    cure = Cure(
        "release_step_limit",
        "return case when key is not null then @schema.unblock(array[@schema.gate_name('slot', key)], true) end;",
        "return null;",
    )
    async with exploring(cure, quiet=NOT_HERE) as explorer:
        report = await explorer.explore(
            INSIDE + TICKET, [calls.release_step_limit(7)], [picks(calls, "b")], let_back, first_fault=True
        )
    assert len(report.faults) == 1


DEAD = slots(1) + executing(1, slot_key="l", lease_expires_at=seconds(-1), eligible_at=seconds(60)) + waiting(2, 2)


async def test_reap_pick(exploring: Exploring, calls: StatementBuilder) -> None:
    """The reaper frees a slot, and does not wait for a pick that blocks a row for it: the next sweep lets it back."""
    async with exploring(quiet=[*NOT_HERE, "reap", "count_ended_children_and_wake_parents"]) as explorer:
        report = await explorer.explore(
            DEAD,
            [calls.reap(10, 1)],
            [picks(calls, "b")],
            handed_over,
            begin=True,
            then="select @schema.unblock_missed_rows(null, 10)",
        )
    assert report.faults == []


async def test_sweep_pick_of_a_slot(exploring: Exploring, calls: StatementBuilder) -> None:
    """The sweep lets a stranded row back while a pick takes the slot for another: one of them has it."""
    given = slots(1) + waiting(1, 1, blocked_on="slot/l") + waiting(2, 2)

    async with exploring(quiet=NOT_HERE) as explorer:
        report = await explorer.explore(
            given, [calls.unblock_missed_rows(None, 10)], [picks(calls, "b", 2)], not_above(1)
        )
    assert report.faults == []


KEYED = (
    slots(1)
    + executing(1, slot_key="l")
    + executing(2, partition_key="k")
    + waiting(3, 3, partition_key="k")
    + waiting(4, 4, blocked_on="slot/l")
)


def slot_passes_on(end: End) -> None:
    assert end.rows[4]["blocked_on"] is None or end.rows[3]["due_at"] is not None


async def test_flush_of_a_slot_and_a_row_whose_key_is_busy(exploring: Exploring, calls: StatementBuilder) -> None:
    """The slot is kept for a row that can be picked; the pick finds that its partition key is busy: another gets it."""
    async with exploring(
        quiet=["unblock_partition_rows", "unblock_rate_rows", "admit_or_block_rows_by_limit"]
    ) as explorer:
        report = await explorer.explore(KEYED, [calls.flush([DONE])], [picks(calls, "b", 2)], slot_passes_on)
    assert report.faults == []


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(
            Cure(
                "admit_or_block_rows_by_partition",
                "woken_queues := woken_queues || @schema.unblock(slot_gates, false);",
            ),
            id="no-hand-over",
        ),
        pytest.param(
            Cure(
                "admit_or_block_rows_by_partition",
                """
        select from @schema.gate_locks lock where lock.id = @schema.gate_row_id(wanted.gate)
        for no key update skip locked""",
                "select",
            ),
            id="no-lock-of-the-slot",
        ),
    ],
)
async def test_without_its_cure_a_busy_key_keeps_a_slot(
    exploring: Exploring, calls: StatementBuilder, cure: Cure
) -> None:
    async with exploring(
        cure, quiet=["unblock_partition_rows", "unblock_rate_rows", "admit_or_block_rows_by_limit"]
    ) as explorer:
        report = await explorer.explore(
            KEYED, [calls.flush([DONE])], [picks(calls, "b", 2)], slot_passes_on, first_fault=True
        )
    assert len(report.faults) == 1


async def test_two_commits_free_two_slots(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two batches free the same two gates, with a change of policy that takes both: nobody deadlocks."""
    given = slots(2) + "".join(
        executing(i, slot_key=key) for i, key in ((1, "l/a"), (2, "l/b"), (3, "l/a"), (4, "l/b"))
    )
    given += "".join(instance(i, slot_key=k, blocked_on=f"slot/{k}") for i, k in ((5, "l/a"), (6, "l/b")))

    def free(end: End) -> None:
        assert [end.rows[i]["blocked_on"] for i in (5, 6)] == [None, None]

    one = calls.flush([Commit(1, 1, 0, "done"), Commit(2, 1, 0, "done")])
    two = calls.flush([Commit(3, 1, 0, "done"), Commit(4, 1, 0, "done")])
    async with exploring(quiet=[*NOT_HERE, "reapply_limit"]) as explorer:
        for other in (two, changes(calls, 3)):
            report = await explorer.explore(given, [one], [other], free)
            assert report.faults == []
