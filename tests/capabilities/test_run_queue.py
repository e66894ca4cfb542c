"""The run queue."""

from __future__ import annotations

import asyncio

from tests.support.capabilities import BRIEF, SOON, Opening, double

from gen_durable import (
    Context,
    Done,
    Failed,
    Finished,
    Instance,
    Machine,
    Outcome,
    ScheduleChildren,
    Start,
    Status,
    Worker,
    step,
)


async def test_enqueue(engine: Opening) -> None:
    """A run is a row that waits for a worker, there as soon as the call returns."""
    async with engine() as e:
        row = await (await e.app.insert(double, 21)).get()
        assert (row.machine, row.status, row.state, row.attempt, row.claims) == ("double", Status.RUNNABLE, 21, 0, 0)


async def test_claim_the_oldest(engine: Opening) -> None:
    """In the order in which they came, and each to one claimant."""
    async with engine() as e:
        handles = await e.app.insert_many([Start(double, n) for n in range(6)])
        claimed = [(await e.claim())[0].id for _ in range(2)]
        two = await asyncio.gather(e.claim(2, worker="a"), e.claim(2, worker="b"))
        assert claimed == [h.id for h in handles[:2]]
        assert sorted(c.id for claims in two for c in claims) == [h.id for h in handles[2:]]
        assert await e.claim() == []


async def test_heartbeat(engine: Opening) -> None:
    """It keeps a claim whose lease would have run out; for a claim that is lost it says so."""
    async with engine() as e:
        await e.app.insert(double, 1)
        (claim,) = await e.claim(lease=0.05)
        assert await e.beat(claim, 60) == []
        await asyncio.sleep(0.1)
        assert await e.reclaim() == []
        await e.sql("update @schema.instances set lease_expires_at = now() - interval '1 second'")
        assert [r.id for r in await e.reclaim()] == [claim.id]
        assert await e.beat(claim, 60) == [claim.id]


async def test_complete(engine: Opening) -> None:
    """The result is there with the status; a second completion changes nothing."""
    async with engine() as e:
        handle = await e.app.insert(double, 1)
        (claim,) = await e.claim()
        assert not (await e.complete(claim, "2")).stale_ids
        assert await handle.wait(SOON) == Finished(handle.id, 2)
        assert (await e.complete(claim, "3")).already_committed_ids == {handle.id}
        assert (await handle.get()).result == 2


async def test_reclaim_stale(engine: Opening) -> None:
    """A run whose worker is silent goes to the next; what the old one still says is stale."""
    async with engine() as e:
        handle = await e.app.insert(double, 1)
        (old,) = await e.claim(lease=0.0)
        assert [(r.id, r.dead) for r in await e.reclaim()] == [(handle.id, False)]
        (new,) = await e.claim()
        assert (new.id, new.attempt) == (old.id, 1)
        assert (await e.complete(old, "-1")).stale_ids == {handle.id}
        await e.complete(new, "2")
        assert (await handle.get()).result == 2


class Family(Machine):
    @step
    async def spread(self, n: int, ctx: Context) -> Outcome[list[str]]:
        return ScheduleChildren([Start(double, n, queue="aside")], then=self.join, state=n)

    @step
    async def join(self, n: int, ctx: Context) -> Outcome[list[str]]:
        return Done([f"{child.status}: {(child.last_error or '').partition(':')[0]}" for child in ctx.children])


async def test_dead_letter_past_a_threshold(engine: Opening) -> None:
    """It is failed, the hook is given the row, and the parent that waits for it goes on."""
    async with engine() as e:
        dead: asyncio.Queue[Instance] = asyncio.Queue()
        async with Worker(e.app, machines=[Family()], max_crashes=3, on_dead_letter=dead.put, **BRIEF):
            parent = await e.app.insert(Family.spread, 1)
            await e.until(parent, lambda row: row.status is Status.AWAITING_CHILDREN)
            child = e.app.handle((await e.app.list(parent=parent.id)).instances[0].id, double)
            for crash in (1, 2, 3):
                assert dead.empty()
                (claim,) = await e.claim(lease=0.0, queue="aside")
                await e.until(child, lambda row, n=crash: row.crashes == n)  # type: ignore[misc]
            assert await parent.wait(SOON) == Finished(parent.id, ["failed: crash loop"])
            async with asyncio.timeout(10):
                letter = await dead.get()
        assert isinstance(await child.wait(SOON), Failed)
        assert (letter.id, letter.parent_id, letter.crashes, letter.state) == (claim.id, parent.id, 3, 1)
