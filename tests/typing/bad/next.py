"""Mistakes with `Next`: the wrong state, a called step, something that is no step of this machine."""

from __future__ import annotations

from datetime import timedelta

from good.checkout import Order, PaidOrder

from gen_durable import Context, Done, Machine, Next, Outcome, job, step


@job
async def greet(name: str) -> int:
    return len(name)


class Other(Machine):
    @step
    async def run(self, order: Order, ctx: Context) -> Outcome[str]:
        return Done("other")


class Shop(Machine):
    other = Other()

    @step
    async def wrong_state(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.ship, order)  # E

    @step
    async def wrong_state_for_a_sync_step(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.ship_in_thread, state=order)  # E

    @step
    async def state_forgotten(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.ship)  # E

    @step
    async def called(self, order: Order, ctx: Context) -> Outcome[int]:
        paid = PaidOrder(order, 1)
        return Next(self.ship(paid, ctx), paid)  # E

    @step
    async def called_sync(self, order: Order, ctx: Context) -> Outcome[int]:
        paid = PaidOrder(order, 1)
        return Next(self.ship_in_thread(paid, ctx), paid)  # E

    @step
    async def unbound(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(Shop.ship, PaidOrder(order, 1))  # E

    @step
    async def by_name(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next("ship", PaidOrder(order, 1))  # E

    @step
    async def other_result(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.other.run, order)  # E

    @step
    async def to_a_job(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(greet, "ada")  # E

    @step
    async def to_a_helper(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.weigh, order)  # E

    @step
    async def unknown_option_error(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.ship, PaidOrder(order, 1), dely=timedelta(hours=1))  # E

    @step
    async def delay_as_number(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.ship, PaidOrder(order, 1), delay="5s")  # E

    @step
    async def unknown_step(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.shipp, PaidOrder(order, 1))  # E

    async def weigh(self, order: Order) -> int:
        return order.id

    @step
    async def ship(self, paid: PaidOrder, ctx: Context) -> Outcome[int]:
        return Done(paid.amount)

    @step
    def ship_in_thread(self, paid: PaidOrder, ctx: Context) -> Outcome[int]:
        return Done(paid.amount)
