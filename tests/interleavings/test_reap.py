"""The reaper against those who still hold the claim, or think so: an outcome counts for the claim that made it."""

from __future__ import annotations

import pytest
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.rows import executing, parent, seconds, signal

from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal

EXPIRED = executing(1, lease_expires_at=seconds(-1))
NEXT = Commit(1, 1, 0, "next", step="t", value='{"n": 1}', extra='{"consumed": [7]}')
MAIL = EXPIRED + signal(7, 1)


def one_wins(end: End) -> None:
    """Either the claim was taken back and the outcome changed nothing, or the outcome stands."""
    row, reaped, stale = end.rows[1], [r.id for r in end.left[0].claims], set(end.right[0].stale_ids)
    assert bool(reaped) == bool(stale), f"reaped {reaped}, stale {stale}"
    if reaped:
        assert (row["step"], row["seq"], row["crashes"], len(end.signals)) == ("s", 0, 1, 1)
        assert row["claims"] >= 2
    else:
        assert (row["step"], row["seq"], row["crashes"], len(end.signals)) == ("t", 1, 0, 0)


async def test_reap_flush(exploring: Exploring, calls: StatementBuilder) -> None:
    """A lease runs out as the outcome comes: one of the two wins, and the other changes nothing."""
    async with exploring() as explorer:
        report = await explorer.explore(MAIL, [calls.reap(10, None)], [calls.flush([NEXT])], one_wins, begin=True)
    assert report.faults == []
    assert len(report.ends) == 1  # runnable, either way: the checks above tell them apart


