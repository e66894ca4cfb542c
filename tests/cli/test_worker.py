"""`gen-durable worker`: one process that runs what a module offers, and leaves as it should."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gen_durable import Durable, Finished, job

PROGRAM = """
import asyncio, os, time
from datetime import timedelta
from gen_durable import Durable, Worker, job

app = Durable(os.environ["APP_DSN"], schema=os.environ["APP_SCHEMA"])

@job
async def greet(name: str) -> str:
    return f"hello {name}"

@job
async def options(_: None) -> list[str]:
    return [str(current.options.max_crashes), str(current.options.drain_timeout)]

@job
async def slow(seconds: float) -> str:
    print("BEGUN", file=__import__("sys").stderr, flush=True)
    await asyncio.sleep(seconds)
    return "slept"

@job
def stubborn(seconds: float) -> str:
    print("BEGUN", file=__import__("sys").stderr, flush=True)
    time.sleep(seconds)
    return "slept"

@job
async def deadlock(_: None) -> str:
    time.sleep(3600)
    return "never"

current = worker = Worker(app, jobs=[greet, options, slow, stubborn])
blocked = Worker(app, jobs=[deadlock], lease_ttl=0.9, heartbeat_interval=0.3, max_loop_block=2)

def make():
    return worker

async def make_later():
    await asyncio.sleep(0)
    return worker

def careful():
    global current
    current = Worker(app, jobs=[options], max_crashes=5)
    return current
"""
LONG = timedelta(seconds=30)


@job
async def greet(name: str) -> str:
    raise NotImplementedError


@job
async def options(_: None) -> list[str]:
    raise NotImplementedError


@job
async def slow(seconds: float) -> str:
    raise NotImplementedError


@job
def stubborn(seconds: float) -> str:
    raise NotImplementedError


@job
async def deadlock(_: None) -> str:
    raise NotImplementedError


@pytest.fixture
def work(tmp_path: Path, start: Any, dsn: str, schema: str) -> Callable[..., Any]:
    """Start a worker of the program above."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    return lambda *arguments: start("worker", *arguments, APP_DSN=dsn, APP_SCHEMA=schema)


@pytest.mark.parametrize("name", ["worker", "make", "make_later"])
async def test_it_runs_jobs_and_drains_on_sigterm(work: Any, dsn: str, schema: str, name: str) -> None:
    running = work(f"shop:{name}")
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(greet, "you")
        assert await handle.wait(LONG) == Finished(handle.id, "hello you")
        running.send(signal.SIGTERM)
        assert running.end() == 0
    await running.heard("stopping")


async def test_a_step_under_way_is_finished_before_it_leaves(work: Any, dsn: str, schema: str) -> None:
    running = work("shop:worker")
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(slow, 1.0)
        await running.heard("BEGUN")
        running.send(signal.SIGINT)
        assert running.end() == 0
        assert await handle.wait(timedelta(0.1)) == Finished(handle.id, "slept")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["shop:worker"], ["10", "0:00:05"]),
        (["shop:worker", "--max-crashes", "3", "--drain-timeout", "1.5"], ["3", "0:00:01.500000"]),
        (["shop:worker", "--max-crashes", "0"], ["None", "0:00:05"]),
        (["shop:careful"], ["5", "0:00:05"]),
        (["shop:careful", "--max-crashes", "3"], ["3", "0:00:05"]),
    ],
)
async def test_what_the_command_says_goes_before_what_the_worker_says(
    work: Any, dsn: str, schema: str, arguments: list[str], expected: list[str]
) -> None:
    running = work(*arguments)
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(options, None)
        assert await handle.wait(LONG) == Finished(handle.id, expected)
        running.send(signal.SIGTERM)
        assert running.end() == 0


@pytest.mark.parametrize("step", [slow, stubborn])
async def test_a_step_that_does_not_end_does_not_keep_the_process(work: Any, dsn: str, schema: str, step: Any) -> None:
    """Also not one in a thread, which the interpreter would wait for."""
    running = work("shop:worker", "--drain-timeout", "0.2")
    async with Durable(dsn, schema=schema) as app:
        await app.insert(step, 3600.0)
        await running.heard("BEGUN")
        running.send(signal.SIGTERM)
        assert running.end() == 0
    await running.heard("did not end within drain_timeout")


async def test_a_second_signal_leaves_at_once(work: Any, dsn: str, schema: str) -> None:
    running = work("shop:worker", "--drain-timeout", "3600")
    async with Durable(dsn, schema=schema) as app:
        await app.insert(slow, 3600.0)
        await running.heard("BEGUN")
        running.send(signal.SIGTERM)
        await running.heard("stopping")
        running.send(signal.SIGTERM)
        assert running.end() == 128 + signal.SIGTERM
    await running.heard("exit without draining")


async def test_a_process_whose_loop_does_not_come_back_exits(work: Any, dsn: str, schema: str) -> None:
    """With a code that gets it restarted, after it has logged where the loop is."""
    running = work("shop:blocked")
    async with Durable(dsn, schema=schema) as app:
        await app.insert(deadlock, None)
        assert running.end() == 1
    await running.heard("in deadlock")
    await running.heard("no lease is extended any more")
