"""The shop of the demo: everything that a user of the library writes.

An order waits for its payment without occupying a worker. Once paid, it is charged, its items are packed in parallel,
and it is shipped. If it is not paid in time, it fails. A separate job does a stocktake and needs three attempts.

`record_side_effect_and_sleep` stands for calls to other systems: it takes some time and appends a line to a file. The
file knows nothing of transactions, so an effect that happened twice is in it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Machine,
    Next,
    Outcome,
    RetryPolicy,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)
from gen_durable.cli.demo.event_log import record_side_effect_and_sleep


@dataclass(frozen=True)
class Order:
    number: int
    items: tuple[str, ...]
    pay_within: timedelta


@dataclass(frozen=True)
class PaidOrder:
    order: Order
    amount: int


@dataclass(frozen=True)
class Item:
    order: int
    name: str


@dataclass(frozen=True)
class Receipt:
    order: int
    amount: int
    parcel: tuple[str, ...]


@dataclass(frozen=True)
class Paid:
    amount: int


payment = Signal("payment", Paid)


class Pack(Machine, queue="packing"):
    """Packs one item. An order starts one of these for each of its items."""

    @step
    async def pack(self, item: Item, ctx: Context) -> Outcome[str]:
        await record_side_effect_and_sleep(ctx, f"order {item.order}", seconds=0.25)
        return Done(f"wrapped {item.name}")


class Checkout(Machine, queue="checkout"):
    """One order. Each step gets the state that the step before it has committed."""

    @step
    async def place(self, order: Order, ctx: Context) -> Outcome[Receipt]:
        """From here on the order is only a row, until the payment arrives or the timeout passes."""
        await record_side_effect_and_sleep(ctx, f"order {order.number}", seconds=0.05)
        return Await(payment, then=self.collect_payment, state=order, timeout=order.pay_within)

    @step
    async def collect_payment(self, order: Order, ctx: Context) -> Outcome[Receipt]:
        await record_side_effect_and_sleep(ctx, f"order {order.number}", seconds=0.05)
        paid = ctx.take(payment)
        if paid is None:
            return Fail("payment never came")
        return Next(self.charge, PaidOrder(order, paid.amount))

    @step
    async def charge(self, paid: PaidOrder, ctx: Context) -> Outcome[Receipt]:
        """A worker that dies in here may have charged without a commit, so another worker charges again.

        Pass a real bank an idempotency key that is the same both times, such as the order's number.
        """
        await record_side_effect_and_sleep(ctx, f"order {paid.order.number}", seconds=0.8)
        return Next(self.pack, paid)

    @step
    async def pack(self, paid: PaidOrder, ctx: Context) -> Outcome[Receipt]:
        """Start the children and wait until all have ended, on whichever workers they run."""
        await record_side_effect_and_sleep(ctx, f"order {paid.order.number}", seconds=0.05)
        items = [Start(Pack.pack, Item(paid.order.number, name)) for name in paid.order.items]
        return ScheduleChildren(items, then=self.ship, state=paid)

    @step
    async def ship(self, paid: PaidOrder, ctx: Context) -> Outcome[Receipt]:
        await record_side_effect_and_sleep(ctx, f"order {paid.order.number}", seconds=0.1)
        return Done(Receipt(paid.order.number, paid.amount, parcel=tuple(ctx.results(Pack.pack))))


@job(retry=RetryPolicy(attempts=5, backoff=lambda errors: 0.5))
async def stocktake(shelf: str, ctx: Context) -> str:
    """A job that raises is retried; this one succeeds at its third attempt."""
    await record_side_effect_and_sleep(ctx, f"the {shelf}", seconds=0.1)
    if ctx.attempt < 2:
        raise ConnectionError("the scales do not answer")
    return f"counted the {shelf}"
