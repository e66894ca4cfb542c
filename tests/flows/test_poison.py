"""A step that kills its process: it fails, and the instances that ran beside it do not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta

import pytest
from tests.support.processes import Spawn
from tests.support.programs.poisoned import poison, work

from gen_durable import Durable, Start, Status, Worker


async def counts(app: Durable) -> Counter[Status]:
    return Counter([instance.status async for instance in app.list_all()])


async def until(app: Durable, seconds: float, *statuses: Status, count: int) -> float:
    """Wait until so many instances have one of the statuses. Returns how long it took."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while True:
            found = await counts(app)
            if sum(found[status] for status in statuses) >= count:
                break
            await asyncio.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(((5,), 0.0, 10), id="one, short steps", marks=pytest.mark.long),
        pytest.param(((5, 30), 0.3, 10), id="two, long steps", marks=pytest.mark.long),
        pytest.param(((49,), 0.3, 3), id="one, few crashes"),
        pytest.param(((3, 4), 0.0, 4), id="two together, few crashes"),
    ],
)
async def test_only_the_poisons_fail(
    dsn: str, schema: str, spawn: Spawn, case: tuple[tuple[int, ...], float, int]
) -> None:
    """Among 50 good jobs, on ten slots, in a process that is replaced whenever it dies."""
    places, length, max_crashes = case
    async with Durable(dsn, schema=schema) as app:
        starts: list[Start[float]] = [Start(work, length) for _ in range(50)]
        for place in places:
            starts.insert(place, Start(poison, length / 2))
        handles = await app.insert_many(starts)
        program = spawn("poisoned", MAX_CRASHES=str(max_crashes))
        await until(app, 100, Status.DONE, Status.FAILED, count=len(handles))
        program.terminate()
        failed = [instance.id async for instance in app.list_all() if instance.status is Status.FAILED]
        assert sorted(failed) == sorted(handles[place].id for place in places)


@pytest.mark.slow
@pytest.mark.long
async def test_many_claims_that_died_together_end_soon(dsn: str, schema: str, spawn: Spawn) -> None:
    """Three kills of a worker with 200 claims: they start apart, and soon all run together again."""
    took: list[float] = []
    for kills in (1, 3):
        reaper = {"reap_interval": timedelta(milliseconds=50), "max_crashes": 10}
        async with Durable(dsn, schema=schema) as app, Worker(app, queues={}, **reaper):  # type: ignore[arg-type]
            done = (await counts(app))[Status.DONE]
            await app.insert_many([Start(work, 0.5) for _ in range(200)])
            for _ in range(kills):
                program = spawn("poisoned", SLOTS="40")
                await until(app, 20, Status.EXECUTING, count=40)
                program.kill()
                await until(app, 20, Status.RUNNABLE, count=200)
            program = spawn("poisoned", SLOTS="40")
            took.append(await until(app, 60, Status.DONE, count=done + 200))
            program.terminate()
    assert took[1] <= 1.5 * took[0], took
