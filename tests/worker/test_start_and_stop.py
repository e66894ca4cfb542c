"""Starting and stopping in unusual places: inside a step, interrupted, in a thread, during start-up."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from typing import Any

import pytest
from tests.support.engine import Opening, seconds

from gen_durable import Durable, Finished, Worker, job
from gen_durable.errors import ConfigError

workers: dict[str, Worker] = {}


@job
async def stop_own_worker(name: str) -> str:
    await workers[name].stop()
    return "went on"


@job
async def wait_long(_: int) -> None:
    await asyncio.sleep(60)


def own_tasks() -> set[str]:
    """The names of this library's tasks that still run."""
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("gen_durable")}


async def until_no_worker_tasks() -> None:
    """Wait until only tasks of the client are left."""
    async with asyncio.timeout(10):
        while own_tasks() - {"gen_durable completion watcher", "gen_durable listener"}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_stop_inside_a_step_drains_and_lets_the_step_end(engine: Opening) -> None:
    """It returns at once, since it would wait for its own step; the outcome of the step is committed."""
    async with engine() as e:
        worker = workers["inside"] = e.worker(stop_own_worker, drain_timeout=seconds(5))
        await worker.start()
        handle = await e.app.insert(stop_own_worker, "inside")
        assert await handle.wait(seconds(3)) == Finished(handle.id, "went on")
        await worker.stop()
        await until_no_worker_tasks()


async def test_an_interrupted_stop_leaves_no_background_task(engine: Opening) -> None:
    """A stop that is cancelled while it drains still ends the reaper, gc and picker."""
    async with engine() as e:
        worker = e.worker(wait_long, drain_timeout=seconds(30))
        await worker.start()
        handle = await e.app.insert(wait_long, 1)
        await e.rows.until(handle, status="executing")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await worker.stop()
        await until_no_worker_tasks()


def test_run_in_a_thread_is_refused_before_anything_is_opened(dsn: str, schema: str) -> None:
    """Signals reach the main thread only: the error says what to use instead."""
    raised: list[BaseException] = []
    app = Durable(dsn, schema=schema)

    def run() -> None:
        try:
            asyncio.run(Worker(app, jobs=[wait_long]).run())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    (error,) = raised
    assert isinstance(error, ConfigError)
    assert "async with" in str(error)


async def test_a_signal_during_start_up_ends_run(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose database does not answer yet stops at once, and leaves nothing behind."""
    app = Durable(dsn, schema=schema)
    worker = Worker(app, jobs=[wait_long])
    opening = asyncio.Event()

    async def never_opens(*_: Any) -> bool:
        opening.set()
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr("gen_durable.core.services.Services.open_if_closed", never_opens)
    running = asyncio.create_task(worker.run())
    await opening.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(5):
        await running
    assert own_tasks() == set()


async def test_closing_a_durable_under_a_worker_says_so(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the worker and what to do."""
    caplog.set_level(logging.WARNING)
    async with engine() as e:
        worker = e.worker(wait_long)
        await worker.start()
        await e.app.close()
        assert f"worker {worker.name} still runs" in caplog.text
        await worker.stop()
