"""Section 6, continued: a partition key lets one instance run at a time, in order, and others beside it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.support.spec import BRIEF, HOUR, Engine, Gate, Opening, Play, State, finished, go, ids

from gen_durable import Await, Context, Done, Next, Outcome, Retry, Start
from gen_durable.telemetry import StepCommitted


async def keyed(e: Engine, *ages: float, key: str = "k", priority: int = 0) -> list[int]:
    """Instances of one key that have been due for so many seconds."""
    now = await e.now()
    starts = [
        Start(Play.a, {}, partition_key=key, priority=priority, schedule_at=now - timedelta(seconds=age))
        for age in ages
    ]
    return ids(await e.app.insert_many(starts))


async def test_one_instance_of_a_key_runs_at_a_time(engine: Opening) -> None:
    """However many slots there are, the steps of one key never overlap."""
    async with engine() as e:

        async def body(_play: Play, state: State, ctx: Context) -> Outcome[Any]:
            await asyncio.sleep(0)
            return Done() if ctx.step == "b" else Next(_play.b, state, run_ahead=False)

        play = Play(a=body, b=body)
        handles = await e.app.insert_many([Start(Play.a, {}, partition_key="k") for _ in range(15)])
        async with e.worker(play, queues={"default": 8}), e.worker(play, queues={"default": 8}):
            for handle in handles:
                await finished(handle)
        assert len(play.script.visits) == 30
        assert play.script.most_running == 1


async def test_keys_do_not_wait_for_each_other(engine: Opening) -> None:
    """Different keys, and rows without one, run side by side."""
    async with engine() as e:
        together = asyncio.Event()
        play = Play()

        async def body(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            if play.script.running == 4:
                together.set()
            await together.wait()
            return Done()

        play.script.bodies["a"] = body
        keys = ["k1", "k2", None, None]
        handles = await e.app.insert_many([Start(Play.a, {}, partition_key=key) for key in keys])
        async with e.worker(play):
            for handle in handles:
                await finished(handle)


async def test_a_busy_key_does_not_hide_the_work_behind_it(engine: Opening) -> None:
    """While one of a key runs, its siblings are passed over, and whatever stands behind them is picked."""
    async with engine() as e:
        siblings = await keyed(e, *range(120, 100, -1))
        (behind,) = ids([await e.start()])
        assert [claim.id for claim in await e.claim(1)] == [siblings[0]]
        assert [claim.id for claim in await e.claim(5)] == [behind]
        assert await e.claim(5) == []


@pytest.mark.parametrize("slots", [1, 8])
async def test_within_a_key_the_order_is_strict(engine: Opening, slots: int) -> None:
    """By priority, then by how long a row has been due, then by id."""
    async with engine() as e:
        young, old = await keyed(e, 10, 20)
        equal = await keyed(e, 15, 15, 15)
        (urgent,) = await keyed(e, 1, priority=-5)
        play = Play(a=lambda p, s, c: Done())
        async with e.worker(play, queues={"default": slots}):
            await e.until(StepCommitted, times=6)
        assert [visit.ctx.id for visit in play.script.visits] == [urgent, old, *equal, young]


async def test_the_order_holds_across_queues(engine: Opening) -> None:
    """A key is one key wherever its instances wait: the head is picked first, though it is in another queue."""
    async with engine() as e:
        now = await e.now()
        first = await e.start(queue="q1", partition_key="k", schedule_at=now - timedelta(seconds=20))
        second = await e.start(queue="q2", partition_key="k", schedule_at=now - timedelta(seconds=10))
        assert await e.claim(q2=5) == []
        (claim,) = await e.claim(q1=5)
        assert claim.id == first.id
        assert await e.claim(q2=5) == []
        assert (await e.row(second))["status"] == "runnable"


async def test_a_row_due_later_does_not_hold_its_key(engine: Opening) -> None:
    """Order is among rows that are due: one that rests until later lets the others go ahead."""
    async with engine() as e:
        await e.start(partition_key="k", priority=-5, delay=HOUR)
        due = await e.start(partition_key="k")
        assert [claim.id for claim in await e.claim(5)] == [due.id]


async def test_a_parked_instance_does_not_hold_its_key(engine: Opening) -> None:
    """Only executing occupies a key: an instance that waits for a signal lets its siblings run."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Await(go, then=p.b, state=s) if s["parks"] else Done(), b=lambda p, s, c: Done())
        async with e.worker(play):
            parked = await e.start({"parks": True}, partition_key="k")
            await e.until(StepCommitted, id=parked.id)
            await finished(await e.start({"parks": False}, partition_key="k"))
            await parked.signal(go, {})
            await finished(parked)


