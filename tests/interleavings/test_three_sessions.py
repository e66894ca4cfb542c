"""Three sessions at once: what two of them agree on holds when a third one comes between.

Three sessions have too many schedules to run them all, so a sample is run, and its seed is printed. `make
interleavings` runs a large sample (SAMPLES=, SEED=). In the end of each schedule the background loops of a worker come
round once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.interleavings.test_cancel import CHILD, verdict
from tests.interleavings.test_claim_claim import picks, taken
from tests.interleavings.test_limits import GATE, POLICY, rate, slots, waiting
from tests.interleavings.test_park_deliver import LOCK
from tests.support.breakpoints import Cure
from tests.support.explorer import End, Sample
from tests.support.exploring import Exploring
from tests.support.rows import ended, executing, instance, parent, seconds, signal
from tests.support.sessions import Call

from gen_durable.limits import Concurrency, Rate
from gen_durable.store.instance_admin import InstanceAdminStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

pytestmark = pytest.mark.long  # `make test` explores two sessions

WAITS = "where parent.id = any (parents) order by parent.id for no key update skip locked"
BACKGROUND = (
    "select @schema.cancel_listed_descendants(9, null); select @schema.reap(10, null);"
    " select @schema.cancel_listed_descendants(9, null);"
    "select @schema.unblock_missed_rows(null, 10);"
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rows, the calls of three sessions, and what holds in the end of every schedule."""

    given: str
    sides: Callable[[StatementBuilder], Sequence[Sequence[Call]]]
    check: Callable[[End], None]


async def run(
    scenario: Scenario, exploring: Exploring, calls: StatementBuilder, sample: Sample, *without: Cure
) -> list[str]:
    """The faults of a sample of schedules; if a cure is taken out, the first one."""
    async with exploring(*without, sessions=3) as explorer:
        report = await explorer.explore_sessions(
            scenario.given,
            scenario.sides(calls),
            scenario.check,
            begin=True,
            then=BACKGROUND,
            sample=sample,
            first_fault=bool(without),
        )
    share = "all schedules" if report.is_complete else f"seed {sample.seed}"
    print(f"{report.schedules} schedules ({share}), {len(report.ends)} ends, {len(report.faults)} faults")
    return [f"seed {sample.seed}, schedule {fault.schedule}: {fault.problem}" for fault in report.faults]


# flush + reap + cancel: the lease of a child has expired while its outcome comes and it, or its parent, is cancelled.

HELD = (
    parent(1, pending=1)
    + executing(2, parent_id=1, parent_round=1, lease_expires_at=seconds(-1), partition_key="k")
    + instance(3, partition_key="k", blocked_on="partition/k", eligible_at=seconds(-1), queue="b")
    + signal(7, 2)
)
OUTCOMES = {
    "next": Commit(2, 1, 0, "next", step="t", extra=json.dumps({"consumed": [7]})),
    "await": Commit(2, 1, 0, "await", extra=json.dumps({"awaits": ["go"], "seen": []})),
    "children": Commit(2, 1, 0, "children", step="t", extra=json.dumps({"children": [CHILD]})),
    "done": Commit(2, 1, 0, "done", value="1", parent=1),
}


def ends_once(end: End) -> None:
    """One of the three ends the child; the outcome counts only for its claim, and the cancel is not lost."""
    flushed, reaped, child = end.answers[0][0], end.answers[1][0].claims, end.rows[2]
    stands = not flushed.stale_ids and not flushed.cancel_requested_ids
    assert not (stands and reaped), "the outcome of a claim that was taken back stands"
    assert stands or reaped or flushed.cancel_requested_ids, "the outcome is stale, and the claim was not taken back"
    if child["status"] == "done":
        assert stands
    elif child["status"] == "failed":
        assert [claim.dead for claim in reaped] == [True]
    else:
        assert (child["status"], child["last_error"]) == ("cancelled", "why"), "the cancel was lost"
    assert end.rows[3]["blocked_on"] is None, "the next row of the key was not unblocked"
    assert all(row["status"] == "cancelled" for row in end.rows.values() if row["parent_id"] == 2)


