"""EventLoopMonitor: how long an event loop has not answered, and what is called on it."""

from __future__ import annotations

import asyncio
import threading
import time

from gen_durable.engine.event_loop_monitor import EventLoopMonitor


async def in_thread_that_ends() -> EventLoopMonitor:
    """A monitor of a loop that is closed, in a thread that has ended."""
    made: list[EventLoopMonitor] = []

    async def make() -> None:
        made.append(EventLoopMonitor(60.0, lambda _: None))

    thread = threading.Thread(target=lambda: asyncio.run(make()))
    thread.start()
    await asyncio.to_thread(thread.join)
    return made[0]


async def test_a_new_monitor_has_no_lag() -> None:
    """The first measurement sends a probe, and counts nothing before it."""
    monitor = EventLoopMonitor(60.0, lambda _: None)
    assert monitor.measure_lag() == 0.0


async def test_the_lag_grows_until_the_loop_answers() -> None:
    """Measurements of a blocked loop add up, none counts twice, and the first one after an answer is zero again."""
    lags: list[float] = []
    monitor = EventLoopMonitor(60.0, lags.append)
    began = time.monotonic()
    measured = [monitor.measure_lag()]
    for _ in range(3):
        time.sleep(0.02)  # noqa: ASYNC251  # this is the loop that does not answer
        measured.append(monitor.measure_lag())
    blocked = time.monotonic() - began
    assert measured[0] == 0.0
    assert 0.02 <= measured[1] < measured[2] < measured[3] <= blocked
    assert measured[3] >= 0.06
    assert lags == []
    await asyncio.sleep(0)
    assert len(lags) == 1, "one probe at a time"
    assert 0.06 <= lags[0] <= time.monotonic() - began
    assert monitor.measure_lag() == 0.0
    await asyncio.sleep(0)
    assert len(lags) == 2, "an answer is followed by the next probe"


async def test_a_function_is_called_on_the_thread_of_the_loop() -> None:
    """Another thread hands it over with its arguments."""
    monitor = EventLoopMonitor(60.0, lambda _: None)
    called: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    await asyncio.to_thread(monitor.call_on_loop, lambda text: called.put_nowait((threading.get_ident(), text)), "x")
    async with asyncio.timeout(5):
        assert await called.get() == (threading.get_ident(), "x")


async def test_a_closed_loop_is_no_error() -> None:
    """The worker is gone: nothing is called, and the stack says that its thread has ended."""
    monitor = await in_thread_that_ends()
    monitor.call_on_loop(print)
    assert monitor.measure_lag() == 0.0
    monitor._thread_id = -1  # the system gives the number of an ended thread to a later one
    assert monitor.format_loop_stack() == "(its thread has ended)"


async def test_the_stack_is_that_of_the_loop() -> None:
    """From another thread: it shows where the thread of the loop waits."""
    monitor = EventLoopMonitor(60.0, lambda _: None)
    stacks: list[str] = []
    thread = threading.Thread(target=lambda: stacks.append(monitor.format_loop_stack()))

    def block_here() -> None:
        thread.start()
        thread.join(10)

    block_here()
    assert "in block_here" in stacks[0]
