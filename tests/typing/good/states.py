"""States of every kind: pydantic model, msgspec Struct, TypedDict, dict, builtin, None, and a union."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypedDict

import msgspec
from pydantic import BaseModel, Field

from gen_durable import Context, Done, Machine, Next, Outcome, Retry, Signal, step


class Customer(BaseModel):
    name: str
    score: float = Field(default=0.0, alias="creditScore")


class Cart(msgspec.Struct, frozen=True):
    customer: str
    items: list[str] = []


class Invoice(TypedDict):
    total: int
    lines: list[str]


approved = Signal("approved", Customer)
invoiced = Signal("invoiced", Invoice)
counted = Signal("counted", dict[str, int])


class Shop(Machine, name="shop.v2"):
    @step
    async def enter(self, nothing: None, ctx: Context) -> Outcome[Invoice]:
        return Next(self.greet, Customer(name="ada"), delay=timedelta(seconds=1))

    @step
    async def greet(self, customer: Customer, ctx: Context) -> Outcome[Invoice]:
        return Next(self.fill, Cart(customer.name), priority=5, queue="fast", partition_key=customer.name)

    @step
    def fill(self, cart: Cart, ctx: Context) -> Outcome[Invoice]:
        return Next(self.bill, Invoice(total=len(cart.items), lines=cart.items), partition_key=None)

    @step
    async def bill(self, invoice: Invoice, ctx: Context) -> Outcome[Invoice]:
        return Next(self.count, dict.fromkeys(invoice["lines"], 1), run_ahead=False)

    @step
    async def count(self, counts: dict[str, int], ctx: Context) -> Outcome[Invoice]:
        return Next(self.choose, "small" if len(counts) < 3 else "large")

    @step
    async def choose(self, size: Literal["small", "large"] | None, ctx: Context) -> Outcome[Invoice]:
        if size is None:
            return Retry("large")
        return Done({"total": 0, "lines": [size]})


def received(ctx: Context) -> tuple[Customer | None, Invoice | None, list[dict[str, int]]]:
    return ctx.take(approved), ctx.take(invoiced), ctx.take_all(counted)