def child_cancelled(end: End) -> None:
    ends_once(end)
    row = end.rows[1]
    assert (row["status"], row["joined"], row["children_pending"]) == ("runnable", True, 0)
    assert verdict(end.answers[2]) != "over" or end.rows[2]["status"] in ("done", "failed")


def parent_cancelled(end: End) -> None:
    ends_once(end)
    assert (end.rows[1]["status"], verdict(end.answers[2])) == ("cancelled", "ended")


def flush_reap_cancel(kind: str, target: int, max_crashes: int | None) -> Scenario:
    def sides(calls: StatementBuilder) -> Sequence[Sequence[Call]]:
        cancels: list[Call] = [
            calls.cancel([(target, None)], "why", cascade=True),
            calls.cancel_listed_descendants(9, None),
        ]
        return [[calls.flush([OUTCOMES[kind]])], [calls.reap(10, max_crashes)], cancels]

    return Scenario(HELD, sides, child_cancelled if target == 2 else parent_cancelled)


# signal + park + reap: a claim with an expired lease parks while it is taken back, run again, and sent a signal twice.

MAIL = executing(1, lease_expires_at=seconds(-1)) + signal(7, 1)
PARK = Commit(1, 1, 0, "await", extra=json.dumps({"awaits": ["go"], "seen": [], "consumed": [7]}))


def park_after_all_seen(calls: StatementBuilder) -> Call:
    """The claim that was picked consumes its inbox, and parks."""

    def call(answers: list[Any]) -> Statement[Any] | None:
        for claim in answers[-1].claims:
            consumed = [received.id for received in claim.inbox]
            extra = json.dumps({"awaits": ["go"], "seen": [], "consumed": consumed})
            return calls.flush([Commit(1, claim.epoch, claim.seq, "await", extra=extra)])
        return None

    return call


def consumed_once(end: End) -> None:
    """Each signal is delivered once, consumed by one outcome that stands, and wakes the instance until then."""
    sent, (parked,), (reaped, picked, *again) = end.answers
    assert [answer[0][1] for answer in sent] == ["delivered", "duplicate"]
    assert bool(reaped.claims) == bool(parked.stale_ids), "both or neither of park and reap have the claim"
    inbox = [received.id for claim in picked.claims for received in claim.inbox]
    assert not any(flushed.stale_ids or flushed.cancel_requested_ids for flushed in again)
    eaten = ([] if parked.stale_ids else [7]) + inbox
    assert len(set(eaten)) == len(eaten), "a signal was consumed twice"
    assert (7 in eaten) != (7 in {row["id"] for row in end.signals})
    (event,) = [row for row in end.signals if row["dedup_key"] == "event"]
    assert event["consumed"] == (event["id"] in eaten)
    is_left = not event["consumed"] or 7 not in eaten
    assert end.rows[1]["status"] == ("runnable" if is_left else "awaiting_signal")
    told = {answer[0][2] for answer in sent} | {claim.queue for claim in reaped.claims}
    for flushed in (parked, *again):
        told |= flushed.follow_ups.queues
    assert not is_left or "default" in told, "no worker is told of the row"


def signal_park_reap() -> Scenario:
    def sides(calls: StatementBuilder) -> Sequence[Sequence[Call]]:
        sends = calls.signal([OutgoingSignal(1, None, "go", "1", "event")])
        runs_again: list[Call] = [calls.reap(10, None), picks(calls, "b"), park_after_all_seen(calls)]
        return [[sends, sends], [calls.flush([PARK])], runs_again]

    return Scenario(MAIL, sides, consumed_once)


# join + retry + gc: the last child ends, its parent runs and ends; an old child and an old instance are tried again
# while they are past their retention.

FAMILY = (
    parent(1, pending=1)
    + executing(2, parent_id=1, parent_round=1)
    + ended(3, status="failed", parent_id=1, parent_round=1, queue="b")
    + ended(4, status="failed", queue="b")
)


