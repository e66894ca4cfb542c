"""`gen-durable worker --processes`: several processes, kept running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gen_durable import Durable, Finished, Start, job

PROGRAM = """
import asyncio, os, sys
from gen_durable import Durable, Worker, job

app = Durable(os.environ["APP_DSN"], schema=os.environ["APP_SCHEMA"])

@job
async def who(seconds: float) -> int:
    os.write(2, f"BEGUN {seconds:g}\\n".encode())  # one write: two processes share the pipe
    await asyncio.sleep(seconds)
    return os.getpid()

def worker():
    return Worker(app, jobs=[who], queues={"default": 1})

number = 3
"""
LONG = timedelta(seconds=30)
STARTED = r"process \d: pid (\d+)"
READY = r"\[(\d+)\].*gen_durable.worker: worker .*default=1"


@job
async def who(seconds: float) -> int:
    raise NotImplementedError


@pytest.fixture
def work(tmp_path: Path, start: Any, dsn: str, schema: str) -> Callable[..., Any]:
    """Start two processes of the program above."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    return lambda *more: start("worker", "shop:worker", "-p", "2", *more, APP_DSN=dsn, APP_SCHEMA=schema)


async def pids(app: Durable) -> set[int]:
    """Which processes work: two jobs at a time, each process having room for one."""
    handles = await app.insert_many([Start(who, 0.3), Start(who, 0.3)])
    endings = await asyncio.gather(*(handle.wait(LONG) for handle in handles))
    return {ending.result for ending in endings if isinstance(ending, Finished)}


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_both_work_a_killed_one_is_replaced_and_all_end_on_sigterm(work: Any, dsn: str, schema: str) -> None:
    running = work()
    first = {int(match[1]) for match in await running.heard(READY, times=2)}
    async with Durable(dsn, schema=schema) as app:
        assert await pids(app) == first

        victim = min(first)
        os.kill(victim, signal.SIGKILL)
        await running.heard(rf"\(pid {victim}\) was killed by SIGKILL; replacing it")
        third = {int(match[1]) for match in await running.heard(READY, times=3)} - first
        assert await pids(app) == (first - {victim}) | third

        running.send(signal.SIGTERM)
        assert running.end() == 0
    assert all(is_gone(pid) for pid in first | third)


async def test_sigterm_to_one_process_drains_it_without_a_replacement(work: Any, dsn: str, schema: str) -> None:
    """Its running step ends, the other process works on; when the last one is stopped too, the supervisor ends."""
    running = work()
    first = {int(match[1]) for match in await running.heard(READY, times=2)}
    async with Durable(dsn, schema=schema) as app:
        handles = await app.insert_many([Start(who, 1.0), Start(who, 1.0)])
        await running.heard("BEGUN 1$", times=2)
        stopped, other = first
        os.kill(stopped, signal.SIGTERM)
        await running.heard(rf"\(pid {stopped}\) has drained and ended; it is not replaced")
        endings = await asyncio.gather(*(handle.wait(LONG) for handle in handles))
        assert {ending.result for ending in endings if isinstance(ending, Finished)} == first
        assert await pids(app) == {other}
        os.kill(other, signal.SIGTERM)
        assert await asyncio.to_thread(running.end) == 0
    assert {int(match[1]) for match in running.expect(STARTED)} == first


async def test_ctrl_c_reaches_the_processes_once(work: Any, dsn: str, schema: str) -> None:
    """Through the supervisor: a second one, straight from the terminal, would cut the drain short."""
    running = work()
    await running.heard(READY, times=2)
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(who, 1.0)
        await running.heard("BEGUN 1$")
        running.press_ctrl_c()
        assert running.end() == 0
        assert isinstance(await handle.wait(timedelta(seconds=1)), Finished)
    for match in await running.heard(STARTED, times=2):
        assert is_gone(int(match[1]))


async def test_a_second_signal_kills(work: Any, dsn: str, schema: str) -> None:
    running = work("--drain-timeout", "3600")
    await running.heard(READY, times=2)
    async with Durable(dsn, schema=schema) as app:
        await app.insert(who, 3600.0)
        await running.heard("BEGUN 3600$")
        running.send(signal.SIGTERM)
        await running.heard("SIGTERM: stopping")
        running.send(signal.SIGTERM)
        assert running.end() == 128 + signal.SIGTERM


def test_processes_drain_when_their_supervisor_was_killed(work: Any) -> None:
    running = work()
    running.expect(READY, times=2)
    running.send(signal.SIGKILL)
    running.expect("gen_durable.worker: worker .*: stopping", times=2)
    running.end()  # not before all of them have closed the stderr that they share


def test_a_command_that_cannot_work_is_not_tried_again(tmp_path: Path, start: Any, dsn: str, schema: str) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    running = start("worker", "shop:number", "--processes", "2", APP_DSN=dsn, APP_SCHEMA=schema)
    assert running.end() == 2
    running.expect("Name a Worker, or a function that returns one")
    assert not any("replacing" in line for line in running.lines)
