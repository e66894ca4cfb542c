"""Threads: as many as are needed and allowed, given back when their calls end, replaced when these are abandoned."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.engine import soon

from gen_durable.engine import thread_pool
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.errors import NoFreeThread


class Blocked:
    """Calls that return when the test lets them."""

    def __init__(self) -> None:
        self.may_return = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []

    def __call__(self) -> str:
        self.threads.append(threading.current_thread())
        self.entered.release()
        self.may_return.wait(20)
        return "returned"

    async def until_entered(self, count: int = 1) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self.entered.acquire, timeout=10)


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    calls = Blocked()
    yield calls
    calls.may_return.set()


async def when(there: Callable[[], bool]) -> None:
    """Ask again and again until something holds."""
    async with asyncio.timeout(10):
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def counts(pool: ThreadPool) -> tuple[int, int, int]:
    """How many threads are started, how many of them are idle, and how many calls are abandoned."""
    return pool._started, pool._idle, pool._abandoned


async def call(pool: ThreadPool, function: Callable[[], Any]) -> Any:
    return await (await pool.start_call(function))


async def test_one_thread_serves_calls_that_follow_each_other() -> None:
    """It is started for the first call, kept for the next ones, and does not keep the process alive."""
    pool = ThreadPool(3)
    threads = [await soon(call(pool, threading.current_thread)) for _ in range(5)]
    assert set(threads) == {threads[0]}
    assert threads[0].daemon
    assert counts(pool) == (1, 1, 0)
    pool.close()


async def test_calls_run_side_by_side_up_to_the_size(blocked: Blocked) -> None:
    """An idle thread takes one call, a new thread the other; a third call waits, and takes the first free thread."""
    pool = ThreadPool(2)
    first = await soon(call(pool, threading.current_thread))
    running = [await soon(pool.start_call(blocked)), await soon(pool.start_call(blocked))]
    await blocked.until_entered(2)
    assert first in blocked.threads
    assert counts(pool) == (2, 0, 0)
    waiting = asyncio.create_task(call(pool, threading.current_thread))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert counts(pool) == (2, -1, 0)
    blocked.may_return.set()
    assert await soon(waiting) in blocked.threads
    assert await soon(asyncio.gather(*running)) == ["returned", "returned"]
    assert counts(pool) == (2, 2, 0)
    pool.close()


async def test_close_ends_all_threads(blocked: Blocked) -> None:
    """Idle ones at once, a busy one after its call."""
    pool = ThreadPool(2)
    running = [await soon(pool.start_call(blocked)) for _ in range(2)]
    await blocked.until_entered(2)
    pool.close()
    blocked.may_return.set()
    await soon(asyncio.gather(*running))
    for thread in blocked.threads:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


async def test_start_returns_when_the_call_has_begun() -> None:
    """A call whose future is cancelled directly afterwards runs, and counts as abandoned."""
    pool, ended = ThreadPool(2), threading.Event()
    done = await soon(pool.start_call(lambda: ended.wait(10)))
    done.cancel()
    await asyncio.sleep(0)
    assert counts(pool) == (1, 0, 1)
    ended.set()
    await when(lambda: counts(pool) == (1, 1, 0))
    pool.close()


async def test_a_waiting_call_that_is_cancelled_never_runs(blocked: Blocked) -> None:
    """Its function is forgotten at once, its caller sees the cancellation, and the thread serves the next call."""

    class Function:
        def __call__(self) -> None:
            ran.append(True)

    ran: list[bool] = []
    pool, function = ThreadPool(1), Function()
    forgotten = weakref.ref(function)
    running = await soon(pool.start_call(blocked))
    waiting = asyncio.create_task(pool.start_call(function))
    del function
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    del waiting
    gc.collect()
    assert forgotten() is None
    blocked.may_return.set()
    assert await soon(running) == "returned"
    assert await soon(call(pool, lambda: "next")) == "next"
    assert not ran
    assert counts(pool) == (1, 1, 0)
    pool.close()


async def test_a_call_that_is_cancelled_as_it_begins_is_abandoned(
    blocked: Blocked, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread has taken it, and the event loop does not know so yet: the thread is replaced."""
    pool = ThreadPool(1)
    starting = asyncio.create_task(pool.start_call(blocked))
    await asyncio.sleep(0)
    assert blocked.entered.acquire(timeout=10)  # blocks the event loop meanwhile
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert "abandoned calls hold 1 threads" in caplog.text
    assert await soon(call(pool, lambda: "next")) == "next"
    pool.close()


