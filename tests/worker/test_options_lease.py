"""lease_ttl, heartbeat_interval, reap_interval and max_crashes: who holds a row, and for how long."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.support.engine import BRIEF, Engine, Opening, seconds

from gen_durable import Failed, Finished, job
from gen_durable.engine.heartbeat import Heartbeat
from gen_durable.telemetry import ClaimsReaped, InstanceDeadLettered


@job
async def rest(length: float) -> str:
    await asyncio.sleep(length)
    return "rested"


@job
async def block(length: float) -> str:
    """Holds up the whole event loop, as a careless step may."""
    time.sleep(length)  # noqa: ASYNC251
    return "blocked"


@job
async def double(number: int) -> int:
    return number * 2


async def dead_claim(e: Engine, *, crashes: int = 0) -> int:
    """A row that a worker took and died with: its lease is over."""
    sql = """
        insert into @.instances
          (fsm, step, state, status, claims, crashes, attempt, locked_by, lease_expires_at, eligible_at)
        values ('double', 'run', '21', 'executing', 1, $1::int, $1::int, 'dead', now() - interval '1 second', now())
        returning id
    """
    return int(await e.rows.value(sql, crashes))


async def test_the_lease_is_as_long_as_told(engine: Opening) -> None:
    """A claim's lease ends lease_ttl after it was made or last extended."""
    async with engine() as e, e.worker(rest, lease_ttl=seconds(100), heartbeat_interval=seconds(30)):
        handle = await e.app.insert(rest, 0.3)
        row = await e.rows.until(handle, status="executing")
        assert (row["lease_expires_at"] - row["updated_at"]).total_seconds() == 100
        assert row["locked_by"]
        await e.end(handle)


async def test_a_long_step_keeps_its_claim(engine: Opening) -> None:
    """A step that runs for several leases is beaten for: no other worker gets it, and it runs once."""
    async with engine() as e, engine() as other:
        handle = await e.app.insert(rest, 2.2)
        async with e.worker(rest, **BRIEF), other.worker(rest, **BRIEF):
            assert await e.end(handle) == Finished(handle.id, "rested")
        row = await e.rows.row(handle)
        assert (row["claims"], row["attempt"], row["seq"]) == (1, 0, 1)


async def test_a_blocked_loop_keeps_its_claim(engine: Opening) -> None:
    """Beats come from a thread of their own: a step that blocks the loop for several leases is not stolen."""
    async with engine() as e:
        handle = await e.app.insert(block, 2.2)
        async with e.worker(block, **BRIEF):
            assert await e.end(handle) == Finished(handle.id, "blocked")
        row = await e.rows.row(handle)
        assert (row["claims"], row["attempt"]) == (1, 0)


async def test_without_beats_the_claim_is_lost(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-test: a worker that does not beat loses a long step to the reaper, which burns an attempt."""
    monkeypatch.setattr(Heartbeat, "start", lambda _: None)
    async with engine() as e, e.worker(rest, **BRIEF):
        handle = await e.app.insert(rest, 1.6)
        await e.seen.until(ClaimsReaped, lambda reaped: handle.id in reaped.ids)
        row = await e.rows.row(handle)
        assert row["attempt"] >= 1
        assert row["crashes"] >= 1


async def test_a_dead_claim_is_reaped(engine: Opening) -> None:
    """A claim whose lease is over is taken back within reap_interval, and runs again with attempt + 1."""
    async with engine() as e:
        number = await dead_claim(e)
        async with e.worker(double, **BRIEF):
            handle = e.app.handle(number, double)
            assert await e.end(handle) == Finished(number, 42)
        row = await e.rows.row(number)
        assert (row["attempt"], row["crashes"], row["claims"]) == (1, 0, 3)


async def test_reap_interval_none(engine: Opening) -> None:
    """A worker without a reaper runs what is runnable and leaves dead claims to others."""
    async with engine() as e:
        number = await dead_claim(e)
        async with e.worker(double, reap_interval=None):
            for n in range(3):
                await e.end(await e.app.insert(double, n))
            await e.rows.fetch("select pg_sleep(0.3)")
            row = await e.rows.row(number)
        assert (row["status"], row["claims"], row["locked_by"]) == ("executing", 1, "dead")
        assert e.seen.of(ClaimsReaped) == []


async def test_max_crashes_dead_letters(engine: Opening) -> None:
    """A row that crashed too often is failed for good, with the reason and an event, and is not run again."""
    async with engine() as e:
        doomed = await dead_claim(e, crashes=2)
        spared = await dead_claim(e, crashes=1)
        async with e.worker(double, max_crashes=3, **BRIEF):
            ended = await e.end(e.app.handle(doomed, double))
            assert isinstance(ended, Failed)
            assert "crash loop" in ended.error
            assert await e.end(e.app.handle(spared, double)) == Finished(spared, 42)
            (event,) = await e.seen.until(InstanceDeadLettered)
        assert event == InstanceDeadLettered(doomed, "double", "run", 3)


async def test_max_crashes_is_off_by_default(engine: Opening) -> None:
    """Without max_crashes a row may crash as often as it likes."""
    async with engine() as e:
        number = await dead_claim(e, crashes=500)
        async with e.worker(double, **BRIEF):
            assert await e.end(e.app.handle(number, double)) == Finished(number, 42)
