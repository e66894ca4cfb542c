"""gc_interval, gc_retention and gc_batch: when ended instances are deleted."""

from __future__ import annotations

from typing import Any

from tests.support.engine import NEVER, Engine, Opening, seconds

from gen_durable import Context, Done, Fail, Machine, Outcome, Retention, ScheduleChildren, Start, job, step
from gen_durable.telemetry import InstancesCollected

OFTEN: dict[str, Any] = {"gc_interval": seconds(0.1), "reap_interval": None}


@job
async def nothing(number: int) -> int:
    return number


class Ends(Machine):
    @step
    async def well(self, _: int, ctx: Context) -> Outcome[None]:
        return Done()

    @step
    async def badly(self, _: int, ctx: Context) -> Outcome[None]:
        return Fail("badly")


async def ended(e: Engine, count: int, status: str = "done", hours: float = 2) -> None:
    """Rows that ended some hours ago."""
    sql = """
        insert into @.instances (fsm, step, state, status, claims, seq, finished_at)
        select 'nothing', 'run', '1', $2::text::@.durable_status, 1, 1, now() - make_interval(secs => $3)
        from generate_series(1, $1)
    """
    await e.rows.fetch(sql, count, status, hours * 3600)


async def left(e: Engine) -> dict[str, int]:
    rows = await e.rows.fetch("select status::text, count(*) from @.instances group by 1")
    return {row[0]: row[1] for row in rows}


async def test_retention_as_a_timedelta(engine: Opening) -> None:
    """Whatever ended longer ago than the retention is deleted; younger and live rows stay."""
    async with engine() as e:
        for status in ("done", "failed", "cancelled"):
            await ended(e, 2, status, hours=2)
            await ended(e, 1, status, hours=0.5)
        await e.app.insert(nothing, 1, delay=NEVER)
        async with e.worker(nothing, gc_retention=seconds(3600), **OFTEN):
            assert [swept.count for swept in await e.seen.until(InstancesCollected)] == [6]
        assert await left(e) == {"done": 1, "failed": 1, "cancelled": 1, "runnable": 1}


async def test_retention_per_status(engine: Opening) -> None:
    """Each kind of end has a retention of its own; None keeps for good."""
    keep = Retention(done=seconds(60), failed=None, cancelled=seconds(3 * 3600))
    async with engine() as e:
        for status in ("done", "failed", "cancelled"):
            await ended(e, 2, status, hours=2)
            await ended(e, 1, status, hours=24 * 365)
        async with e.worker(nothing, gc_retention=keep, **OFTEN):
            assert [swept.count for swept in await e.seen.until(InstancesCollected)] == [4]
        assert await left(e) == {"failed": 3, "cancelled": 2}


async def test_no_retention_keeps_all(engine: Opening) -> None:
    """gc_retention=None deletes nothing, however old."""
    async with engine() as e:
        await ended(e, 5, hours=24 * 365 * 10)
        async with e.worker(nothing, gc_retention=None, **OFTEN):
            await e.rows.fetch("select pg_sleep(0.4)")
        assert await left(e) == {"done": 5}
        assert e.seen.of(InstancesCollected) == []


async def test_retention_of_no_time(engine: Opening) -> None:
    """gc_retention of zero deletes what has ended at the next sweep."""
    async with engine() as e, e.worker(Ends(), gc_retention=seconds(0), **OFTEN):
        await e.app.insert_many([Start(Ends.well, 0), Start(Ends.badly, 0)])

        async def gone() -> bool:
            return await left(e) == {}

        await e.rows.when(gone)


async def test_gc_interval_none(engine: Opening) -> None:
    """A worker with gc_interval=None never sweeps."""
    async with engine() as e:
        await ended(e, 5, hours=24 * 365)
        async with e.worker(nothing, gc_interval=None, reap_interval=None):
            await e.end(await e.app.insert(nothing, 1))
            await e.rows.fetch("select pg_sleep(0.3)")
        assert await left(e) == {"done": 6}


async def test_gc_batch(engine: Opening) -> None:
    """A sweep deletes at most gc_batch rows, and a full one is followed by the next without a rest."""
    async with engine() as e:
        await ended(e, 25)
        often = OFTEN | {"gc_interval": NEVER}
        async with e.worker(nothing, gc_retention=seconds(60), gc_batch=10, **often):
            swept = await e.seen.until(InstancesCollected, count=3)
        assert [event.count for event in swept] == [10, 10, 5]


class Parent(Machine):
    @step
    async def begin(self, _: None, ctx: Context) -> Outcome[int]:
        children = [Start(Ends.well, 0), Start(Ends.badly, 0), Start(Ends.well, 0, delay=seconds(0.6))]
        return ScheduleChildren(children, then=self.join, state=None)

    @step
    async def join(self, _: None, ctx: Context) -> Outcome[int]:
        return Done(len(ctx.children))


async def test_children_of_a_live_parent_are_spared(engine: Opening) -> None:
    """A child that ended long ago is kept while its parent has not ended."""
    async with engine() as e, e.worker(Parent(), Ends(), **(OFTEN | {"gc_retention": seconds(0)})):
        parent = await e.app.insert(Parent.begin, None)
        await e.rows.until(parent, status="awaiting_children", children_pending=1)
        await e.rows.fetch("select pg_sleep(0.3)")
        assert await e.rows.count(f"parent_id = {parent.id}") == 3
        assert getattr(await e.end(parent), "result", None) == 3
