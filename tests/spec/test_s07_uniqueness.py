"""Section 7, uniqueness: a key, the statuses in which it is taken, one generated guard, and one index over it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.spec import HOUR, Engine, Gate, Kid, Opening, Play, State, failed, finished, go, ids

from gen_durable import Await, Context, Done, Fail, Outcome, Retry, ScheduleChildren, Start
from gen_durable.errors import Duplicate, InputError, NoTarget, NotFound
from gen_durable.telemetry import InstancesCollected, StepCommitted

LIVE = {"runnable", "executing", "awaiting_signal", "awaiting_children"}


async def guard(e: Engine, instance: int) -> bytes | None:
    """The guard of a row as it is now."""
    return (await e.row(instance))["unique_guard"]


async def test_a_key_is_stored_verbatim(engine: Opening) -> None:
    """Bytes stay as they are and text is its UTF-8: nothing is hashed, trimmed or folded."""
    async with engine() as e:
        for key, stored in ((b"\x00\xff raw", b"\x00\xff raw"), ("Größe ", "Größe ".encode()), ("a" * 512, b"a" * 512)):
            row = await e.row(await e.start(unique_key=key))
            assert row["unique_key"] == row["unique_guard"] == stored
        await e.start(unique_key="größe ")


async def test_without_a_key_nothing_is_deduplicated(engine: Opening) -> None:
    """Uniqueness is asked for per instance; rows without a key never conflict."""
    async with engine() as e:
        handles = await e.app.insert_many([Start(Play.a, {}) for _ in range(5)])
        assert len(set(ids(handles))) == 5
        assert {await guard(e, handle.id) for handle in handles} == {None}


async def test_the_default_scope_is_every_live_status(engine: Opening) -> None:
    """A key is taken from the insert to the end."""
    async with engine() as e:
        assert set((await e.row(await e.start(unique_key="k")))["unique_scope"]) == LIVE


async def test_the_guard_follows_the_status(engine: Opening) -> None:
    """With every transition the guard is computed anew: the key in each live status, nothing at the end."""
    async with engine() as e:
        seen: dict[str, bytes | None] = {}

        async def note(ctx: Context) -> None:
            row = await e.row(ctx.id)
            seen[row["status"]] = row["unique_guard"]

        async def first(play: Play, state: State, ctx: Context) -> Outcome[Any]:
            await note(ctx)
            return Await(go, then=play.b, state=state)

        async def child(_kid: Kid, _state: State, ctx: Context) -> Outcome[Any]:
            row = await e.row(int(ctx.parent_id or 0))
            seen[row["status"]] = row["unique_guard"]
            return Done()

        play = Play(
            a=first,
            b=lambda p, s, c: ScheduleChildren([Start(Kid.k, {})], then=p.c, state=s),
            c=lambda p, s, c: Done(),
        )
        handle = await e.start(unique_key="k")
        seen["runnable"] = await guard(e, handle.id)
        async with e.worker(play, Kid(k=child)):
            await e.until(StepCommitted, id=handle.id, outcome="Await")
            seen["awaiting_signal"] = await guard(e, handle.id)
            await handle.signal(go, {})
            await finished(handle)
        assert seen == dict.fromkeys(LIVE, b"k")
        assert await guard(e, handle.id) is None


@pytest.mark.parametrize("outcome", [Done(), Fail("no")], ids=["done", "failed"])
async def test_leaving_the_scope_frees_the_key(engine: Opening, outcome: Outcome[Any]) -> None:
    """When an instance has ended, its key can be inserted again."""
    async with engine() as e:
        first = await e.start(unique_key="k")
        with pytest.raises(Duplicate):
            await e.start(unique_key="k")
        async with e.worker(Play(a=lambda p, s, c: outcome)):
            await first.wait()
        second = await e.start(unique_key="k")
        assert second.id != first.id
        assert (await e.app.get("k")).id == second.id


async def test_a_collision_names_the_holder(engine: Opening) -> None:
    """A taken key is refused by default, and the error says by whom it is taken."""
    async with engine() as e:
        first = await e.start(unique_key="k")
        with pytest.raises(Duplicate, match=f"instance {first.id}") as caught:
            await e.start(unique_key="k")
        assert (caught.value.key, caught.value.existing_id) == (b"k", first.id)


@pytest.mark.parametrize("status", ["done", "failed"])
async def test_a_scope_may_hold_the_key_beyond_the_end(engine: Opening, status: str) -> None:
    """With an end in its scope an instance keeps its key there: each instance has a scope of its own."""
    async with engine() as e:
        async with e.worker(Play(a=lambda p, s, c: Done() if status == "done" else Fail("no"))):
            keeper = await e.start(unique_key="kept", unique_scope=[*LIVE, status])
            leaver = await e.start(unique_key="left")
            await keeper.wait()
            await leaver.wait()
        assert await e.app.insert(Play.a, {}, unique_key="kept", on_conflict="skip") is None
        assert await e.app.insert(Play.a, {}, unique_key="left", on_conflict="skip") is not None


@pytest.mark.parametrize("outcome", [Done(), Fail("no")], ids=["done", "failed"])
async def test_a_key_may_be_held_forever(engine: Opening, outcome: Outcome[Any]) -> None:
    """A named scope: `unique="forever"` is every status, and retention spares the row.

    Refines the seed, which has only lists of statuses, and whose retention frees the key of an ended row.
    """
    async with engine() as e:
        async with e.worker(Play(a=lambda p, s, c: outcome)):
            kept, other = await e.start(unique_key="k", unique="forever"), await e.start(unique_key="l")
            await kept.wait()
            await other.wait()
        async with e.worker(queues={}, gc_interval=timedelta(milliseconds=50), gc_retention=timedelta(0)):
            assert (await e.until(InstancesCollected)).count == 1
        with pytest.raises(Duplicate):
            await e.start(unique_key="k")
        row = await e.row(kept)
        assert set(row["unique_scope"]) == LIVE | {"done", "failed", "cancelled"}
        assert (row["unique_guard"], row["keep_seconds"]) == (b"k", float("inf"))


async def test_a_key_finds_the_last_instance_when_no_holder_is_left(engine: Opening) -> None:
    """Refines the seed, where a key without a holder finds nothing: reads find the last one inserted with it.

    A signal and a cancel change what lives, so they go to the live holder, as in the seed.
    """
    async with engine() as e:
        async with e.worker(Play(a=lambda p, s, c: Done())):
            await finished(await e.start(unique_key="k"))
            last = await e.start(unique_key="k")
            await finished(last)
        assert (await e.app.get("k")).id == last.id
        assert (await e.app.handle("k", Play.a).get()).id == last.id
        with pytest.raises(NoTarget):
            await e.app.signal("k", go, {})
        with pytest.raises(NotFound):
            await e.app.cancel("k")
        live = await e.start(unique_key="k")
        assert (await e.app.get("k")).id == live.id


async def test_the_holders_scope_decides(engine: Opening) -> None:
    """An insert collides with a row that sits in a status of that row's scope, whatever the new one's scope is."""
    async with engine() as e:
        narrow = await e.start(unique_key="k", unique_scope=["runnable"])
        with pytest.raises(Duplicate):
            await e.start(unique_key="k", unique_scope=["runnable", "done"])
        assert [claim.id for claim in await e.claim(1)] == [narrow.id]
        wide = await e.start(unique_key="k")
        with pytest.raises(Duplicate):
            await e.start(unique_key="k", unique_scope=["runnable"])
        assert (await e.app.get("k")).id == wide.id


async def test_one_may_run_while_one_waits(engine: Opening) -> None:
    """The scope `runnable` alone allows one waiting instance beside one that runs."""
    async with engine() as e:
        gate = Gate()

        async def body(_play: Play, state: State, _ctx: Context) -> Outcome[Any]:
            if state["first"]:
                await gate.pass_through()
            return Done()

        async with e.worker(Play(a=body), queues={"default": 1}):
            first = await e.start({"first": True}, unique_key="k", unique_scope=["runnable"])
            await gate.arrival()
            second = await e.start({"first": False}, unique_key="k", unique_scope=["runnable"])
            with pytest.raises(Duplicate):
                await e.start({"first": False}, unique_key="k", unique_scope=["runnable"])
            gate.opened.set()
            await finished(first)
            await finished(second)


async def test_a_transition_never_collides(engine: Opening) -> None:
    """A key that a row has freed is not taken by it again: its way back to an old status harms nobody."""
    async with engine() as e:
        gate = Gate()

        async def body(_play: Play, state: State, ctx: Context) -> Outcome[Any]:
            if ctx.attempt == 0:
                await gate.pass_through()
                return Retry(state)
            return Done(ctx.attempt)

        async with e.worker(Play(a=body)):
            old = await e.start(unique_key="k", unique_scope=["runnable"])
            await gate.arrival()
            new = await e.start(unique_key="k", queue="aside")
            gate.opened.set()
            assert await finished(old) == 1
        assert (await e.row(new))["unique_guard"] == b"k"
        assert (await e.row(old))["unique_key"] == b"k"


@pytest.mark.parametrize("scope", [["executing"], ["done"], []], ids=str)
async def test_a_scope_begins_where_every_instance_begins(engine: Opening, scope: Any) -> None:
    """A scope without `runnable` is refused at the insert: it could only collide later, where nobody can be told."""
    async with engine() as e:
        with pytest.raises(InputError, match="runnable"):
            await e.start(unique_key="k", unique_scope=scope)
        assert await e.fetch("select * from @.instances") == []


async def test_a_window_is_a_part_of_the_key(engine: Opening) -> None:
    """Once per hour is a key with the hour in it, kept beyond the end: equality of keys is all the engine knows."""
    async with engine() as e:
        scope: Any = [*LIVE, "done"]
        async with e.worker(Play(a=lambda p, s, c: Done())):
            await finished(await e.start(unique_key="report:2024-05-01T10", unique_scope=scope))
            again = await e.app.insert(
                Play.a, {}, unique_key="report:2024-05-01T10", unique_scope=scope, on_conflict="skip"
            )
            assert again is None
            await finished(await e.start(unique_key="report:2024-05-01T11", unique_scope=scope))


@pytest.mark.parametrize("how", ["raise", "skip", "existing"])
async def test_what_becomes_of_a_duplicate_is_the_callers_choice(engine: Opening, how: Any) -> None:
    """raise: an error; skip: nothing; existing: the holder. Never a second row."""
    async with engine() as e:
        first = await e.start({"n": 1}, unique_key="k")
        if how == "raise":
            with pytest.raises(Duplicate):
                await e.app.insert(Play.a, {"n": 2}, unique_key="k", on_conflict=how)
        else:
            second = await e.app.insert(Play.a, {"n": 2}, unique_key="k", on_conflict=how)
            assert (None if second is None else second.id) == (None if how == "skip" else first.id)
        (row,) = await e.fetch("select state from @.instances")
        assert row["state"] == '{"n": 1}'


async def test_one_batch_is_deduplicated_against_rows_and_against_itself(engine: Opening) -> None:
    """The same index catches a duplicate of an old row and one within the batch; the rest goes in, in input order."""
    async with engine() as e:
        old = await e.start(unique_key="b")
        keys = ["c", "b", None, "a", "c", None]
        starts = [Start(Play.a, {"n": n}, unique_key=key) for n, key in enumerate(keys)]
        skipped = await e.app.insert_many(starts, on_conflict="skip")
        assert [handle is None for handle in skipped] == [False, True, False, False, True, False]
        kept = [handle.id for handle in skipped if handle is not None]
        assert kept == sorted(kept)
        found = await e.app.insert_many(starts, on_conflict="existing")
        c, b, _, a, c2, _ = ids(found)
        assert (c, b, a, c2) == (kept[0], old.id, kept[2], kept[0])


async def test_a_batch_that_raises_inserts_nothing(engine: Opening) -> None:
    """All or none: one taken key takes the whole batch back."""
    async with engine() as e:
        await e.start(unique_key="b")
        with pytest.raises(Duplicate):
            await e.app.insert_many([Start(Play.a, {}, unique_key=key) for key in ("a", "b", "c")])
        assert len(await e.fetch("select * from @.instances")) == 1


async def test_of_concurrent_inserts_one_wins(engine: Opening) -> None:
    """The constraint decides between inserts that know nothing of each other."""
    async with engine() as e:
        several = [e.app.insert(Play.a, {}, unique_key="k", on_conflict="existing") for _ in range(8)]
        assert len(set(ids(await asyncio.gather(*several)))) == 1
        assert len(await e.fetch("select * from @.instances")) == 1


async def test_a_batch_goes_in_by_the_order_of_its_keys(engine: Opening) -> None:
    """A batch that waits for one key has taken no key behind it, so two batches never wait for each other."""
    async with engine() as e:
        holding = e.db.transaction()
        await holding.start()
        row = "insert into @.instances (fsm, step, unique_key, unique_scope) values ('Play', 'a', 'm', '{runnable}')"
        await e.fetch(row)
        starts = [Start(Play.a, {}, unique_key=key) for key in ("z", "m")]
        batch = asyncio.create_task(e.app.insert_many(starts, on_conflict="existing"))
        waits = "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like $1"
        while not await e.fetch(waits, f"%{e.schema}%"):
            await e.fetch("select pg_stat_clear_snapshot(), pg_sleep(0.01)")
        async with asyncio.timeout(5):
            behind = await e.start(unique_key="z")
        await holding.rollback()
        assert (await batch)[0].id == behind.id


async def test_batches_with_the_same_keys_do_not_deadlock(engine: Opening) -> None:
    """Whatever order the rows of concurrent batches were handed in, all of them end, with one row per key."""
    async with engine() as e:
        for turn in range(5):
            starts = [Start(Play.a, {}, unique_key=f"{turn}:{n:03}") for n in range(200)]
            batches = (starts, starts[::-1], starts, starts[::-1])
            answers = await asyncio.gather(*(e.app.insert_many(b, on_conflict="existing") for b in batches))
            assert len({handle.id for handles in answers for handle in handles}) == 200


async def test_a_reaped_row_keeps_its_key(engine: Opening) -> None:
    """A crash is no end: the key stays taken through claim and reap."""
    async with engine() as e:
        handle = await e.start(unique_key="k")
        await e.claim(lease=0.0)
        assert await guard(e, handle.id) == b"k"
        await e.reap()
        assert await guard(e, handle.id) == b"k"
        async with e.worker(Play(a=lambda p, s, c: Fail("no") if c.attempt else Retry(s, delay=HOUR))):
            assert await failed(handle) == "no"
        assert await guard(e, handle.id) is None
