"""The checkout: a payment that may never come, a state type per step, children, and a result."""

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
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    step,
)


@dataclass(frozen=True)
class Order:
    id: int
    skus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paid:
    amount: int


@dataclass(frozen=True)
class PaidOrder:
    order: Order
    amount: int


@dataclass(frozen=True)
class Parcel:
    sku: str


class Stripe:
    async def refund(self, amount: int) -> None:
        """Give the money back."""


payment = Signal("payment", Paid)
refusal = Signal("refusal")


class Pack(Machine, queue="warehouse"):
    @step
    async def pack(self, parcel: Parcel, ctx: Context) -> Outcome[float]:
        return Done(0.5)


class Checkout(Machine, queue="checkout", version=1):
    def __init__(self, stripe: Stripe) -> None:
        self.stripe = stripe

    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await(payment, then=self.collect, state=order, timeout=timedelta(hours=1))

    @step
    async def collect(self, order: Order, ctx: Context) -> Outcome[int]:
        paid = ctx.take(payment)
        if paid is None:
            return Fail("payment never came")
        return Next(self.pack, PaidOrder(order, paid.amount))

    @step(timeout=timedelta(seconds=10), aliases=["wrap"])
    async def pack(self, paid: PaidOrder, ctx: Context) -> Outcome[int]:
        parcels = [Start(Pack.pack, Parcel(sku)) for sku in paid.order.skus]
        return ScheduleChildren(parcels, then=self.ship, state=paid)

    @step
    def ship(self, paid: PaidOrder, ctx: Context) -> Outcome[int]:
        weights: list[float] = ctx.results(Pack.pack)
        if sum(weights) > 30:
            return Await({payment, refusal}, state=paid)
        if len(weights) < len(paid.order.skus) and ctx.attempt < 3:
            return Retry(paid, delay=timedelta(seconds=1))
        return Done(paid.amount)

    async def on_error(self, state: Order | PaidOrder, ctx: Context, error: Exception) -> Outcome[int]:
        if isinstance(state, PaidOrder):
            await self.stripe.refund(state.amount)
            return Fail(error)
        return Retry(state, delay=timedelta(seconds=1))
