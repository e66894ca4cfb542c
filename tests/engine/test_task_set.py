"""TaskSet: the tasks of a worker, for which a drain waits."""

from __future__ import annotations

import asyncio
import time

from gen_durable.engine.task_set import TaskSet


async def test_a_task_is_kept_until_it_is_done() -> None:
    tasks, may_end = TaskSet(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()

    task = tasks.spawn(work())
    assert tasks.running == {task}
    may_end.set()
    await task
    await asyncio.sleep(0)
    assert tasks.running == set()


async def test_it_waits_also_for_tasks_that_a_task_has_spawned() -> None:
    tasks, ended = TaskSet(), list[str]()

    async def second() -> None:
        await asyncio.sleep(0.01)
        ended.append("second")

    async def first() -> None:
        await asyncio.sleep(0)
        tasks.spawn(second())
        ended.append("first")

    tasks.spawn(first())
    async with asyncio.timeout(10):
        await tasks.wait_until_empty()
    assert ended == ["first", "second"]


async def test_it_waits_no_longer_than_its_timeout_and_not_less() -> None:
    """What is left goes on until it is cancelled."""
    tasks = TaskSet()
    task = tasks.spawn(asyncio.Event().wait())  # type: ignore[arg-type]
    began = time.monotonic()
    async with asyncio.timeout(10):
        await tasks.wait_until_empty(0.05)
    assert time.monotonic() - began >= 0.05
    assert tasks.running == {task}
    tasks.cancel_all()
    async with asyncio.timeout(10):
        await tasks.wait_until_empty(5)
    assert task.cancelled()