def end_of_the_parent(calls: StatementBuilder) -> Call:
    def call(answers: list[Any]) -> Statement[Any] | None:
        for claim in answers[-1].claims:
            return calls.flush([Commit(1, claim.epoch, claim.seq, "done", value="1")])
        return None

    return call


def joins(end: End) -> None:
    """The parent goes on after the last child, or waits for the one that is tried again; what lives is not deleted."""
    (_, picked, *_), retried, deleted = end.answers
    assert [row is not None for row in retried] == [i in end.rows for i in (3, 4)], "retried and deleted, or neither"
    assert sum(collected.deleted for collected in deleted) == 4 - len(end.rows)
    assert {1, 2} <= end.rows.keys()
    assert all(end.rows[i]["status"] == "runnable" for i in (3, 4) if i in end.rows), "a retry was lost"
    row = end.rows[1]
    if row["status"] == "awaiting_children":
        assert (row["children_pending"], 3 in end.rows) == (1, True), "it waits for a child that does not run"
    else:
        assert (row["status"], row["children_pending"]) == ("done" if picked.claims else "runnable", 0)
    for claim in picked.claims:
        assert [child.id for child in claim.children] == [2, 3], "a child was deleted before its parent read it"
    assert 3 in end.rows or row["status"] == "done"


def join_retry_gc() -> Scenario:
    def sides(calls: StatementBuilder) -> Sequence[Sequence[Call]]:
        admin = InstanceAdminStatementBuilder(calls.schema)
        joining: list[Call] = [
            calls.flush([Commit(2, 1, 0, "done", value="1", parent=1)]), picks(calls, "a"), end_of_the_parent(calls)
        ]  # fmt: skip
        collects = calls.gc(60, 60, 60, 10)
        return [joining, [admin.retry(3, None), admin.retry(4, None)], [collects, collects]]

    return Scenario(FAMILY, sides, joins)


# pick + pick + policy: two workers pick rows of a limit while its policy is changed or removed.

LINE = slots(2) + waiting(1, 2, partition_key="k") + waiting(3, 5)
TOKENS = rate(3600, 2) + "".join(instance(i, rate_key="r", eligible_at=seconds(i - 50)) for i in (1, 2, 3))


def claimed(end: End) -> list[int]:
    """The rows that were claimed, once each."""
    ids = taken(end.answers[0]) + taken(end.answers[1])
    assert len(set(ids)) == len(ids), f"claimed twice: {ids}"
    assert sorted(ids) == [row["id"] for row in end.rows.values() if row["status"] == "executing"]
    assert all(end.rows[i]["claims"] == 1 for i in ids)
    if not ids:
        unmet = [u for side in end.answers[:2] for answer in side for u in answer.unmet]
        soon = any(u.next_due is not None and u.next_due < 1 for u in unmet)
        assert soon or end.answers[2][0][1], f"no worker is told to look again: {end.answers}"
    return ids


def within(slots_after: int) -> Callable[[End], None]:
    def check(end: End) -> None:
        ids = claimed(end)
        before = end.commits[: end.commits.index("C")]
        earlier = sum(len(taken(end.answers["AB".index(name)])) for name in before)
        assert earlier <= 2, "more rows run than there were slots"
        assert len(ids) <= max(earlier, slots_after), "a pick that was committed later went by the policy before"
        assert not {1, 2} <= set(ids), "two rows of a partition key run"

    return check


def by_tokens(end: End) -> None:
    """Each claim has taken one token, and rows that wait were told by the new policy."""
    ids = claimed(end)
    now = datetime.now(UTC)
    lacking = sum((row["drained_until"] - now).total_seconds() for row in end.buckets) / 1800
    assert (len(ids), round(lacking)) in ((0, 0), (1, 1), (2, 2)), f"{ids} run, {lacking} tokens are taken"
    for row in end.rows.values():
        assert row["token_at"] is None or (row["token_at"] - now).total_seconds() < 1801


