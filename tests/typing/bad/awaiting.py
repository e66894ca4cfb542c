"""Mistakes with `Await` and with what the awaited signals carry."""

from __future__ import annotations

from good.checkout import Order, Paid, PaidOrder, payment

from gen_durable import Await, Context, Done, Machine, Outcome, Signal, step

nameless = Signal(Paid)  # E
go = Signal("go")


class Shop(Machine):
    @step
    async def by_name(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await("payment", then=self.collect, state=order)  # E

    @step
    async def one_by_name(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await([payment, "refusal"], then=self.collect, state=order)  # E

    @step
    async def payload_type(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await(Paid, then=self.collect, state=order)  # E

    @step
    async def wrong_state(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await(payment, then=self.collect, state=PaidOrder(order, 1))  # E

    @step
    async def called(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await(payment, then=self.collect(order, ctx), state=order)  # E

    @step
    async def state_forgotten(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await(payment, then=self.collect)  # E

    @step
    async def timeout_as_text(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await(payment, then=self.collect, state=order, timeout="60s")  # E

    @step
    async def then_by_position(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await(payment, self.collect, state=order)  # E

    @step
    async def collect(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(order.id)


def deadline_forgotten(ctx: Context) -> int:
    return ctx.take(payment).amount  # E


def none_forgotten(ctx: Context) -> Paid:
    return ctx.take(payment)  # E


def wrong_payload(ctx: Context) -> Order | None:
    return ctx.take(payment)  # E


def first_by_name(ctx: Context) -> object:
    return ctx.take("payment")  # E


def one_of_many(ctx: Context) -> list[Order]:
    return ctx.take_all(payment)  # E


def payload_of_a_bare_signal(ctx: Context) -> int:
    return ctx.take(go).amount  # E
