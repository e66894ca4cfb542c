"""on_dead_letter: the host program hears of instances that the reaper of its worker has failed."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from functools import partial

import pytest
from tests.support.engine import BRIEF, Engine, Opening, soon
from tests.worker.test_options_lease import dead_claim, double

from gen_durable import (
    Context,
    Done,
    Failed,
    Finished,
    Instance,
    Machine,
    Outcome,
    RetryPolicy,
    ScheduleChildren,
    Start,
    job,
    step,
)


class Told:
    """A hook that keeps what it is told."""

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self.threads: list[int] = []
        self.news = asyncio.Semaphore(0)
        self.loop = asyncio.get_running_loop()

    async def hear(self, one: Instance) -> None:
        self.plain(one)

    def plain(self, one: Instance) -> None:
        self.instances.append(one)
        self.threads.append(threading.get_ident())
        self.loop.call_soon_threadsafe(self.news.release)

    async def until(self, count: int) -> None:
        for _ in range(count):
            await soon(self.news.acquire())


@pytest.mark.parametrize("how", ["async def", "def", "partial"])
async def test_it_is_called_once_for_each_after_the_commit(engine: Opening, how: str) -> None:
    """With the instance as it was failed, state and all; not for claims that are merely taken back."""
    async with engine() as e:
        told = Told()
        hook = {"async def": told.hear, "def": told.plain, "partial": partial(told.hear)}[how]
        doomed = {await dead_claim(e, crashes=2) for _ in range(3)}
        spared = await dead_claim(e, crashes=1)
        async with e.worker(double, max_crashes=3, on_dead_letter=hook, **BRIEF):
            await told.until(3)
            assert await e.end(e.app.handle(spared, double)) == Finished(spared, 42)
            later = await dead_claim(e, crashes=2)
            await told.until(1)
        assert [one.id for one in told.instances][3:] == [later]
        assert {one.id for one in told.instances[:3]} == doomed
        assert {(one.status, one.crashes, one.state, one.finished_at is None) for one in told.instances} == {
            ("failed", 3, 21, False)
        }
        assert all("crash loop" in (one.last_error or "") for one in told.instances)
        assert (set(told.threads) == {threading.get_ident()}) == (how != "def")


async def test_what_it_raises_is_logged_and_harms_nothing(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """The next one is told all the same, and the worker goes on."""
    async with engine() as e:
        told = Told()

        async def hook(one: Instance) -> None:
            await told.hear(one)
            raise ValueError("no mail today")

        doomed = [await dead_claim(e, crashes=2) for _ in range(2)]
        with caplog.at_level(logging.ERROR, "gen_durable.worker"):
            async with e.worker(double, max_crashes=3, on_dead_letter=hook, **BRIEF):
                await told.until(2)
                handle = await e.app.insert(double, 4)
                assert await e.end(handle) == Finished(handle.id, 8)
        raised = [record for record in caplog.records if "on_dead_letter raised" in record.message]
        assert {record.args[:2] for record in raised} == {("ValueError", number) for number in doomed}  # type: ignore[index]


async def test_a_slow_one_holds_up_neither_the_reaper_nor_the_stop(engine: Opening) -> None:
    """It runs beside the reaper. Stopping waits for it as for a step, also where nothing but upkeep runs."""
    async with engine() as e:
        told, go = Told(), asyncio.Event()

        async def hook(one: Instance) -> None:
            await told.hear(one)
            await go.wait()
            told.instances.append(one)

        await dead_claim(e, crashes=2)
        worker = e.worker(queues={}, max_crashes=3, on_dead_letter=hook, **BRIEF)
        async with worker:
            await told.until(1)
            other = await dead_claim(e)
            await e.rows.until(other, status="runnable")
            stopping = asyncio.create_task(worker.stop())
            await asyncio.sleep(0.05)
            go.set()
            await soon(stopping)
        assert len(told.instances) == 2
        stuck = e.worker(
            queues={}, max_crashes=3, on_dead_letter=lambda _: asyncio.sleep(3600),
            drain_timeout=timedelta(milliseconds=50), **BRIEF,
        )  # fmt: skip
        async with stuck:
            await dead_claim(e, crashes=2)
            await e.rows.when(lambda: _none_executing(e))
        assert [t.get_name() for t in asyncio.all_tasks() if "dead letters" in t.get_name()] == []


async def _none_executing(e: Engine) -> bool:
    return await e.rows.count("status = 'executing'") == 0


async def test_a_step_that_fails_is_no_dead_letter(engine: Opening) -> None:
    """A job out of attempts has ended by an outcome of its own."""

    @job(retry=RetryPolicy(attempts=1))
    async def fails(n: int) -> int:
        raise ValueError("no")

    async with engine() as e:
        told = Told()
        async with e.worker(fails, double, max_crashes=3, on_dead_letter=told.hear, **BRIEF):
            assert isinstance(await e.end(await e.app.insert(fails, 1)), Failed)
            doomed = await dead_claim(e, crashes=2)
            await told.until(1)
        assert [one.id for one in told.instances] == [doomed]


class Family(Machine):
    """Has a child that nobody here runs."""

    @step
    async def spread(self, n: int, ctx: Context) -> Outcome[list[str]]:
        return ScheduleChildren([Start(double, n, queue="aside")], then=self.join, state=n)

    @step
    async def join(self, n: int, ctx: Context) -> Outcome[list[str]]:
        return Done([child.status.value for child in ctx.children])


async def test_a_dead_letter_joins_its_parent(engine: Opening) -> None:
    """The parent goes on, and the hook hears of the child: with its parent's id."""
    async with engine() as e:
        told = Told()
        async with e.worker(Family(), double, max_crashes=3, on_dead_letter=told.hear, **BRIEF):
            handle = await e.app.insert(Family.spread, 1)
            await e.rows.until(handle, status="awaiting_children")
            await e.rows.fetch(
                "update @.instances set status = 'executing', claims = 1, crashes = 2, locked_by = 'dead',"
                " lease_expires_at = now() - interval '1 second' where parent_id = $1", handle.id,
            )  # fmt: skip
            assert await e.end(handle) == Finished(handle.id, ["failed"])
            await told.until(1)
        assert [one.parent_id for one in told.instances] == [handle.id]


async def test_a_hook_that_is_never_called_is_told(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """Without max_crashes nothing is dead-lettered, without a reaper not by this worker."""
    async with engine() as e:
        for options in ({}, {"max_crashes": 3, "reap_interval": None}):
            caplog.clear()
            async with e.worker(queues={}, on_dead_letter=lambda one: None, **options):
                pass
            assert [r.message for r in caplog.records if "on_dead_letter" in r.message], options
