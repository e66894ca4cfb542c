"""A harness sets signals aside that do not fit, as a worker does."""

from __future__ import annotations

from gen_durable import Await, Context, Done, Machine, Outcome, Signal, step
from gen_durable.core.services import services_of
from gen_durable.errors import UnreadableSignal
from gen_durable.store.types import OutgoingSignal
from gen_durable.testing import HarnessFactory

paid = Signal("paid", int)


class Order(Machine):
    @step
    async def start(self, _: int, ctx: Context) -> Outcome[int]:
        return Await(paid, then=self.take, state=0)

    @step
    async def take(self, _: int, ctx: Context) -> Outcome[int]:
        return Done(ctx.take(paid) or 0)


async def test_the_harness_follows(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Order()]) as harness:
        handle = await harness.app.insert(Order.start, 0)
        services = services_of(harness.app)
        await services.pool.run(services.statements.signal([OutgoingSignal(handle.id, None, "paid", '"x"', None)]))
        result = await harness.drain()
        assert [one.outcome for one in result.executions] == ["Await", "signal rejected"]
        assert isinstance(result.executions[1].error, UnreadableSignal)
        await handle.signal(paid, 5)
        result = await harness.drain()
        assert [one.outcome for one in result.executions] == ["Done"]
