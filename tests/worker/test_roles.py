"""What a process can be: client only, worker only, maintenance only; and several workers in one."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine import BRIEF, Opening, seconds, soon

from gen_durable import Context, Done, Durable, Finished, Machine, Outcome, Start, Worker, job, step
from gen_durable.errors import ConfigError
from gen_durable.telemetry import ClaimsReaped, InstancesCollected, RowsPicked, StepCommitted


@job
async def double(number: int) -> int:
    return number * 2


class Named(Machine):
    """Answers with the worker that ran it."""

    @step
    async def who(self, pause: float, ctx: Context) -> Outcome[str]:
        await asyncio.sleep(pause)
        return Done(ctx.worker)


async def test_a_client_alone_runs_nothing(engine: Opening) -> None:
    """A process with only a `Durable` inserts and waits; its rows stay runnable, and it makes no picks."""
    async with engine() as e:
        handle = await e.app.insert(double, 1)
        await handle.wait(seconds(0.2))
        assert (await e.rows.row(handle))["claims"] == 0
        assert e.seen.of(RowsPicked) == []


async def test_maintenance_only(engine: Opening) -> None:
    """`queues={}`: reaps and sweeps, and picks nothing, also without machines."""
    async with engine() as e:
        waiting = await e.app.insert(double, 1)
        dead = await e.rows.value("""
            insert into @.instances (fsm, step, state, status, claims, locked_by, lease_expires_at)
            values ('double', 'run', '1', 'executing', 1, 'dead', now() - interval '1 minute') returning id
        """)
        await e.rows.fetch("""
            insert into @.instances (fsm, step, state, status, claims, seq, finished_at)
            values ('double', 'run', '1', 'done', 1, 1, now() - interval '1 year')
        """)
        async with Worker(e.app, queues={}, gc_interval=seconds(0.2), **BRIEF):
            assert (await e.seen.until(ClaimsReaped))[0].ids == (dead,)
            assert (await e.seen.until(InstancesCollected))[0].count == 1
            await e.rows.until(dead, status="runnable", attempt=1)
        assert (await e.rows.row(waiting))["claims"] == 0
        assert e.seen.of(RowsPicked) == []


async def test_work_only(engine: Opening) -> None:
    """Without reaper and gc a worker only runs steps."""
    async with engine() as e:
        await e.rows.fetch("""
            insert into @.instances (fsm, step, state, status, claims, seq, finished_at)
            values ('double', 'run', '1', 'done', 1, 1, now() - interval '1 year')
        """)
        async with e.worker(double, reap_interval=None, gc_interval=None):
            handle = await e.app.insert(double, 4)
            assert await e.end(handle) == Finished(handle.id, 8)
        assert await e.rows.count("status = 'done'") == 2
        assert (e.seen.of(ClaimsReaped), e.seen.of(InstancesCollected)) == ([], [])


async def test_several_workers_on_one_durable(engine: Opening) -> None:
    """Two workers of one `Durable` share the work of a queue and have names of their own."""
    two_slots = {"default": 2}
    async with engine() as e, e.worker(Named(), queues=two_slots) as one, e.worker(Named(), queues=two_slots) as two:
        assert one.name != two.name
        handles = await e.app.insert_many([Start(Named.who, 0.3)] * 4)
        ran = [await e.end(handle) for handle in handles]
        assert {getattr(end, "result", None) for end in ran} == {one.name, two.name}
        await two.stop()
        last = await e.app.insert(Named.who, 0.0)
        assert await e.end(last) == Finished(last.id, one.name)


async def test_different_machines_on_different_workers(engine: Opening) -> None:
    """Each worker runs only what it was given, although both serve the same queue."""
    async with engine() as e, e.worker(Named()) as named, e.worker(double):
        one = await e.app.insert(Named.who, 0.0)
        two = await e.app.insert(double, 2)
        assert await e.end(one) == Finished(one.id, named.name)
        assert await e.end(two) == Finished(two.id, 4)


async def test_a_worker_opens_and_closes_its_client(dsn: str, schema: str) -> None:
    """`Worker.run` on a `Durable` that is not open opens it, and closes it again when it is stopped."""
    app = Durable(dsn, schema=schema)
    seen = asyncio.Event()
    app.events.subscribe(lambda event: seen.set() if isinstance(event, StepCommitted) else None)
    running = asyncio.ensure_future(Worker(app, jobs=[double]).run())
    async with Durable(dsn, schema=schema) as client:
        await client.insert(double, 1)
        await soon(seen.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ConfigError, match="not open"):
        await app.get(1)


async def test_a_worker_is_started_once(engine: Opening) -> None:
    """Starting a worker twice is refused, before and after it was stopped."""
    async with engine() as e:
        worker = e.worker(double)
        await worker.start()
        with pytest.raises(ConfigError, match="started already"):
            await worker.start()
        await worker.stop()
        with pytest.raises(ConfigError, match="started already"):
            await worker.start()