async def test_a_replay_frees_the_key_until_it_is_due(engine: Opening) -> None:
    """An instance that will try again later does not stop the others of its key meanwhile."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Retry(s, delay=HOUR) if s["later"] else Done())
        async with e.worker(play):
            later = await e.start({"later": True}, partition_key="k")
            await e.until(StepCommitted, id=later.id)
            await finished(await e.start({"later": False}, partition_key="k"))


async def test_a_dead_worker_frees_the_key(engine: Opening) -> None:
    """The key is held by the claim alone: when the lease has run out it is free, without anybody's connection."""
    async with engine() as e:
        head, sibling = await keyed(e, 20, 10)
        assert [claim.id for claim in await e.claim(5, lease=0.0)] == [head]
        async with e.worker(Play(a=lambda p, s, c: Done(c.attempt)), **BRIEF):
            assert await finished(e.app.handle(head, Play.a)) == 1
            assert await finished(e.app.handle(sibling, Play.a)) == 0


async def test_a_reaped_row_keeps_its_place_in_its_key(engine: Opening) -> None:
    """A crash does not let the siblings overtake: the row that died is still the head of its key."""
    async with engine() as e:
        first, second, third = await keyed(e, 30, 20, 10)
        due = (await e.row(first))["eligible_at"]
        await e.claim(1, lease=0.0)
        await e.reap()
        assert (await e.row(first))["eligible_at"] == due
        play = Play(a=lambda p, s, c: Done())
        async with e.worker(play):
            await e.until(StepCommitted, times=3)
        assert [visit.ctx.id for visit in play.script.visits] == [first, second, third]


async def test_nothing_is_pinned_for_the_length_of_a_step(engine: Opening) -> None:
    """The key is arbitrated by an index: while a step runs, no advisory lock is held."""
    async with engine() as e:
        gate = Gate()

        async def body(_play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
            await gate.pass_through()
            return Done()

        async with e.worker(Play(a=body)):
            handle = await e.start(partition_key="k")
            await gate.arrival()
            mine = "pid in (select pid from pg_stat_activity where application_name = 'gen_durable')"
            for _ in range(100):  # other tests migrate meanwhile, under a lock; what is pinned would stay
                locks = await e.fetch(f"select * from pg_locks where locktype = 'advisory' and {mine}")
                if not locks:
                    break
                await asyncio.sleep(0.05)
            gate.opened.set()
            assert locks == []
            await finished(handle)


async def test_the_database_itself_refuses_a_second_executing_row(engine: Opening) -> None:
    """Whatever a picker does wrong, two executing rows of one key cannot be written."""
    async with engine() as e:
        await keyed(e, 20, 10)
        await e.claim(1)
        with pytest.raises(asyncpg.UniqueViolationError):
            await e.fetch(
                "update @.instances set status = 'executing', locked_by = 'x', lease_expires_at = now() "
                "where status = 'runnable'"
            )


async def test_pickers_that_race_for_a_key_lose_nothing(engine: Opening) -> None:
    """Two workers at one key never fail a pick: each key has one claim, and rows of other keys come along."""
    async with engine() as e:
        keys = [f"k{n}" for n in range(10)]
        await e.app.insert_many([Start(Play.a, {}, partition_key=key) for key in keys for _ in range(3)])
        taken = await asyncio.gather(*(e.claim(10, worker=f"w{n}") for n in range(6)))
        claimed = [claim.partition_key for claims in taken for claim in claims]
        assert len(claimed) == len(set(claimed))
        claimed += [claim.partition_key for claim in await e.claim(10)]
        assert sorted(filter(None, claimed)) == keys