def pick_pick_policy(
    change: Callable[[StatementBuilder], Statement[Any]], given: str, check: Callable[[End], None]
) -> Scenario:
    def sides(calls: StatementBuilder) -> Sequence[Sequence[Call]]:
        return [[picks(calls, "a", 2)], [picks(calls, "b", 2)], [change(calls)]]

    return Scenario(given, sides, check)


def faster(calls: StatementBuilder) -> Statement[Any]:
    """Two tokens an hour instead of one, and a bucket of two as before."""
    return calls.set_limit("r", Rate(2, timedelta(hours=1), burst=2), declared=False)


SCENARIOS = {
    **{
        f"flush-reap-cancel-{kind}-{target}-{max_crashes}": flush_reap_cancel(kind, target, max_crashes)
        for kind, target, max_crashes in [
            ("next", 2, None),
            ("await", 2, 1),
            ("children", 2, None),
            ("done", 2, 1),
            ("next", 1, 1),
            ("done", 1, None),
        ]
    },
    "signal-park-reap": signal_park_reap(),
    "join-retry-gc": join_retry_gc(),
    "pick-pick-fewer-slots": pick_pick_policy(
        lambda calls: calls.set_limit("l", Concurrency(1), declared=False), LINE, within(1)
    ),
    "pick-pick-more-slots": pick_pick_policy(
        lambda calls: calls.set_limit("l", Concurrency(3), declared=False), LINE, within(3)
    ),
    "pick-pick-removal": pick_pick_policy(lambda calls: calls.remove_limit("l"), LINE, within(9)),
    "pick-pick-rate": pick_pick_policy(faster, TOKENS, by_tokens),
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_three_sessions(exploring: Exploring, calls: StatementBuilder, sample: Sample, name: str) -> None:
    """Every schedule of the sample keeps the doctor's checks and those of its scenario."""
    assert await run(SCENARIOS[name], exploring, calls, sample) == []


# What each guard keeps, three sessions see too: the first fault of the sample without it.
CURES = {
    "flush-without-fence": (
        "flush-reap-cancel-next-2-None",
        Cure("flush", "and i.claims = outcome.epoch and i.seq = outcome.seq\n      and (i", "and true\n      and (i"),
    ),
    "flush-that-leads-on-from-a-cancelled-row": (
        "flush-reap-cancel-await-2-1",
        Cure("flush", "\n      and (i.cancel_reason is null or outcome.is_end)"),
    ),
    "reap-that-waits-for-a-parent": (
        "flush-reap-cancel-done-2-1",
        Cure("reap", WAITS, WAITS.removesuffix(" skip locked")),
    ),
    "park-without-second-look": (
        "signal-park-reap",
        Cure("flush", "more := @schema.wake_if_signal_came(parked_places);"),
    ),
    "signal-without-lock": ("signal-park-reap", Cure("signal", LOCK, LOCK.removesuffix(" for no key update"))),
    "retry-without-lock": ("join-retry-gc", Cure("retry", "\n  order by i.id for no key update;", ";")),
    "pick-without-lock-of-the-policy": ("pick-pick-fewer-slots", Cure("reblock_rows_and_lock_limit_gates", POLICY)),
    "pick-that-is-not-told": (
        "pick-pick-rate",
        Cure(
            "admit_or_block_rows_by_limit",
            "coalesce(jsonb_object_agg(locked.gate, true), '{}')",
            "jsonb_object_agg(locked.gate, true)",
        ),
    ),
    "pick-without-lock-of-the-gate": ("pick-pick-rate", Cure("admit_or_block_rows_by_limit", GATE, "select")),
}


@pytest.mark.parametrize("name", CURES)
async def test_without_its_guard_a_schedule_of_three_fails(
    exploring: Exploring, calls: StatementBuilder, sample: Sample, name: str
) -> None:
    scenario, cure = CURES[name]
    faults = await run(SCENARIOS[scenario], exploring, calls, replace(sample, count=500), cure)
    assert len(faults) == 1
