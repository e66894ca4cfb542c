"""Claims about instances: what holds passes, and what does not says what the instance is really doing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from gen_durable import Await, Context, Done, Fail, Machine, Next, Outcome, Signal, job, step
from gen_durable.errors import InputError
from gen_durable.testing import HarnessFactory

payment = Signal("payment", int)
refund = Signal("refund", int)
other = Signal("other")


@dataclass(frozen=True)
class Order:
    id: int
    tags: tuple[str, ...] = ()


class Shop(Machine):
    @step(aliases=["begin"])
    async def start(self, order: Order, ctx: Context) -> Outcome[Order]:
        return Await({payment, refund}, then=self.collect, state=order, timeout=timedelta(hours=1))

    @step
    async def collect(self, order: Order, ctx: Context) -> Outcome[Order]:
        if ctx.take(payment) == 13:
            raise ValueError("unlucky")
        return Next(self.ship, order, delay=timedelta(days=1))

    @step
    async def ship(self, order: Order, ctx: Context) -> Outcome[Order]:
        return Fail("lost at sea") if order.id == 0 else Done(order)


@job
def mail(order: Order) -> str:
    return f"mailed {order.id}"


async def test_done_gives_the_typed_result(durable_harness: HarnessFactory) -> None:
    async with durable_harness(jobs=[mail], machines=[Shop()]) as harness:
        handle = await harness.app.insert(mail, Order(3))
        shipped = await harness.app.insert(Shop.ship, Order(4, ("x",)))
        await harness.drain()
        assert await harness.assert_done(handle, "mailed 3") == "mailed 3"
        assert await harness.assert_done(shipped, Order(4, ("x",))) == Order(4, ("x",))
        assert await harness.assert_done(shipped.id) == {"id": 4, "tags": ["x"]}


async def test_done_with_another_result_shows_both(durable_harness: HarnessFactory) -> None:
    async with durable_harness(jobs=[mail]) as harness:
        handle = await harness.app.insert(mail, Order(3))
        await harness.drain()
        with pytest.raises(AssertionError, match="should be done with 'mailed 4', but it is done with \"mailed 3\""):
            await harness.assert_done(handle, "mailed 4")


async def test_not_done_tells_everything_about_the_instance(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()]) as harness:
        handle = await harness.app.insert(Shop.start, Order(3), unique_key="order:3", partition_key="customer:1")
        with pytest.raises(AssertionError, match=r"but it is due now \(drain\(\) runs it"):
            await harness.assert_done(handle)
        await harness.drain()
        await handle.signal(other)
        with pytest.raises(AssertionError) as caught:
            await harness.assert_done(handle)
        assert str(caught.value).splitlines() == [
            "instance 1 should be done, but it waits for signal 'payment' or 'refund', for another 1:00:00 "
            "(signal it, or let fire_timeouts() end its wait)",
            "  step Shop.collect, version 1, attempt 0, queue 'default'",
            '  state {"id": 3, "tags": []}',
            "  unique key 'order:3'",
            "  partition key 'customer:1'",
            "  inbox other",
        ]


async def test_the_cause_of_a_wrong_claim_is_what_the_step_raised(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()]) as harness:
        handle = await harness.app.insert(Shop.start, Order(3))
        await harness.drain()
        await handle.signal(payment, 13)
        await harness.drain()
        with pytest.raises(AssertionError, match="should be done, but it has failed: ValueError: unlucky") as caught:
            await harness.assert_done(handle)
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.__cause__.__traceback__ is not None


async def test_failed_matches_the_reason(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()]) as harness:
        lost = await harness.app.insert(Shop.ship, Order(0))
        fine = await harness.app.insert(Shop.ship, Order(1))
        await harness.drain()
        assert await harness.assert_failed(lost, "at s[e]a") == "lost at sea"
        with pytest.raises(AssertionError, match="a reason that matches 'stolen', but it has failed: lost at sea"):
            await harness.assert_failed(lost, "stolen")
        with pytest.raises(AssertionError, match=r"should have failed, but it is done with \{"):
            await harness.assert_failed(fine)


async def test_awaiting_names_the_signals(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()]) as harness:
        handle = await harness.app.insert(Shop.start, Order(1))
        with pytest.raises(AssertionError, match="should wait for signal of some name, but it is due now"):
            await harness.assert_awaiting(handle)
        await harness.drain()
        await harness.assert_awaiting(handle)
        await harness.assert_awaiting(handle, payment)
        await harness.assert_awaiting(handle, payment, refund)
        with pytest.raises(AssertionError, match="should wait for signal 'other', but it waits for signal 'payment'"):
            await harness.assert_awaiting(handle, other)


async def test_at_is_the_step_that_runs_next(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()], jobs=[mail]) as harness:
        handle = await harness.app.insert(Shop.start, Order(1))
        await harness.assert_at(handle, Shop.start)
        await harness.drain()
        await harness.assert_at(handle, Shop.collect)
        with pytest.raises(AssertionError, match=r"should be at step Shop\.ship, (.|\n)*step Shop\.collect"):
            await harness.assert_at(handle, Shop.ship)
        with pytest.raises(AssertionError, match=r"should be at step mail\.run"):
            await harness.assert_at(handle, mail)
        done = await harness.app.insert(Shop.ship, Order(1))
        await harness.drain()
        with pytest.raises(AssertionError, match=r"should be at step Shop\.ship, but it is done"):
            await harness.assert_at(done, Shop.ship)


async def test_a_key_finds_its_instance_also_after_its_end(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()]) as harness:
        await harness.app.insert(Shop.ship, Order(5), unique_key="order:5")
        await harness.drain()
        last = await harness.app.insert(Shop.ship, Order(5), unique_key="order:5")
        await harness.drain()
        assert (await harness.snapshot("order:5")).id == last.id
        await harness.assert_done("order:5", Order(5))


async def test_an_unknown_instance_is_told_with_all_that_there_are(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()]) as harness:
        await harness.app.insert(Shop.start, Order(1))
        with pytest.raises(AssertionError, match=r"no instance 'order:9'; all instances:\n  instance 1 \(Shop"):
            await harness.assert_done("order:9")
        with pytest.raises(InputError, match="Name an instance by its handle, id or unique key; got float"):
            await harness.assert_done(1.5)  # type: ignore[call-overload]


async def test_inserted_counts_by_step_state_and_key(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()], jobs=[mail]) as harness:
        await harness.assert_inserted(Shop.start, count=0)
        a = await harness.app.insert(Shop.start, Order(1), unique_key="order:1")
        b = await harness.app.insert(Shop.start, Order(2, ("gift",)))
        await harness.app.insert(mail, Order(1))
        assert [h.id for h in await harness.assert_inserted(Shop.start)] == [a.id, b.id]
        assert await harness.assert_inserted(Shop.start, Order(2, ("gift",)), count=1) == [b]
        assert await harness.assert_inserted(Shop.start, unique_key="order:1") == [a]
        (mailed,) = await harness.assert_inserted(mail, count=1)
        await harness.drain()
        assert await harness.assert_done(mailed) == "mailed 1"


async def test_another_version_is_another_machine(durable_harness: HarnessFactory) -> None:
    @job(name="mail", version=2)
    def new_mail(order: Order) -> None: ...

    async with durable_harness() as harness:
        old = await harness.app.insert(mail, Order(1))
        new = await harness.app.insert(new_mail, Order(1))
        assert [h.id for h in await harness.assert_inserted(mail, count=1)] == [old.id]
        assert [h.id for h in await harness.assert_inserted(new_mail, count=1)] == [new.id]


async def test_not_inserted_shows_what_there_is(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Shop()]) as harness:
        await harness.app.insert(Shop.start, Order(1))
        with pytest.raises(AssertionError) as caught:
            await harness.assert_inserted(Shop.start, Order(2))
        assert str(caught.value).splitlines() == [
            "there should be at least 1 instance at Shop.start with state {'id': 2, 'tags': []}, but there are 0; "
            "all instances:",
            "  instance 1 (Shop.start) is due now",
            '  instance 1 has state {"id": 1, "tags": []}',
        ]
        with pytest.raises(AssertionError, match=r"2 instances at Shop\.start with unique key 'k', but there are 0"):
            await harness.assert_inserted(Shop.start, count=2, unique_key="k")
        with pytest.raises(AssertionError, match=r"should be 0 instances .* but there are 1"):
            await harness.assert_inserted(Shop.start, count=0)
