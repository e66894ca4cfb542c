"""`def` steps that time out keep their threads. The worker replaces them up to a bound; beyond it rows are put back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.engine import BRIEF, Engine, Opening, soon

from gen_durable import Context, Done, Failed, Finished, Handle, Machine, Outcome, RetryPolicy, step
from gen_durable.engine import thread_pool

ONE_THREAD: dict[str, Any] = {**BRIEF, "queues": {"default": 1}, "threads": 1}
release = threading.Event()
entered = threading.Semaphore(0)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    release.clear()
    while entered.acquire(blocking=False):
        pass
    yield
    release.set()


def hang() -> str:
    entered.release()
    release.wait(30)
    return "late"


class Slow(Machine, retry=RetryPolicy(attempts=1)):
    """Steps in threads; some do not come back."""

    @step(timeout=0.1)
    def hangs(self, _: str, ctx: Context) -> Outcome[str]:
        return Done(hang())

    @step(timeout=0.1)
    async def activity_hangs(self, _: str, ctx: Context) -> Outcome[str]:
        return Done(await ctx.run("hang", hang))

    @step(timeout=0.5)
    def good(self, word: str, ctx: Context) -> Outcome[str]:
        return Done(word)

    @step
    async def with_activity(self, word: str, ctx: Context) -> Outcome[str]:
        return Done(await ctx.run("echo", str, word))


async def hang_threads(e: Engine, count: int, start: Any = Slow.hangs) -> None:
    """Let so many calls time out, one after the other."""
    for _ in range(count):
        handle = await e.app.insert(start, "x")
        assert isinstance(await e.end(handle), Failed)
        await soon(asyncio.to_thread(entered.acquire))


async def test_abandoned_threads_are_replaced(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """A call that timed out does not take its thread from the steps after it."""
    async with engine() as e, e.worker(Slow(), **ONE_THREAD):
        await hang_threads(e, 1)
        good = await e.app.insert(Slow.good, "good")
        assert await e.end(good) == Finished(good.id, "good")
        assert "abandoned calls hold 1 threads" in caplog.text


async def test_threads_abandoned_by_activities_are_replaced(engine: Opening) -> None:
    async with engine() as e, e.worker(Slow(), **ONE_THREAD):
        await hang_threads(e, 1, Slow.activity_hangs)
        good = await e.app.insert(Slow.with_activity, "good")
        assert await e.end(good) == Finished(good.id, "good")


async def put_back(e: Engine, handle: Handle[Any]) -> Any:
    async def has_reason() -> bool:
        row = await e.rows.row(handle)
        return row["status"] == "runnable" and row["last_error"] is not None

    await e.rows.when(has_reason)
    return await e.rows.row(handle)


@pytest.mark.parametrize("start", [Slow.good, Slow.with_activity])
async def test_a_claim_without_a_thread_is_put_back(
    engine: Opening, monkeypatch: pytest.MonkeyPatch, start: Any
) -> None:
    """When the bound is reached, rows do not wait for a thread for ever: another worker runs them."""
    monkeypatch.setattr(thread_pool, "LONGEST_WAIT", 0.2)
    async with engine() as e:
        async with e.worker(Slow(), drain_timeout=0, **ONE_THREAD):
            await hang_threads(e, 2)
            handle = await e.app.insert(start, "good")
            row = await put_back(e, handle)
            assert "no free thread" in row["last_error"]
            assert (row["crashes"], row["attempt"]) == (0, 0)
        await e.rows.fetch("update @.instances set eligible_at = now() where id = $1", handle.id)
        async with e.worker(Slow(), **ONE_THREAD):
            assert await e.end(handle) == Finished(handle.id, "good")


async def test_a_claim_waits_for_busy_threads(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer threads than slots is no fault: a claim waits for a thread as long as the steps before it take."""
    monkeypatch.setattr(thread_pool, "LONGEST_WAIT", 0.05)
    done = threading.Event()

    class Patient(Machine):
        @step
        def waits(self, word: str, ctx: Context) -> Outcome[str]:
            entered.release()
            done.wait(10)
            return Done(word)

    async with engine() as e, e.worker(Patient(), **{**ONE_THREAD, "queues": {"default": 2}}):
        first, second = await e.app.insert(Patient.waits, "1"), await e.app.insert(Patient.waits, "2")
        await soon(asyncio.to_thread(entered.acquire))
        await asyncio.sleep(0.3)
        done.set()
        assert [await e.end(first), await e.end(second)] == [Finished(first.id, "1"), Finished(second.id, "2")]
        assert (await e.rows.row(second))["claims"] == 1


async def test_surplus_threads_end(engine: Opening) -> None:
    """Threads that come back are not kept beyond the size of the pool."""

    def count() -> int:
        return sum(thread.name == "gen_durable step" for thread in threading.enumerate())

    async with engine() as e, e.worker(Slow(), **ONE_THREAD):
        before = count()
        await hang_threads(e, 1)
        good = await e.app.insert(Slow.good, "good")
        await e.end(good)
        assert count() == before + 2
        release.set()

        async def one_left() -> bool:
            return count() == before + 1

        await e.rows.when(one_left)
        again = await e.app.insert(Slow.good, "again")
        assert await e.end(again) == Finished(again.id, "again")