async def test_reap_claim_flush(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same worker claims its own reaped row again, and its old outcome arrives: it is stale at every moment."""
    left = [calls.reap(10, None), calls.pick("w", {"default": 1}, ["m/1/s"], 60)]
    async with exploring() as explorer:
        report = await explorer.explore(MAIL, left, [calls.flush([NEXT])], one_wins)
    assert report.faults == []


FAMILY = parent(1, pending=1) + executing(2, parent_id=1, parent_round=1, lease_expires_at=seconds(-1))
LAST_CHILD = Commit(2, 1, 0, "done", value="1", parent=1)


def family_goes_on(end: End) -> None:
    assert end.rows[2]["status"] in ("done", "failed", "executing")
    assert (end.rows[1]["status"] == "runnable") == (end.rows[2]["finished_at"] is not None)


async def test_reap_flush_of_a_doomed_child(exploring: Exploring, calls: StatementBuilder) -> None:
    """A child is failed by the reaper as its outcome comes: no deadlock over child and parent, one join."""
    async with exploring() as explorer:
        report = await explorer.explore(
            FAMILY, [calls.reap(10, 1)], [calls.flush([LAST_CHILD])], family_goes_on, begin=True
        )
    assert report.faults == []


async def test_reap_deliver_to_the_family(exploring: Exploring, calls: StatementBuilder) -> None:
    """A child is failed by the reaper while both are sent signals in one batch: no deadlock."""
    both = [OutgoingSignal(1, None, "go", None, None), OutgoingSignal(2, None, "go", None, None)]
    async with exploring() as explorer:
        report = await explorer.explore(FAMILY, [calls.reap(10, 1)], [calls.signal(both)], family_goes_on)
    assert report.faults == []


async def test_a_reaper_that_waits_for_a_parent_deadlocks(exploring: Exploring, calls: StatementBuilder) -> None:
    """The reaper has the child when it comes to the parent, a flush has the parent when it comes to the child."""
    skip = "where parent.id = any (parents) order by parent.id for no key update skip locked"
    async with exploring(Cure("reap", skip, skip.removesuffix(" skip locked"))) as explorer:
        report = await explorer.explore(
            FAMILY, [calls.reap(10, 1)], [calls.flush([LAST_CHILD])], family_goes_on, first_fault=True
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40P01"}]


async def test_reap_reap(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two reapers at once: each expired claim is taken back once."""

    def once(end: End) -> None:
        assert sorted(r.id for side in (end.left, end.right) for r in side[0].claims) == [1, 2]
        assert [end.rows[i]["claims"] for i in (1, 2)] == [2, 2]

    given = EXPIRED + executing(2, lease_expires_at=seconds(-1))
    async with exploring() as explorer:
        report = await explorer.explore(given, [calls.reap(10, None)], [calls.reap(10, None)], once, begin=True)
    assert report.faults == []


# A lease that was extended is remembered, also when the claim is taken back afterwards.
WITNESS = """
create or replace function @schema.witness() returns trigger language plpgsql as $$
begin
  if new.lease_expires_at > old.lease_expires_at then
    new.metadata := '{"extended": true}';
  end if;
  return new;
end
$$;
create or replace trigger witness before update on @schema.instances
for each row execute function @schema.witness();
"""


def kept_or_taken(end: End) -> None:
    """A beat that comes first keeps the claim; one that comes later changes nothing and may say that it is lost."""
    row, reaped, lost = end.rows[1], end.left[0].claims, end.right[0]
    if reaped:
        assert (row["status"], row["claims"], row["lease_expires_at"]) == ("runnable", 2, None)
        assert row["metadata"] is None
    else:
        assert (row["status"], row["claims"], lost) == ("executing", 1, [])


async def test_reap_heartbeat(exploring: Exploring, calls: StatementBuilder) -> None:
    """A late beat meets the reaper: the claim is kept or taken back, never half of each."""
    async with exploring() as explorer:
        report = await explorer.explore(
            WITNESS + EXPIRED, [calls.reap(10, None)], [calls.heartbeat([(1, 1)], 60)], kept_or_taken, begin=True
        )
    assert report.faults == []
    assert len(report.ends) == 2


async def test_heartbeat_flush(exploring: Exploring, calls: StatementBuilder) -> None:
    """A beat while the owner's own outcome commits: the outcome stands, and the claim is not reported as lost."""

    def stands(end: End) -> None:
        assert (end.rows[1]["status"], end.rows[1]["lease_expires_at"], end.left[0]) == ("done", None, [])

    done = Commit(1, 1, 0, "done", value="1")
    async with exploring() as explorer:
        report = await explorer.explore(
            executing(1), [calls.heartbeat([(1, 1)], 60)], [calls.flush([done])], stands, begin=True
        )
    assert report.faults == []


async def test_release_flush(exploring: Exploring, calls: StatementBuilder) -> None:
    """A claim is given back as its outcome comes: either it is back and the outcome is stale, or the outcome stands."""

    def either(end: End) -> None:
        row, given_back, stale = end.rows[1], end.left[0].ids, set(end.right[0].stale_ids)
        assert bool(given_back) == bool(stale)
        assert row["seq"] == (0 if given_back else 1)
        assert row["attempt"] == 0

    async with exploring() as explorer:
        report = await explorer.explore(
            EXPIRED, [calls.release_claims([(1, 1, None, None)])], [calls.flush([NEXT])], either, begin=True
        )
    assert report.faults == []


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(
            Cure(
                "flush",
                "where i.id = outcome.id and i.claims = outcome.epoch and i.seq = outcome.seq\n",
                "where i.id = outcome.id and i.seq = outcome.seq\n",
            ),
            id="flush-without-fence",
        ),
        pytest.param(Cure("reap", "claims = i.claims + 1,"), id="reap-without-bump"),
    ],
)
async def test_without_the_fence_a_stale_outcome_stands(
    exploring: Exploring, calls: StatementBuilder, cure: Cure
) -> None:
    """Without the fence on claims, or without the reaper's bump, an outcome overwrites a claim that was taken back."""
    async with exploring(cure) as explorer:
        report = await explorer.explore(MAIL, [calls.reap(10, None)], [calls.flush([NEXT])], one_wins, first_fault=True)
    assert len(report.faults) == 1


async def test_release_without_bump_is_found(exploring: Exploring, calls: StatementBuilder) -> None:
    """Without the bump in release, the outcome of a claim given back is taken for good."""

    def stale(end: End) -> None:
        assert bool(end.left[0].ids) == bool(end.right[0].stale_ids)

    async with exploring(Cure("release_claims", "claims = i.claims + 1,")) as explorer:
        report = await explorer.explore(
            EXPIRED, [calls.release_claims([(1, 1, None, None)])], [calls.flush([NEXT])], stale, first_fault=True
        )
    assert len(report.faults) == 1


async def test_a_beat_without_its_fence_is_found(exploring: Exploring, calls: StatementBuilder) -> None:
    """A beat that looks neither at the claim nor at the status gives a lease to a row that nobody holds."""
    cure = Cure(
        "heartbeat",
        "on i.id = given.id and i.claims = given.epoch\n    where i.lease_expires_at is not null",
        "on i.id = given.id",
    )
    async with exploring(cure) as explorer:
        report = await explorer.explore(
            EXPIRED, [calls.reap(10, None)], [calls.heartbeat([(1, 1)], 60)], kept_or_taken, first_fault=True
        )
    assert ["impossible_lease" in fault.problem for fault in report.faults] == [True]
