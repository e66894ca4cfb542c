"""Section 10, the operations, each as one call to the database: pick, heartbeat, reap, flush, signal, insert."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.spec import MOMENT, Kid, Opening, Play, differing, finished, go, ids

from gen_durable import Await, Done, Fail, Next, ScheduleChildren, Start
from gen_durable.core.services import services_of
from gen_durable.store.types import Claim, Commit
from gen_durable.telemetry import StepCommitted


def commit(claim: Claim, kind: str, **values: Any) -> Commit:
    """An outcome of a claim."""
    return Commit(claim.id, claim.epoch, claim.seq, kind, **values)


async def test_pick_claims_at_most_what_was_asked_for_per_queue(engine: Opening) -> None:
    """A demand per queue, and each claim with all that its step needs."""
    async with engine() as e:
        starts = [Start(Play.a, {"n": n}, queue=queue, priority=n) for queue in ("q1", "q2") for n in range(4)]
        await e.app.insert_many(starts)
        claims = await e.claim(q1=1, q2=3)
        assert sorted((claim.queue, claim.priority) for claim in claims) == [("q1", 0), ("q2", 0), ("q2", 1), ("q2", 2)]
        first = claims[0]
        assert (first.machine, first.version, first.step, first.attempt) == ("Play", 1, "a", 0)
        assert first.state == '{"n": 0}'


async def test_pick_changes_only_what_a_claim_is(engine: Opening) -> None:
    """Status, owner, lease and the number of the claim; nothing of the machine's own."""
    async with engine() as e:
        handle = await e.start()
        before = await e.row(handle)
        await e.claim(lease=30.0, worker="me")
        after = await e.row(handle)
        assert differing(before, after) == {
            *("status", "due_at", "locked_by", "lease_expires_at", "claims", "updated_at"),
            "started_at",  # added to the specification: the time of the first claim
        }
        assert (after["status"], after["locked_by"], after["claims"]) == ("executing", "me", 1)
        assert after["lease_expires_at"] - after["updated_at"] == timedelta(seconds=30)


async def test_every_claim_has_a_number_of_its_own(engine: Opening) -> None:
    """The number goes up with each claim, and with each way out that was not the owner's outcome."""
    async with engine() as e:
        await e.start()
        numbers = []
        for _ in range(3):
            (claim,) = await e.claim(lease=0.0)
            numbers.append(claim.epoch)
            await e.reap()
        assert numbers == sorted(set(numbers))


async def test_a_heartbeat_extends_the_lease_of_its_own_claim_only(engine: Opening) -> None:
    """A beat for a claim that was taken over is told so, and extends nothing."""
    async with engine() as e:
        handle = await e.start()
        (old,) = await e.claim(lease=0.0)
        await e.reap()
        (new,) = await e.claim(lease=5.0)
        before = await e.row(handle)
        assert await services_of(e.app).pool.run(
            services_of(e.app).statements.heartbeat([(old.id, old.epoch)], 60.0)
        ) == [handle.id]
        assert (await e.row(handle))["lease_expires_at"] == before["lease_expires_at"]
        assert (
            await services_of(e.app).pool.run(services_of(e.app).statements.heartbeat([(new.id, new.epoch)], 60.0))
            == []
        )
        after = await e.row(handle)
        assert after["lease_expires_at"] > before["lease_expires_at"] + timedelta(seconds=50)
        assert differing(before, after) == {"lease_expires_at"}


async def test_a_heartbeat_never_shortens_a_lease(engine: Opening) -> None:
    """A late or short beat does no harm."""
    async with engine() as e:
        handle = await e.start()
        (claim,) = await e.claim(lease=60.0)
        before = await e.row(handle)
        await services_of(e.app).pool.run(services_of(e.app).statements.heartbeat([(claim.id, claim.epoch)], 1.0))
        assert (await e.row(handle))["lease_expires_at"] == before["lease_expires_at"]


async def test_the_reaper_changes_only_what_a_lost_claim_is(engine: Opening) -> None:
    """The row is runnable, one attempt further, without owner and lease; its place in the queue is the same."""
    async with engine() as e:
        handle = await e.start({"n": 1})
        await e.claim(lease=0.0)
        before = await e.row(handle)
        await e.reap()
        after = await e.row(handle)
        changed = {"status", "due_at", "locked_by", "lease_expires_at", "attempt", "claims", "crashes", "updated_at"}
        assert differing(before, after) == changed
        assert (after["status"], after["attempt"]) == ("runnable", before["attempt"] + 1)


async def test_reapers_do_not_count_a_crash_twice(engine: Opening) -> None:
    """Every worker reaps, all at once if it comes to that; a lost claim is taken back once."""
    async with engine() as e:
        await e.app.insert_many([Start(Play.a, {}) for _ in range(50)])
        assert len(await e.claim(50, lease=0.0)) == 50
        taken = await asyncio.gather(*(e.reap() for _ in range(5)))
        assert len([row for rows in taken for row in rows]) == 50
        rows = await e.fetch("select distinct attempt, crashes, status from @.instances")
        assert [tuple(row) for row in rows] == [(1, 1, "runnable")]


async def test_an_outcome_is_one_transaction(engine: Opening) -> None:
    """What an outcome causes beside its own row is committed with it or not at all: children, the join, the inbox."""
    async with engine() as e:
        await e.fetch("alter table @.instances add constraint no_bad check (fsm <> 'Kid' or priority <> 13)")
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s),
            b=lambda p, s, c: ScheduleChildren(
                [Start(Kid.k, {}), Start(Kid.k, {}, priority=13)], then=p.c, state={"n": 1}
            ),
            on_error=lambda p, s, c, error: Next(p.c, {"refused": type(error).__name__}, queue="aside"),
        )
        async with e.worker(play):
            handle = await e.start({"n": 0})
            await handle.signal(go, {})
            await e.until(StepCommitted, id=handle.id, outcome="Next")
        row = await e.row(handle)
        assert (row["status"], row["children_pending"], row["state"]) == (
            "runnable",
            0,
            '{"refused": "OutcomeRejected"}',
        )
        assert await e.children(handle) == []


