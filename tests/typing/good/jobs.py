"""Jobs: with and without `async`, with and without `ctx`, with and without options."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gen_durable import Abort, Context, Job, Start, backoff, job


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


@job(queue="mail", max_attempts=3, backoff=backoff, timeout=timedelta(seconds=5))
async def send_slowly(mail: Mail) -> None:
    await send(mail)


@job(name="tidy-up", version=2, backoff=lambda attempt: timedelta(minutes=attempt))
def tidy(days: int, ctx: Context) -> list[str]:
    return [ctx.machine] * days


def what_they_are() -> tuple[Job[Mail, int], Job[str, str], Job[Mail, None], Job[int, list[str]]]:
    return send, shout, send_slowly, tidy


async def called_as_functions(ctx: Context) -> tuple[int, int, str, str, list[str]]:
    """A job that is called is the function that it was, as a unit test wants it."""
    mail = Mail("ada", "hello")
    return await send(mail), await send_once(mail, ctx), shout("a"), shout_louder("b", ctx), tidy(1, ctx)


def starts() -> list[Start[int]]:
    """An argument may be of a subclass of what the job takes."""
    return [Start(send, Mail("ada", "hello")), Start(send_once, UrgentMail("bob", "hi"), priority=-1)]
