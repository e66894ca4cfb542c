"""Mistakes with `Done`, `Fail` and `Retry`, and with what a step returns."""

# ruff: noqa: RET503  # a forgotten return is one of the mistakes
from __future__ import annotations

from good.checkout import Order

from gen_durable import Context, Done, Fail, Machine, Outcome, Retry, step


class Shop(Machine):
    @step
    async def wrong_result(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done("forty-two")  # E

    @step
    async def result_forgotten(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done()  # E

    @step
    async def result_where_none_is(self, order: Order, ctx: Context) -> Outcome[None]:
        return Done(42)  # E

    @step
    async def bare_result(self, order: Order, ctx: Context) -> Outcome[int]:
        return 42  # E

    @step
    async def reason_as_number(self, order: Order, ctx: Context) -> Outcome[int]:
        return Fail(404)  # E

    @step
    async def reason_forgotten(self, order: Order, ctx: Context) -> Outcome[int]:
        return Fail()  # E

    @step
    async def delay_as_text(self, order: Order, ctx: Context) -> Outcome[int]:
        return Retry(order, delay="5s")  # E

    @step
    async def retry_without_state(self, order: Order, ctx: Context) -> Outcome[int]:
        return Retry()  # E

    @step
    async def nothing(self, order: Order, ctx: Context) -> Outcome[int]:
        return None  # E

    @step
    async def nothing_at_the_end(self, order: Order, ctx: Context) -> Outcome[int]:  # E
        if order.id:
            return Done(1)

    @step
    async def the_step_itself(self, order: Order, ctx: Context) -> Outcome[int]:
        return self.nothing  # E

    @step
    async def await_forgotten(self, order: Order, ctx: Context) -> Outcome[int]:
        return self.nothing(order, ctx)  # E
