"""Signals to a worker process: the first drains, the second leaves at once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.support.engine import Opening, Spawning, program_job

from gen_durable import Finished, Start

gated = program_job("gated", str, str)
endless = program_job("endless", None, None)
stuck = program_job("stuck", float, None)
quick = program_job("quick", int, int)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains(engine: Opening, spawn: Spawning, tmp_path: Path, number: int) -> None:
    """Exit code 0: the running step finishes and commits, prefetched rows go back untouched, nothing is executing."""
    gate = tmp_path / "gate"
    async with engine() as e, spawn("slots=1", "prefetch=2") as p:
        handles = await e.app.insert_many([Start(gated, str(gate))] * 4)
        await p.line("running")
        before = [(await e.rows.row(h))["eligible_at"] for h in handles]
        p.signal(number)
        await e.rows.until(handles[2], status="runnable")
        gate.touch()
        assert await p.exit_code() == 0
        assert "through" in p.lines
        assert "left" in p.lines
        first, *rest = [await e.rows.row(h) for h in handles]
        assert (first["status"], first["claims"], first["attempt"]) == ("done", 1, 0)
        for row, place in zip(rest, before[1:], strict=True):
            assert (row["status"], row["attempt"], row["locked_by"]) == ("runnable", 0, None)
            assert row["eligible_at"] == place
        assert [row["claims"] for row in rest] == [2, 2, 0]
        assert await e.rows.count("status = 'executing'") == 0


async def test_overdue_steps_are_given_back(engine: Opening, spawn: Spawning) -> None:
    """A step that does not end is cancelled after drain_timeout and its row given back; the exit code is 0."""
    async with engine() as e, spawn("slots=2", "drain_timeout=0.3") as p:
        handle = await e.app.insert(endless, None)
        await p.line("running")
        began = time.monotonic()
        p.signal(signal.SIGTERM)
        assert await p.exit_code() == 0
        assert 0.3 <= time.monotonic() - began < 4
        assert "interrupted" in p.lines
        row = await e.rows.row(handle)
        assert (row["status"], row["attempt"], row["crashes"], row["claims"]) == ("runnable", 0, 0, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_second_signal_leaves_at_once(engine: Opening, spawn: Spawning, number: int) -> None:
    """While it drains, a second signal ends the process, whatever still runs and however long its intervals are."""
    slow_beats = ("lease_ttl=180", "heartbeat_interval=60")
    async with engine() as e, spawn("slots=1", "prefetch=1", "drain_timeout=60", *slow_beats) as p:
        handles = await e.app.insert_many([Start(endless, None)] * 2)
        await p.line("running")
        p.signal(signal.SIGTERM)
        await e.rows.until(handles[1], status="runnable")
        p.signal(number)
        await p.exit_code(within=4)


async def test_a_stuck_thread_does_not_hold_the_process(engine: Opening, spawn: Spawning) -> None:
    """A `def` step that does not end cannot be stopped, but it must not keep the process from leaving in time."""
    async with engine() as e, spawn("slots=1", "drain_timeout=0.3") as p:
        await e.app.insert(stuck, 30.0)
        await p.line("running")
        p.signal(signal.SIGTERM)
        assert await p.exit_code(within=6) == 0


async def test_a_second_signal_with_a_stuck_thread(engine: Opening, spawn: Spawning) -> None:
    """Also with a thread that is stuck a second signal leaves at once."""
    async with engine() as e, spawn("slots=1", "prefetch=1", "drain_timeout=60") as p:
        handles = await e.app.insert_many([Start(stuck, 30.0)] * 2)
        await p.line("running")
        p.signal(signal.SIGTERM)
        await e.rows.until(handles[1], status="runnable")
        p.signal(signal.SIGTERM)
        await p.exit_code(within=4)


async def test_run_ahead_stops_on_a_signal(engine: Opening, spawn: Spawning, tmp_path: Path) -> None:
    """A chain that goes on and on stops between two steps, and another worker goes on with it where it was."""
    gate = tmp_path / "gate"
    chain = program_job("chain", str, int)
    async with engine() as e, spawn("run_ahead_time=60", "run_ahead_steps=1000000") as p:
        sql = "insert into @.instances (fsm, step, state) values ('chain', 'link', to_jsonb($1::text)) returning id"
        number = await e.rows.value(sql, str(gate))
        await p.line("running")
        p.signal(signal.SIGTERM)
        assert await p.exit_code() == 0
        row = await e.rows.row(number)
        assert (row["status"], row["claims"], row["attempt"], row["locked_by"]) == ("runnable", 1, 0, None)
        assert row["seq"] >= 1
        gate.touch()
        async with spawn():
            ended = await e.end(e.app.handle(number, chain))
            assert isinstance(ended, Finished)
            assert ended.result >= row["seq"]


async def test_an_idle_worker_leaves_at_once(engine: Opening, spawn: Spawning) -> None:
    """An idle worker is gone soon after the signal."""
    async with engine() as e, spawn() as p:
        await e.end(await e.app.insert(quick, 1))
        began = time.monotonic()
        p.signal(signal.SIGTERM)
        assert await p.exit_code() == 0
        assert time.monotonic() - began < 2
        assert p.errors == ""
