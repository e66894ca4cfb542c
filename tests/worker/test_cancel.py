"""Cancelling what a worker of this process runs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine import Opening, seconds, soon

from gen_durable import (
    Await,
    Cancelled,
    Concurrency,
    Context,
    Done,
    Fail,
    Failed,
    Finished,
    Machine,
    Next,
    Outcome,
    Signal,
    Status,
    SyncDurable,
    job,
    step,
)
from gen_durable.errors import InputError, NotFound
from gen_durable.instances import Cancellation

go = Signal("go", int)


class Long(Machine):
    """Works until it is stopped, and says what it has been told."""

    def __init__(self, clean_up: Any = None) -> None:
        self.began = asyncio.Event()
        self.cleaned: list[tuple[Any, str]] = []
        self.clean_up = clean_up

    @step
    async def work(self, state: str, ctx: Context) -> Outcome[int]:
        self.began.set()
        await asyncio.sleep(3600)
        return Done(1)

    @step
    async def stubborn(self, state: str, ctx: Context) -> Outcome[int]:
        """Swallows its cancellation and goes on."""
        self.began.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if state == "done":
                return Done(7)
            if state == "stop":
                return Fail("no")
        return Next(self.work, state)

    @step
    async def wait(self, state: str, ctx: Context) -> Outcome[int]:
        return Await(go, then=self.work, state=state)

    async def on_cancel(self, state: Any, ctx: Context, reason: str) -> None:
        self.cleaned.append((state, reason))
        if self.clean_up is not None:
            await self.clean_up()


async def test_a_step_is_stopped_and_cleans_up(engine: Opening) -> None:
    async with engine() as e:
        long = Long()
        async with e.worker(long):
            handle = await e.app.insert(Long.work, "x", unique_key="k")
            await soon(long.began.wait())
            began = time.monotonic()
            assert await e.app.cancel("k", reason="enough") == Cancellation(handle.id, Status.EXECUTING, 0, 1)
            assert await e.end(handle) == Cancelled(handle.id, "enough")
            assert time.monotonic() - began < 1
            assert long.cleaned == [("x", "enough")]
        row = await e.rows.row(handle)
        assert (row["status"], row["last_error"], row["seq"], row["locked_by"]) == ("cancelled", "enough", 1, None)


async def test_what_waits_ends_without_a_worker(engine: Opening) -> None:
    async with engine() as e:
        long = Long()
        async with e.worker(long):
            handle = await e.app.insert(Long.wait, "x")
            await e.rows.until(handle, status="awaiting_signal")
            answer = await handle.cancel(reason="enough")
            assert (answer, bool(answer)) == (Cancellation(handle.id, Status.AWAITING_SIGNAL, 1, 0), True)
            assert await e.end(handle) == Cancelled(handle.id, "enough")
            assert long.cleaned == []


async def test_one_that_has_ended_and_ones_that_are_unknown(engine: Opening) -> None:
    async with engine() as e:
        handle = await e.app.insert(Long.wait, "x", unique_key="k")
        await handle.cancel()
        again = await handle.cancel()
        assert (again, bool(again)) == (Cancellation(handle.id, Status.CANCELLED, 0, 0), False)
        with pytest.raises(NotFound, match="the holder of key 'k' is unknown or has ended"):
            await e.app.cancel("k")
        with pytest.raises(NotFound, match="instance 12345 is unknown"):
            await e.app.cancel(12345)
        with pytest.raises(InputError, match="a reason"):
            await e.app.cancel(handle, reason="")


async def test_clean_up_is_bounded(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as e:
        long = Long(lambda: asyncio.sleep(3600))
        async with e.worker(long, cancel_timeout=seconds(0.1)):
            handle = await e.app.insert(Long.work, "x")
            await soon(long.began.wait())
            await handle.cancel(reason="enough")
            ending = await e.end(handle)
        assert isinstance(ending, Cancelled)
        assert ending.reason == "enough (and then on_cancel raised StepTimeout: it took longer than 0.1 s)"
        assert "on_cancel of Long.work raised StepTimeout" in caplog.text


async def test_an_error_in_clean_up_is_logged(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("secret")

    async with engine() as e:
        long = Long(fail)
        async with e.worker(long):
            handle = await e.app.insert(Long.work, "x")
            await soon(long.began.wait())
            with caplog.at_level(logging.INFO):
                await handle.cancel(reason="enough")
                ending = await e.end(handle)
        assert ending == Cancelled(handle.id, "enough (and then on_cancel raised ValueError: secret)")
        assert "on_cancel of Long.work raised ValueError" in caplog.text
        assert "secret" not in caplog.text


@pytest.mark.parametrize(("state", "expected"), [("done", Finished), ("stop", Failed), ("next", Cancelled)])
async def test_a_step_that_swallows_its_cancellation(engine: Opening, state: str, expected: type) -> None:
    """What ends the instance stands; what would lead on is not taken."""
    async with engine() as e:
        long = Long()
        async with e.worker(long):
            handle = await e.app.insert(Long.stubborn, state)
            await soon(long.began.wait())
            await handle.cancel()
            assert type(await e.end(handle)) is expected
            assert len(long.cleaned) == (expected is Cancelled)


class InThread(Machine):
    """A `def` step, which nothing can stop."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.cleaned = 0

    @step
    def work(self, state: int, ctx: Context) -> Outcome[int]:
        self.began.set()
        self.may_end.wait(20)
        return Next(self.more, state) if state else Done(1)

    @step
    def more(self, state: int, ctx: Context) -> Outcome[int]:
        raise AssertionError("it was cancelled")

    async def on_cancel(self, state: int, ctx: Context, reason: str) -> None:
        self.cleaned += 1


