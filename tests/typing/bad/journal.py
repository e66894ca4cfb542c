"""Mistakes with activities, and with what a machine keeps of its history."""

from __future__ import annotations

from good.journal import Receipt, charge, refund

from gen_durable import Context, Done, Machine, Outcome, RetryPolicy, job, step


class Pay(Machine):
    @step
    async def too_few(self, order: int, ctx: Context) -> Outcome[str]:
        await ctx.run("charge", charge, order)  # E
        return Done("")

    @step
    async def wrong_argument(self, order: int, ctx: Context) -> Outcome[str]:
        return Done(await ctx.run("refund", refund, order))  # E

    @step
    async def wrong_answer(self, order: int, ctx: Context) -> Outcome[str]:
        text: str = await ctx.run("charge", charge, order, 5)  # E
        return Done(text)

    @step
    async def not_awaited(self, order: int, ctx: Context) -> Outcome[str]:
        receipt: Receipt = ctx.run("charge", charge, order, 5)  # E
        return Done(str(receipt))

    @step
    async def no_name(self, order: int, ctx: Context) -> Outcome[str]:
        await ctx.run(charge, order, 5)  # E
        return Done("")

    @step
    async def called(self, order: int, ctx: Context) -> Outcome[str]:
        await ctx.run("charge", charge(order, 5))  # E
        return Done("")

    @step
    async def retries_as_text(self, order: int, ctx: Context) -> Outcome[str]:
        await ctx.run("charge", charge, order, 5, retry=3)  # E
        await ctx.run("charge", charge, order, 5, retry=RetryPolicy(attempts="3"))  # E
        await ctx.run("charge", charge, order, amount="5")  # E
        await ctx.run("charge", charge, order, amunt=5)  # E
        await ctx.run("charge", charge, order, 5, retries=3)  # E
        text: str = await ctx.run("charge", charge, order, 5, retry=RetryPolicy(attempts=3))  # E
        print(text)
        return Done("")

    @step
    async def perhaps_none(self, order: int, ctx: Context) -> Outcome[str]:
        last: Receipt = ctx.checkpoint_as(Receipt)  # E
        ctx.progress("half")  # E
        return Done(str(last))

    @step
    def wrong_argument_in_a_thread(self, order: int, ctx: Context) -> Outcome[str]:
        return Done(ctx.sync.run("refund", refund, order))  # E

    @step
    def wrong_answer_in_a_thread(self, order: int, ctx: Context) -> Outcome[str]:
        count: int = ctx.sync.run("refund", refund, order, retry=RetryPolicy())  # E
        return Done(str(count))


class Kept(Machine, history="everything"):  # E
    pass


@job(history="none")  # E
def kept(order: int) -> int:
    return order