@pytest.mark.parametrize("kind", ["continue", "next", "retry", "await", "children", "done", "fail"])
async def test_an_outcome_sent_twice_is_recognised(engine: Opening, kind: str) -> None:
    """A worker that did not hear the answer to its commit sends it again: it is told that it was done, once."""
    async with engine() as e:
        handle = await e.start()
        (claim,) = await e.claim()
        extra = {
            "await": '{"awaits": ["go"], "seen": []}',
            "children": '{"children": [{"fsm": "Kid", "version": 1, "step": "k", "state": {}, "queue": "q", '
            '"priority": 0, "delay": 0, "unique_scope": "{}"}]}',
        }
        delay = None if kind == "await" else 0.0
        sent = commit(claim, kind, step="b", value="{}", error="e", extra=extra.get(kind), delay=delay)
        first = await e.flush(sent)
        row, children = await e.row(handle), await e.children(handle)
        second = await e.flush(sent)
        assert (first.stale_ids, first.already_committed_ids) == (frozenset(), frozenset())
        assert (second.stale_ids, second.already_committed_ids) == (frozenset(), {handle.id})
        assert differing(row, await e.row(handle)) == set()
        assert await e.children(handle) == children
        assert row["seq"] == 1


async def test_each_committed_outcome_is_counted(engine: Opening) -> None:
    """`seq` tells how many outcomes an instance has behind it, run ahead or not."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Next(p.b, s), b=lambda p, s, c: Next(p.c, s), c=lambda p, s, c: Done(c.seq))
        for steps in (0, 32):
            async with e.worker(play, run_ahead_steps=steps):
                handle = await e.start()
                assert await finished(handle) == 2
            assert (await e.row(handle))["seq"] == 3


async def test_the_end_of_a_child_joins_in_the_same_transaction(engine: Opening) -> None:
    """The parent's counter goes down with the commit of the child's end, and by one only."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: ScheduleChildren([Start(Kid.k, {}, queue="aside")] * 3, then=p.b, state=s))
        async with e.worker(play):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id)
        kids = await e.claim(aside=3)
        ends = [
            commit(kid, "done" if n else "fail", value="1", error="e", parent=handle.id) for n, kid in enumerate(kids)
        ]
        for left, end in zip((2, 1), ends, strict=False):
            await e.flush(end)
            await e.flush(end)
            row = await e.row(handle)
            assert (row["status"], row["children_pending"]) == ("awaiting_children", left)
        await e.flush(ends[2])
        row, last = await e.row(handle), await e.row(kids[2].id)
        assert (row["status"], row["children_pending"], row["step"]) == ("runnable", 0, "b")
        assert row["updated_at"] == last["updated_at"]


async def test_signals_can_be_sent_by_any_client_in_its_own_transaction(engine: Opening) -> None:
    """`select schema.signal(...)` is the same door, by id or by key, and commits with its caller."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Await(go, then=p.b, state=s), b=lambda p, s, c: Done(c.take(go)))
        async with e.worker(play, poll_interval=timedelta(milliseconds=50)):
            handle = await e.start(unique_key="k")
            await e.until(StepCommitted, id=handle.id, outcome="Await")
            async with e.db.transaction():
                rows = await e.fetch("""select @.signal('k'::text, 'go', '{"n": 1}', 'evt')""")
                assert rows[0][0] == "delivered"
                rows = await e.fetch("""select @.signal($1::bigint, 'go', '{"n": 2}', 'evt')""", handle.id)
                assert rows[0][0] == "duplicate"
            assert await finished(handle) == {"n": 1}
        rows = await e.fetch("select @.signal($1::bigint, 'go')", handle.id)
        assert rows[0][0] == "no_target"


async def test_a_batch_goes_in_with_one_statement(engine: Opening) -> None:
    """Many instances are one transaction, each with its own options, and their ids are in the order of the input."""
    async with engine() as e:
        now = await e.now()
        starts = [
            Start(Play.a, {"n": 0}, queue="q", priority=4, partition_key="p", unique_key="u"),
            Start(Kid.k, {"n": 1}, schedule_at=now + timedelta(days=1)),
            Start(Play.b, {"n": 2}, delay=timedelta(hours=2)),
        ]
        handles = await e.app.insert_many(starts)
        assert ids(handles) == sorted(ids(handles))
        first, second, third = [await e.row(handle) for handle in handles]
        assert first["inserted_at"] == second["inserted_at"] == third["inserted_at"]
        assert (first["fsm"], first["step"], first["queue"], first["priority"]) == ("Play", "a", "q", 4)
        assert (first["partition_key"], first["unique_key"]) == ("p", b"u")
        assert (second["fsm"], second["eligible_at"]) == ("Kid", now + timedelta(days=1))
        assert third["step"] == "b"
        assert timedelta(0) <= third["eligible_at"] - third["inserted_at"] - timedelta(hours=2) < MOMENT


async def test_an_end_leaves_no_trace_of_the_claim(engine: Opening) -> None:
    """A terminal row has no owner, no lease, and waits for nothing."""
    async with engine() as e, e.worker(Play(a=lambda p, s, c: Done() if s["ok"] else Fail("no"))):
        for ok in (True, False):
            handle = await e.start({"ok": ok})
            await handle.wait()
            row = await e.row(handle)
            assert (row["locked_by"], row["lease_expires_at"], row["awaits"], row["due_at"]) == (None,) * 4