async def test_a_call_that_has_ended_is_not_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    """Its future is cancelled after its end, before the event loop has its answer."""
    pool, may_return = ThreadPool(1), threading.Event()
    done = await soon(pool.start_call(lambda: may_return.wait(10)))
    may_return.set()
    deadline = time.monotonic() + 10
    while pool._idle < 1 and time.monotonic() < deadline:
        time.sleep(0.001)  # noqa: ASYNC251 - the event loop must not get the answer
    done.cancel()
    await asyncio.sleep(0)
    assert counts(pool) == (1, 1, 0)
    assert "abandoned" not in caplog.text
    pool.close()


async def test_a_waiting_call_gets_the_replacement_of_an_abandoned_thread(blocked: Blocked) -> None:
    """At once, while the abandoned call still runs; the surplus thread ends, and the counts are right afterwards."""
    pool = ThreadPool(1)
    abandoned = await soon(pool.start_call(blocked))
    waiting = asyncio.create_task(call(pool, lambda: "served"))
    await asyncio.sleep(0)
    abandoned.cancel()
    assert await soon(waiting) == "served"
    assert counts(pool) == (2, 1, 1)
    blocked.may_return.set()
    await when(lambda: counts(pool) == (1, 1, 0) and not blocked.threads[0].is_alive())
    assert [await soon(call(pool, lambda: "again")) for _ in range(3)] == ["again"] * 3
    assert counts(pool) == (1, 1, 0)
    pool.close()


async def test_a_thread_is_replaced_only_when_a_call_needs_it(blocked: Blocked) -> None:
    pool = ThreadPool(1)
    (await soon(pool.start_call(blocked))).cancel()
    await asyncio.sleep(0)
    assert counts(pool) == (1, 0, 1)
    assert await soon(call(pool, lambda: "served")) == "served"
    assert counts(pool) == (2, 1, 1)
    pool.close()


async def test_replacements_are_bounded_and_logged(
    blocked: Blocked, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the pool has threads. Each is a warning, the first abandoned call beyond the bound an error."""
    monkeypatch.setattr(thread_pool, "LONGEST_WAIT", 0.02)
    pool = ThreadPool(2)
    for _ in range(4):
        (await soon(pool.start_call(blocked))).cancel()
        await asyncio.sleep(0)
    assert counts(pool) == (4, 0, 4)
    assert [(r.levelno, r.getMessage().partition(" threads")[0]) for r in caplog.records] == [
        (logging.WARNING, "abandoned calls hold 1"),
        (logging.WARNING, "abandoned calls hold 2"),
        (logging.ERROR, "abandoned calls hold 3"),
    ]
    with pytest.raises(NoFreeThread, match="hold 4 threads of a worker with threads=2"):
        await soon(pool.start_call(blocked))
    blocked.may_return.set()
    await when(lambda: counts(pool)[0] == 2 and counts(pool)[2] == 0)
    assert await soon(call(pool, lambda: "served")) == "served"
    await when(lambda: counts(pool) == (2, 2, 0))
    pool.close()


async def test_a_call_is_not_refused_while_replacements_are_allowed(
    blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many calls are abandoned as the pool has threads: the replacement is busy, and a call waits for it."""
    monkeypatch.setattr(thread_pool, "LONGEST_WAIT", 0.01)
    other = Blocked()
    pool = ThreadPool(1)
    (await soon(pool.start_call(blocked))).cancel()
    await asyncio.sleep(0)
    running = await soon(pool.start_call(other))
    waiting = asyncio.create_task(call(pool, lambda: "served"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    other.may_return.set()
    assert await soon(running) == "returned"
    assert await soon(waiting) == "served"
    pool.close()


async def test_an_idle_thread_keeps_no_result_alive() -> None:
    class Result:
        pass

    pool = ThreadPool(1)
    result = await soon(call(pool, Result))
    forgotten = weakref.ref(result)
    del result
    await when(lambda: gc.collect() >= 0 and forgotten() is None)
    pool.close()
