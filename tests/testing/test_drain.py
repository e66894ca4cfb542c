"""drain() runs all that is due, through the real SQL, in one order, and tells what it did."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    Await,
    Concurrency,
    Context,
    Done,
    Fail,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    Status,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.errors import ConfigError, InputError, OutcomeRejected
from gen_durable.testing import Harness, HarnessFactory, Runaway

go = Signal("go")


@dataclass(frozen=True)
class Order:
    id: int
    skus: tuple[str, ...] = ()


class Checkout(Machine):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[list[str]]:
        return Await(go, then=self.fan, state=order, timeout=timedelta(hours=1))

    @step
    async def fan(self, order: Order, ctx: Context) -> Outcome[list[str]]:
        return ScheduleChildren([Start(pack, sku) for sku in order.skus], then=self.join, state=order)

    @step
    async def join(self, order: Order, ctx: Context) -> Outcome[list[str]]:
        return Done(ctx.results(pack))


@job(queue="packing")
def pack(sku: str) -> str:
    return f"packed {sku}"


class Spin(Machine):
    @step
    async def spin(self, n: int, ctx: Context) -> Outcome[None]:
        return Next(self.spin, n + 1)


class Chatty(Machine):
    """Remembers the order in which its steps run."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

    @step
    async def first(self, name: str, ctx: Context) -> Outcome[None]:
        self.ran.append((name, "first"))
        return Next(self.second, name)

    @step
    async def second(self, name: str, ctx: Context) -> Outcome[None]:
        self.ran.append((name, "second"))
        return Done(None)


async def test_runs_through_signals_and_children_and_tells_what_ran(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Checkout()], jobs=[pack]) as harness:
        handle = await harness.app.insert(Checkout.start, Order(42, ("a", "b")))
        first = await harness.drain()
        assert first.steps == {"Checkout.start": 1}
        assert (first.executed, first.done, first.awaiting) == (1, 0, 1)
        assert [w.id for w in first.waiting] == [handle.id]
        assert first.waiting[0].awaits == ("go",)

        await handle.signal(go)
        second = await harness.drain()
        assert second.steps == {"Checkout.fan": 1, "pack.run": 2, "Checkout.join": 1}
        assert second.outcomes == {"ScheduleChildren": 1, "Done": 3}
        assert (second.done, second.failed, second.retried, second.waiting) == (3, 0, 0, ())
        assert await harness.assert_done(handle) == ["packed a", "packed b"]


async def test_the_text_of_a_tally_says_what_ran_and_what_each_instance_waits_for(
    durable_harness: HarnessFactory,
) -> None:
    @job
    def stranger(n: int) -> None: ...

    async with durable_harness(machines=[Checkout()], jobs=[pack]) as harness:
        await harness.app.insert(Checkout.start, Order(42))
        await harness.app.insert(pack, "c", delay=timedelta(hours=2))
        await harness.app.insert(stranger, 1)
        text = str(await harness.drain())
    assert "1 steps ran: Checkout.start 1" in text
    assert "0 done, 0 failed, 0 retried, 3 still waiting" in text
    assert "instance 1 (Checkout.fan) waits for signal 'go', for another 1:00:00" in text
    assert "instance 2 (pack.run) is due in 2:00:00" in text
    assert "instance 3 (stranger.run) is due now; the harness has no stranger version 1" in text


async def test_many_waiting_instances_are_cut_short_in_the_text(durable_harness: HarnessFactory) -> None:
    async with durable_harness(jobs=[pack]) as harness:
        await harness.app.insert_many([Start(pack, "x", delay=timedelta(hours=1)) for _ in range(14)])
        tally = await harness.drain()
    assert len(tally.waiting) == 14
    assert str(tally).endswith("and 4 more")


async def test_the_order_is_by_queue_then_priority_then_age(durable_harness: HarnessFactory) -> None:
    chatty = Chatty()
    async with durable_harness(machines=[chatty]) as harness:
        for name, queue, priority in (("b2", "b", 0), ("a-late", "a", 5), ("a1", "a", 0), ("a2", "a", 0)):
            await harness.app.insert(Chatty.first, name, queue=queue, priority=priority)
        tally = await harness.drain()
    # Queues take turns; in queue a the urgent ones go first, each second step behind the firsts that are older.
    assert chatty.ran == [
        ("a1", "first"), ("b2", "first"), ("a2", "first"), ("b2", "second"),
        ("a1", "second"), ("a2", "second"), ("a-late", "first"), ("a-late", "second"),
    ]  # fmt: skip
    assert [(e.label, e.outcome) for e in tally.executions][:2] == [("Chatty.first", "Next")] * 2