@pytest.mark.parametrize(("state", "expected"), [(0, Finished), (1, Cancelled)])
async def test_a_step_in_a_thread_is_cancelled_when_it_returns(engine: Opening, state: int, expected: type) -> None:
    """Its row stays its own until then, so that its partition key and its slots are not given to another meanwhile."""
    async with engine() as e:
        machine = InThread()
        async with e.worker(machine):
            handle = await e.app.insert(InThread.work, state, partition_key="k")
            await asyncio.to_thread(machine.began.wait, 10)
            assert (await handle.cancel()).requested == 1
            await asyncio.sleep(0.1)
            assert (await e.rows.row(handle))["status"] == "executing"
            machine.may_end.set()
            assert type(await e.end(handle)) is expected
            assert machine.cleaned == (expected is Cancelled)


async def test_claims_that_have_not_begun(engine: Opening) -> None:
    """A buffered claim is given up without its step having run."""
    async with engine() as e:
        long = Long()
        async with e.worker(long, queues={"default": 1}, prefetch=5):
            first = await e.app.insert(Long.work, "first")
            await soon(long.began.wait())
            second = await e.app.insert(Long.work, "second")
            await e.rows.until(second, status="executing")
            await second.cancel(reason="enough")
            assert await e.end(second) == Cancelled(second.id, "enough")
            assert long.cleaned == []
            await first.cancel()
            await e.end(first)


async def test_a_step_that_cancels_its_own_instance(engine: Opening) -> None:
    async with engine() as e:

        class Own(Machine):
            @step
            async def work(self, state: int, ctx: Context) -> Outcome[int]:
                await e.app.cancel(ctx.id, reason="my own wish")
                return Next(self.work, state + 1)

        async with e.worker(Own()):
            handle = await e.app.insert(Own.work, 0)
            assert await e.end(handle) == Cancelled(handle.id, "my own wish")


async def test_a_chain_under_way(engine: Opening) -> None:
    """Steps that hold their claim: cancelled between two of them or within one, it ends, and soon."""

    class Chain(Machine):
        @step
        async def link(self, n: int, ctx: Context) -> Outcome[int]:
            await asyncio.sleep(0)
            return Next(self.link, n + 1)

    async with engine() as e, e.worker(Chain()):
        for pause in (0.05, 0.06, 0.1, 0.15):
            handle = await e.app.insert(Chain.link, 0)
            await asyncio.sleep(pause)
            await handle.cancel()
            assert isinstance(await e.end(handle), Cancelled)


