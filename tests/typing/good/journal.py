"""Activities and checkpoints: types go through `ctx.run`, async or not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from gen_durable import Context, Done, Durable, Machine, Outcome, RetryPolicy, SyncDurable, job, step
from gen_durable.journal import Activity, Progress, Transition


@dataclass(frozen=True)
class Receipt:
    amount: int


async def charge(order: int, amount: int) -> Receipt:
    return Receipt(amount)


def refund(receipt: Receipt) -> str:
    return f"{receipt.amount} back"


async def ping() -> None: ...


def with_own_retry(order: int, retry: int) -> int:
    return order + retry


class Pay(Machine, history="states"):
    @step
    async def pay(self, order: int, ctx: Context) -> Outcome[str]:
        receipt = await ctx.run("charge", charge, order, amount=5, retry=RetryPolicy(attempts=3))
        amount: int = receipt.amount
        brief = RetryPolicy(attempts=2, backoff=lambda n: timedelta(seconds=n), on=(ConnectionError, TimeoutError))
        text: str = await ctx.run("refund", refund, receipt, retry=brief)
        text += await ctx.run("again", refund, receipt=receipt, retry=RetryPolicy(backoff=lambda n: 0.5 * n))
        count: int = await ctx.run("own", with_own_retry, order, retry=3)
        text += str(count)
        await ctx.run("ping", ping)
        later: Receipt = await ctx.run("later", partial(charge, amount=7), order)
        last = ctx.checkpoint_as(Receipt)
        if last is not None:
            amount += last.amount
        await ctx.checkpoint(later)
        ctx.progress(0.5, "half", detail={"amount": amount})
        key: str = ctx.idempotency_key
        return Done(text + key)


@job(history="off")
def thread(order: int, ctx: Context) -> int:
    receipt = ctx.sync.run("charge", charge, order, 5)
    ctx.sync.checkpoint(receipt)
    again: str = ctx.sync.run("again", refund, receipt=receipt, retry=RetryPolicy(attempts=2))
    return len(ctx.sync.run("refund", refund, receipt) + again)


async def read(app: Durable) -> tuple[list[Transition], list[Activity], list[Progress]]:
    return await app.history(1), await app.activities("key"), await app.progress(1)


def read_now(app: SyncDurable) -> list[Transition]:
    return app.history(1)
