import asyncio
from dataclasses import dataclass
from datetime import timedelta
from gen_durable import (
    Await, Context, Done, Durable, Fail, Finished, Machine, Next, Outcome, RetryPolicy, ScheduleChildren, Signal, Start,
    Worker, step,
)
from gen_durable.errors import NoTarget

@dataclass(frozen=True)
class Order:
    id: int
    skus: tuple[str, ...]

@dataclass(frozen=True)
class Paid:
    amount: int

@dataclass(frozen=True)
class PaidOrder:
    order: Order
    amount: int

payment = Signal("payment", Paid)  # a name with a payload type

class Pack(Machine):
    @step
    async def pack(self, sku: str, ctx: Context) -> Outcome[str]:
        return Done(f"box with {sku}")

class Checkout(Machine, queue="checkout", retry=RetryPolicy(attempts=6)):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        # Waits in the database, not in a process: for an hour here, for months if you like.
        return Await(payment, then=self.collect, state=order, timeout=timedelta(hours=1))

    @step
    async def collect(self, order: Order, ctx: Context) -> Outcome[int]:
        paid = ctx.take(payment)
        if paid is None:
            return Fail("payment never came")  # the timeout woke us
        return Next(self.pack, PaidOrder(order, paid.amount))

    @step
    async def pack(self, paid: PaidOrder, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(Pack.pack, sku) for sku in paid.order.skus], then=self.ship, state=paid)

    @step
    async def ship(self, paid: PaidOrder, ctx: Context) -> Outcome[int]:
        print("shipping", ctx.results(Pack.pack))
        return Done(paid.amount)

async def main() -> None:
    async with Durable() as app, Worker(app, machines=[Checkout(), Pack()], queues={"default": 10, "checkout": 5}):
        order = Order(42, ("tea", "cup"))
        # However often this program runs, order 42 is started once: its key stays taken after its end.
        handle = await app.insert(
            Checkout.start, order, unique_key="order:42", unique="forever", on_conflict="existing"
        )
        try:
            await app.signal("order:42", payment, Paid(100), dedup_key="stripe-evt-7")
        except NoTarget:
            print("order 42 has ended before")
        match await handle.wait(timedelta(seconds=10)):
            case Finished(result=amount):
                print("paid", amount)
            case other:
                print(other)

asyncio.run(main())
