"""Mistakes in how machines, steps and jobs are written."""

from __future__ import annotations

from datetime import timedelta

from good.checkout import Order

from gen_durable import Context, Done, Job, Machine, Outcome, RetryPolicy, job, step


class Shop(Machine):
    @step  # E
    async def returns_none(self, order: Order, ctx: Context) -> None:
        pass

    @step  # E
    async def without_ctx(self, order: Order) -> Outcome[int]:
        return Done(order.id)

    @step  # E
    async def with_more(self, order: Order, ctx: Context, more: int) -> Outcome[int]:
        return Done(more)

    @step(timeout=timedelta(seconds=1))  # E
    async def returns_bare_result(self, order: Order, ctx: Context) -> int:
        return order.id

    @step(timeout="5s")  # E
    async def timeout_as_number(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(order.id)

    @step(retry=3)  # E
    async def retry_as_number(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(order.id)

    @step(retry=RetryPolicy(on="ConnectionError"))  # E
    async def exception_as_text(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(order.id)

    @step(retry=RetryPolicy(on=[ConnectionError]))  # E
    async def exceptions_as_list(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(order.id)

    @step(retries=3)  # E
    async def unknown_option_error(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(order.id)

    async def on_error(self, state: Order, ctx: Context, error: Exception) -> None:  # E
        pass


class Forgetful(Machine):
    async def on_error(self, state: Order, ctx: Context, error: Exception) -> Outcome[int]:  # E
        print(error)


class Short(Machine):
    async def on_error(self, state: Order, error: Exception) -> Outcome[int]:  # E
        raise error


class Late(Machine, version="2"):  # E
    pass


class Often(Machine, retry=3):  # E
    pass


class Hasty(Machine, on_error_timeout="1 s"):  # E
    pass


class Plain(Machine):
    def on_error(self, state: Order, ctx: Context, error: Exception) -> str:  # E
        return "handled"


@job(max_attempts=3)  # E
async def former(a: int) -> int:
    return a


@job  # E
async def two_more(a: int, ctx: Context, b: int) -> int:
    return a + b


@job  # E
def two_arguments(a: int, b: int) -> int:
    return a + b


@job  # E
async def keyword_only(*, a: int) -> int:
    return a


@job(queue="slow")  # E
async def two_more_with_options(a: int, ctx: Context, b: int) -> int:
    return a + b


@job(retry=RetryPolicy(attempts="many"))  # E
async def many(a: int) -> int:
    return a


@job(retry=RetryPolicy(backoff=timedelta(seconds=1)))  # E
async def fixed(a: int) -> int:
    return a


@job
async def double(a: int) -> int:
    return 2 * a


def job_of_another_type() -> Job[str, int]:
    return double  # E


async def called_with_the_wrong_argument() -> int:
    return await double("a")  # E


async def called_for_the_wrong_result() -> str:
    return await double(1)  # E


@job
async def tick() -> int:
    return 1


@job
async def beat(ctx: Context) -> str:
    return ctx.machine


async def called_with_an_argument(ctx: Context) -> str:
    await tick("now")  # E
    await beat("now")  # E
    await double()  # E
    return await tick()  # E
