"""Jobs: with and without `async`, with and without `ctx`, with and without options."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gen_durable import Abort, Context, Durable, Handle, Job, RetryPolicy, Start, SyncDurable, SyncHandle, backoff, job


@dataclass(frozen=True)
class Mail:
    to: str
    body: str


class UrgentMail(Mail):
    pass


@job
async def send(mail: Mail) -> int:
    return len(mail.body)


@job
async def send_once(mail: Mail, ctx: Context) -> int:
    if ctx.attempt > 0:
        raise Abort("a second mail would be worse than none")
    return len(mail.body)


@job
def shout(text: str) -> str:
    return text.upper()


@job
def shout_louder(text: str, ctx: Context) -> str:
    return text.upper() * (ctx.attempt + 1)


@job(queue="mail", timeout=timedelta(seconds=5), retry=RetryPolicy(attempts=3, backoff=backoff))
async def send_slowly(mail: Mail) -> None:
    await send(mail)


@job(name="tidy-up", version=2, retry=RetryPolicy(backoff=lambda attempt: timedelta(minutes=attempt)))
def tidy(days: int, ctx: Context) -> list[str]:
    return [ctx.machine] * days


@job
async def tick() -> int:
    return 1


@job
async def tick_with_context(ctx: Context) -> str:
    return ctx.machine


@job(queue="clock", timeout=5, retry=RetryPolicy(backoff=lambda attempt: 0.5 * attempt))
def tick_in_a_thread() -> None: ...


@job(retry=RetryPolicy(attempts=1))
def tick_with_options(ctx: Context) -> int:
    return ctx.attempt


@job
async def anything(value: Any) -> int:
    return len(value)


async def scheduled(app: Durable, sync: SyncDurable, ctx: Context) -> int:
    """A job without an argument is inserted without a state."""
    handle: Handle[int] = await app.insert(tick, unique_key="tick", delay=60)
    other: Handle[str] = await app.insert(tick_with_context)
    skipped: Handle[None] | None = await app.insert(tick_in_a_thread, on_conflict="skip")
    third: SyncHandle[int] = sync.insert(tick_with_options, priority=1)
    starts: list[Start[int]] = [Start(tick), Start(tick_with_options, delay=1.5), Start(anything, 5)]
    many = await app.insert_many(starts)
    called: int = await tick() + tick_with_options(ctx) + len(await tick_with_context(ctx)) + await anything("x")
    print(skipped, tick_in_a_thread(), other)
    return await handle.result() + third.result() + sum([await one.result(5) for one in many]) + called


def what_they_are() -> tuple[Job[Mail, int], Job[str, str], Job[Mail, None], Job[int, list[str]]]:
    return send, shout, send_slowly, tidy


async def called_as_functions(ctx: Context) -> tuple[int, int, str, str, list[str]]:
    """A job that is called is the function that it was, as a unit test wants it."""
    mail = Mail("ada", "hello")
    return await send(mail), await send_once(mail, ctx), shout("a"), shout_louder("b", ctx), tidy(1, ctx)


def starts() -> list[Start[int]]:
    """An argument may be of a subclass of what the job takes."""
    return [Start(send, Mail("ada", "hello")), Start(send_once, UrgentMail("bob", "hi"), priority=-1)]