async def test_every_state_is_read_back_from_the_database(durable_harness: HarnessFactory) -> None:
    """A dict with int keys becomes one with str keys, and no object of a step is seen by the next one."""
    seen: list[dict[Any, Any]] = []

    class Keys(Machine):
        @step
        async def one(self, state: dict[Any, Any], ctx: Context) -> Outcome[None]:
            seen.append(state)
            return Next(self.two, state)

        @step
        async def two(self, state: dict[Any, Any], ctx: Context) -> Outcome[None]:
            seen.append(state)
            return Done(None)

    async with durable_harness(machines=[Keys()]) as harness:
        await harness.app.insert(Keys.one, {1: "x"})
        await harness.drain()
    assert seen == [{"1": "x"}, {"1": "x"}]
    assert seen[0] is not seen[1]


async def test_an_endless_loop_is_stopped_with_an_error_that_names_it(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Spin()]) as harness:
        handle = await harness.app.insert(Spin.spin, 0)
        with pytest.raises(Runaway, match=r"drain ran 7 steps .* instance 1 at Spin\.spin, attempt 0") as caught:
            await harness.drain(limit=7)
        assert caught.value.tally.steps == {"Spin.spin": 7}
        # Exactly so many ran, and the row was given back as it was.
        found = await handle.get()
        assert (found.status, found.state, found.seq, found.attempt) == (Status.RUNNABLE, 7, 7, 0)


async def test_a_drain_of_exactly_the_limit_is_no_runaway(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Chatty()]) as harness:
        await harness.app.insert(Chatty.first, "x")
        assert (await harness.drain(limit=2)).executed == 2
        with pytest.raises(InputError, match="limit must be 1 or more"):
            await harness.drain(limit=0)


async def test_errors_of_steps_are_in_the_tally_and_can_be_raised(durable_harness: HarnessFactory) -> None:
    class Grumpy(Machine):
        @step
        async def grumble(self, n: int, ctx: Context) -> Outcome[int]:
            if ctx.attempt == 0:
                raise ValueError("not at first")
            return Done(n)

        async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
            return Retry(state)

    async with durable_harness(machines=[Grumpy()]) as harness:
        handle = await harness.app.insert(Grumpy.grumble, 5)
        tally = await harness.drain()
        assert (tally.retried, tally.done) == (1, 1)
        assert [e.attempt for e in tally.executions] == [0, 1]
        assert [str(e) for e in tally.errors] == ["not at first"]
        assert "instance 1 Grumpy.grumble (attempt 0): Retry after ValueError('not at first')" in map(
            str, tally.executions
        )
        with pytest.raises(ValueError, match="not at first"):
            tally.reraise()
        await harness.assert_done(handle, 5)
        (await harness.drain()).reraise()  # nothing ran, nothing raises


async def test_async_steps_run_on_this_loop_and_plain_ones_in_a_thread(durable_harness: HarnessFactory) -> None:
    threads: list[threading.Thread] = []

    class Both(Machine):
        @step
        async def on_loop(self, n: int, ctx: Context) -> Outcome[None]:
            threads.append(threading.current_thread())
            return Next(self.in_thread, n)

        @step
        def in_thread(self, n: int, ctx: Context) -> Outcome[None]:
            threads.append(threading.current_thread())
            return Done(None)

    async with durable_harness(machines=[Both()]) as harness:
        await harness.app.insert(Both.on_loop, 1)
        assert (await harness.drain()).done == 1
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threading.current_thread()


async def test_a_cancelled_drain_gives_its_row_back(durable_harness: HarnessFactory) -> None:
    """The cancellation is the test's, not the step's: `on_error` is not asked, nothing is counted."""
    stuck = asyncio.Event()
    asked: list[Exception] = []

    class Stuck(Machine):
        @step
        async def wait(self, n: int, ctx: Context) -> Outcome[None]:
            stuck.set()
            await asyncio.Event().wait()
            return Done(None)

        async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[None]:
            asked.append(error)
            return Fail(error)

    async with durable_harness(machines=[Stuck()]) as harness:
        handle = await harness.app.insert(Stuck.wait, 1)
        draining = asyncio.create_task(harness.drain())
        await stuck.wait()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        found = await handle.get()
        assert (found.status, found.attempt, found.crashes, found.last_error) == (Status.RUNNABLE, 0, 0, None)
    assert asked == []


async def test_a_state_that_does_not_fit_is_put_back_as_a_worker_does(durable_harness: HarnessFactory) -> None:
    class Old(Machine, name="Same"):
        @step
        async def go(self, state: dict[str, str], ctx: Context) -> Outcome[None]:
            return Done(None)

    class New(Machine, name="Same"):
        @step
        async def go(self, state: Order, ctx: Context) -> Outcome[None]:
            return Done(None)

    async with durable_harness(machines=[New()]) as harness:
        handle = await harness.app.insert(Old.go, {"id": "x"})
        tally = await harness.drain()
        assert tally.outcomes == {"undecodable": 1}
        found = await handle.get()
        assert found.status is Status.RUNNABLE
        assert found.last_error is not None
        assert "does not fit Order" in found.last_error
        assert (await harness.drain()).executed == 0, "it rests before it is tried again"


