"""`gen-durable worker`: one process that runs what a module offers, and leaves as it should."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import COMMAND, environment

from gen_durable import Durable, Finished, job

PROGRAM = """
import asyncio, gc, os, time
from datetime import timedelta
from gen_durable import Durable, Worker, job

app = Durable(os.environ["APP_DSN"], schema=os.environ["APP_SCHEMA"])

@job
async def greet(name: str) -> str:
    return f"hello {name}"

@job
async def options(_: None) -> list[str]:
    return [str(current.options.max_crashes), str(current.options.drain_timeout), str(gc.get_threshold()[0])]

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
        (["shop:worker"], ["10", "0:00:05", "50000"]),
        (["shop:worker", "--max-crashes", "3", "--drain-timeout", "1.5"], ["3", "0:00:01.500000", "50000"]),
        (["shop:worker", "--max-crashes", "0"], ["None", "0:00:05", "50000"]),
        (["shop:careful"], ["5", "0:00:05", "50000"]),
        (["shop:careful", "--max-crashes", "3"], ["3", "0:00:05", "50000"]),
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


BARE = """
import os
from pathlib import Path
from gen_durable import Durable, Worker, job

@job
async def greet(name: str) -> str:
    return f"hello {name}"

def worker():
    return Worker(Durable(migrate=True), jobs=[greet])

def named():
    return Worker(Durable(migrate=True, embedded_directory=Path("server")), jobs=[greet])
"""
NO_DATABASE = "gen-durable: No database: neither the Durable nor DATABASE_URL names one."


@pytest.mark.parametrize("more", [(), ("-p", "2")], ids=["one process", "two processes"])
def test_without_a_database_and_a_terminal_it_refuses(tmp_path: Path, start: Any, more: tuple[str, ...]) -> None:
    """A service whose DATABASE_URL is missing must not work on an empty server of its own."""
    (tmp_path / "shop.py").write_text(BARE)
    running = start("worker", "shop:worker", *more)
    assert running.end() == 2
    assert any(NO_DATABASE in line and "--embedded" in line for line in running.lines)
    assert not (tmp_path / ".gen_durable").exists()


@pytest.mark.parametrize(
    "arguments", [("shop:worker", "--embedded"), ("shop:worker", "--embedded", "-p", "2"), ("shop:named",)]
)
def test_it_starts_the_embedded_server_if_told_to(tmp_path: Path, start: Any, arguments: tuple[str, ...]) -> None:
    """By the option, or by the directory that the code names."""
    (tmp_path / "shop.py").write_text(BARE)
    running = start("worker", *arguments)
    running.expect("worker .*: default=10", times=2 if "-p" in arguments else 1)
    running.send(signal.SIGTERM)
    assert running.end() == 0
    assert (tmp_path / ("server" if "shop:named" in arguments else ".gen_durable")).exists()


def test_in_a_terminal_it_starts_the_embedded_server(tmp_path: Path) -> None:
    """As the tutorial does it. DATABASE_URL, if it is set, comes first."""
    (tmp_path / "shop.py").write_text(BARE)
    shown, terminal = os.openpty()
    with subprocess.Popen(
        [*COMMAND, "worker", "shop:worker"],
        cwd=tmp_path,
        env=environment(),
        stdin=terminal,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "default=10" in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    os.close(shown)
    os.close(terminal)


def test_database_url_is_a_database(tmp_path: Path, start: Any, dsn: str, schema: str) -> None:
    (tmp_path / "shop.py").write_text(BARE.replace("Durable(migrate=True)", f"Durable(schema={schema!r})"))
    running = start("worker", "shop:worker", DATABASE_URL=dsn)
    running.expect("worker .*: default=10")
    running.send(signal.SIGTERM)
    assert running.end() == 0
    assert not (tmp_path / ".gen_durable").exists()
