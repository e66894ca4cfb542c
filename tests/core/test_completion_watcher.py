"""The completion watcher: a new waiter is cheap however many others wait."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine import Opening, seconds

from gen_durable import job
from gen_durable.starts import Start
from gen_durable.store.statements import Statements

CROWD = 500


@job
async def never_run(number: int) -> int:
    return number


async def test_a_new_waiter_is_looked_up_without_the_others(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten callers come and go beside five hundred that wait: only they are polled often."""
    async with engine() as e:
        handles = await e.app.insert_many([Start(never_run, n) for n in range(CROWD)])
        crowd = [asyncio.create_task(handle.wait(seconds(60))) for handle in handles]
        await asyncio.sleep(1.5)  # their polls have become rare
        looked_up: list[int] = []
        ends_of = Statements.ends_of
        monkeypatch.setattr(Statements, "ends_of", lambda self, ids: looked_up.extend(ids) or ends_of(self, ids))
        for handle in handles[:10]:
            await handle.wait(seconds(0.04))
        assert len(looked_up) < 5 * CROWD  # two or three rare polls of all, and a few of each new one
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


async def test_a_second_waiter_of_an_instance_is_answered_as_soon_as_the_first(engine: Opening) -> None:
    """A waiter that comes while its instance is polled rarely makes it be polled often again."""
    async with engine() as e, engine() as other:
        handle = await e.app.insert(never_run, 7)
        first = asyncio.create_task(handle.wait(seconds(60)))
        await asyncio.sleep(1.5)
        second = asyncio.create_task(handle.wait(seconds(60)))
        await asyncio.sleep(0)
        await other.app.cancel(handle.id)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await first == await second
        assert loop.time() - began < 0.2