async def test_an_outcome_that_the_database_refuses_is_the_steps_error(
    durable_harness: HarnessFactory, gen_durable_schema: str
) -> None:
    class Refused(Machine):
        @step
        async def go(self, n: int, ctx: Context) -> Outcome[None]:
            return Next(self.on, "forbidden")

        @step
        async def on(self, state: str, ctx: Context) -> Outcome[None]:
            return Done(None)

        async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[None]:
            return Fail(f"told of {type(error).__name__}") if state == 1 else Next(self.on, "forbidden")

    async with durable_harness(machines=[Refused()]) as harness:
        await _sql(harness, f"""alter table "{gen_durable_schema}".instances add check (state <> '"forbidden"')""")
        answered = await harness.app.insert(Refused.go, 1)
        given_up = await harness.app.insert(Refused.go, 2)
        tally = await harness.drain()
        assert tally.outcomes == {"Fail": 2}
        await harness.assert_failed(answered, "^told of OutcomeRejected$")
        await harness.assert_failed(given_up, "OutcomeRejected: the database refused")


async def test_run_one_runs_one_step_and_no_more(durable_harness: HarnessFactory) -> None:
    chatty = Chatty()
    async with durable_harness(machines=[chatty]) as harness:
        a = await harness.app.insert(Chatty.first, "a")
        b = await harness.app.insert(Chatty.first, "b")
        ran = await harness.run_one()
        assert (ran.id, ran.label, ran.outcome) == (a.id, "Chatty.first", "Next")
        await harness.assert_at(a, Chatty.second)
        await harness.assert_at(b, Chatty.first)


async def test_run_one_takes_the_instance_it_is_told(durable_harness: HarnessFactory) -> None:
    chatty = Chatty()
    async with durable_harness(machines=[chatty]) as harness:
        several = await harness.app.insert_many([Start(Chatty.first, str(n)) for n in range(4)])
        ran = await harness.run_one(several[2])
        assert (ran.id, chatty.ran) == (several[2].id, [("2", "first")])
        for other in (several[0], several[1], several[3]):
            found = await other.get()
            assert (found.status, found.claims) == (Status.RUNNABLE, 0), "the others were not touched"


async def test_run_one_says_why_nothing_can_run(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Checkout()]) as harness:
        handle = await harness.app.insert(Checkout.start, Order(1))
        await harness.run_one()
        with pytest.raises(AssertionError, match=r"no step can run now\n  instance 1 \(Checkout\.fan\) waits for"):
            await harness.run_one()
        with pytest.raises(AssertionError, match="instance 1 should be able to run now, but it waits for signal 'go'"):
            await harness.run_one(handle)


async def test_a_harness_must_be_open(durable_harness: HarnessFactory) -> None:
    harness = durable_harness()
    with pytest.raises(ConfigError, match="not open"):
        await harness.drain()
    async with harness:
        with pytest.raises(ConfigError, match="open already"):
            await harness.__aenter__()


async def _sql(harness: Harness, sql: str) -> None:
    from gen_durable.pg.persistent_connection import PersistentConnection

    link = PersistentConnection(services_of(harness.app).connection_target)
    await link.run_script(sql)
    await link.close()


async def test_an_outcome_that_names_an_undeclared_limit_is_put_back(durable_harness: HarnessFactory) -> None:
    """The drain ends, and says which limit is missing; after `set_limit` and the rest the step runs again."""

    class Early(Machine):
        @step
        async def go(self, n: int, ctx: Context) -> Outcome[int]:
            return Next(self.charge, n)

        @step(limit="stripe")
        async def charge(self, n: int, ctx: Context) -> Outcome[int]:
            return Done(n)

        async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
            return Fail(error)

    async with durable_harness(machines=[Early()]) as harness:
        handle = await harness.app.insert(Early.go, 1)
        tally = await harness.drain()
        assert tally.outcomes == {"put back": 1}
        words = "Unknown limit 'stripe'. Declare it with Worker(limits=...) or `gen-durable limits set stripe`."
        assert f"last error {words}" in str(tally)
        with pytest.raises(OutcomeRejected, match=r"^Unknown limit 'stripe'\."):
            tally.reraise()
        await harness.app.set_limit("stripe", Concurrency(1))
        await harness.advance(timedelta(seconds=2))
        assert (await harness.drain()).outcomes == {"Next": 1, "Done": 1}
        await harness.assert_done(handle, result=1)
