"""Mistakes with children: what is started, with what, and what comes back."""

from __future__ import annotations

from good.checkout import Order, Pack, PaidOrder, Parcel

from gen_durable import Context, Done, Machine, Outcome, ScheduleChildren, Start, job, step


@job
async def measure(parcel: Parcel) -> int:
    return len(parcel.sku)


@job(queue="fast")
def weigh(parcel: Parcel, ctx: Context) -> int:
    return len(parcel.sku)


class Shop(Machine):
    @step
    async def step_without_start(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Pack.pack], then=self.join, state=order)  # E

    @step
    async def start_without_list(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren(Start(Pack.pack, Parcel("a")), then=self.join, state=order)  # E

    @step
    async def start_with_the_wrong_state(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(Pack.pack, order)], then=self.join, state=order)  # E

    @step
    async def job_with_the_wrong_argument(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(measure, order)], then=self.join, state=order)  # E

    @step
    async def sync_job_with_the_wrong_argument(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(weigh, "a")], then=self.join, state=order)  # E

    @step
    async def job_called(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(measure(Parcel("a")), Parcel("a"))], then=self.join, state=order)  # E

    @step
    async def bound_step(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(self.join, order)], then=self.join, state=order)  # E

    @step
    async def then_forgotten(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(measure, Parcel("a"))], state=order)  # E

    @step
    async def wrong_state_for_then(self, order: Order, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(measure, Parcel("a"))], then=self.join, state=PaidOrder(order, 1))  # E

    @step
    async def unknown_status(self, order: Order, ctx: Context) -> Outcome[int]:
        one = Start(measure, Parcel("a"), unique_key="a", unique_scope=["runnable", "runing"])  # E
        return ScheduleChildren([one], then=self.join, state=order)

    @step
    async def join(self, order: Order, ctx: Context) -> Outcome[int]:
        sizes: list[str] = ctx.results(measure)  # E
        weights: list[int] = ctx.results(Pack.pack)  # E
        names: list[float] = ctx.results("Pack.pack")  # E
        return Done(len(sizes) + len(weights) + len(names))