async def test_a_slot_and_a_key_are_free_again(engine: Opening) -> None:
    @job(limit="one")
    async def next_in_line(n: int) -> int:
        return n

    async with engine() as e:
        long = Long()
        async with e.worker(long, next_in_line, limits={"one": Concurrency(1)}):
            handle = await e.app.insert(Long.work, "x", limit="one", partition_key="k")
            await soon(long.began.wait())
            waiting = [await e.app.insert(next_in_line, n, partition_key="k") for n in range(3)]
            await waiting[1].cancel()
            await handle.cancel()
            assert [type(await e.end(w)) for w in waiting] == [Finished, Cancelled, Finished]


async def test_without_a_notification_the_heartbeat_sees_it(engine: Opening, dsn: str, schema: str) -> None:
    """Cancelled from psql, without a message to the worker."""
    async with engine() as e:
        long = Long()
        async with e.worker(long, lease_ttl=seconds(0.9), heartbeat_interval=seconds(0.3)):
            handle = await e.app.insert(Long.work, "x")
            await soon(long.began.wait())
            assert (
                await e.rows.value("select @.cancel($1::bigint, 'by hand', notify => false)", handle.id) == "requested"
            )
            assert await e.end(handle) == Cancelled(handle.id, "by hand")


async def test_a_worker_that_stops_while_it_cleans_up(engine: Opening) -> None:
    """The row is left to a reaper, who ends it at once."""
    async with engine() as e:
        begun = asyncio.Event()

        async def clean_up() -> None:
            begun.set()
            await asyncio.sleep(3600)

        long = Long(clean_up)
        async with e.worker(long, cancel_timeout=timedelta(hours=1), drain_timeout=seconds(0.05), reap_interval=None):
            handle = await e.app.insert(Long.work, "x")
            await soon(long.began.wait())
            await handle.cancel(reason="enough")
            await soon(begun.wait())
        async with e.worker(long, reap_interval=seconds(0.1)):
            assert await e.end(handle) == Cancelled(handle.id, "enough")


def test_for_code_that_does_not_await(dsn: str, schema: str) -> None:
    with SyncDurable(dsn, schema=schema) as app:
        first, second = app.insert(Long.wait, "x"), app.insert(Long.wait, "x")
        assert first.cancel(reason="enough") == Cancellation(first.id, Status.RUNNABLE, 1, 0)
        assert app.cancel(second, cascade=False).ended == 1
        assert first.wait() == Cancelled(first.id, "enough")


async def test_clean_up_that_cancels_itself(engine: Opening) -> None:
    """After a step that swallowed its cancellation: the instance ends all the same."""

    async def give_up() -> None:
        raise asyncio.CancelledError

    async with engine() as e:
        long = Long(give_up)
        async with e.worker(long):
            handle = await e.app.insert(Long.stubborn, "next")
            await soon(long.began.wait())
            await handle.cancel(reason="enough")
            assert await e.end(handle) == Cancelled(handle.id, "enough (and then on_cancel raised CancelledError)")


class TwoSteps(Machine):
    """The first step waits until the test lets it return."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ran: list[str] = []

    @step
    async def first(self, state: int, ctx: Context) -> Outcome[int]:
        self.ran.append("first")
        self.began.set()
        await self.may_end.wait()
        return Next(self.second, state)

    @step
    async def second(self, state: int, ctx: Context) -> Outcome[int]:
        self.ran.append("second")
        return Done(state)

    async def on_cancel(self, state: int, ctx: Context, reason: str) -> None:
        self.ran.append("on_cancel")


async def test_a_request_that_comes_during_a_commit_ends_the_claim_after_it(engine: Opening) -> None:
    """The commit is not interrupted, the next step does not begin, and there is no step to clean up after."""
    async with engine() as e:
        machine = TwoSteps()
        async with e.worker(machine) as worker:
            handle = await e.app.insert(TwoSteps.first, 1)
            await soon(machine.began.wait())
            async with e.rows.connection.transaction():
                await e.rows.fetch("select from @.instances where id = $1 for update", handle.id)
                machine.may_end.set()
                await e.rows.when(lambda: is_committing(worker))
                worker._runtime.claims.apply_cancel_requests({handle.id: "enough"})  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
            assert await e.end(handle) == Cancelled(handle.id, "enough")
            assert machine.ran == ["first"]
            assert [t.outcome for t in await e.app.history(handle)] == ["Next", "Cancel"]


async def is_committing(worker: Any) -> bool:
    return not worker._runtime.committer.is_idle
