"""Machines whose every payload is a secret, and ways to look for it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)

CANARY = "canary-51c2"
"""In every payload, and nowhere else."""


@dataclass(frozen=True)
class Secret:
    text: str
    count: int = 0


told = Signal("told", Secret)
plain_told = Signal("plain", str)


@job
async def echo(secret: Secret) -> Secret:
    return secret


@job(retry=RetryPolicy(attempts=2, backoff=lambda _: timedelta(0)))
async def burn(secret: Secret) -> str:
    raise RuntimeError(f"burnt {secret.text}")


@job
async def leaf(text: str) -> str:
    return text + "!"


async def charge(secret: Secret) -> Secret:
    return secret


async def decline(secret: Secret) -> Secret:
    raise PermissionError(secret.text)


class Vault(Machine, history="states"):
    """Through every place in which a payload is stored."""

    @step
    async def start(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        return Next(self.work, Secret(secret.text, 1))

    @step
    async def work(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        assert secret == Secret(CANARY, 1)
        charged = await ctx.run("charge", charge, secret)
        with contextlib.suppress(PermissionError):
            await ctx.run("decline", decline, secret)
        await ctx.checkpoint({"saved": charged.text})
        ctx.progress(0.5, f"half of {secret.text}", detail={"secret": secret.text})
        if ctx.attempt == 0:
            raise ValueError(f"lost {secret.text}")
        assert ctx.last_checkpoint == {"saved": CANARY}
        await asyncio.sleep(0.2)  # nobody waits for a report, and one that comes after its claim is dropped
        return Await({told, plain_told}, then=self.spread, state=secret)

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Any]:
        if isinstance(error, ValueError):
            return Retry(state)
        return Fail(f"{type(error).__name__}: {error}")

    @step
    async def spread(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        assert ctx.take(told) == Secret(CANARY, 7)
        children: list[Start[Any]] = [Start(echo, Secret(CANARY, n)) for n in range(3)]
        return ScheduleChildren([*children, Start(burn, Secret(CANARY))], then=self.gather, state=secret)

    @step
    async def gather(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        assert ctx.results(echo) == [Secret(CANARY, n) for n in range(3)]
        (failed,) = [child for child in ctx.children if not child.ok]
        assert CANARY in (failed.last_error or "")
        assert failed.state == {"text": CANARY, "count": 0}
        return Done(Secret(CANARY, 99), spawn=[Start(echo, Secret(CANARY, 5), unique_key="spawned")])


class Crowd(Machine):
    """More children than come along with a claim or fit into one statement."""

    @step
    async def spread(self, count: int, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(leaf, f"{CANARY}{n}") for n in range(count)], then=self.gather, state=count)

    @step
    async def gather(self, count: int, ctx: Context) -> Outcome[int]:
        seen = 0
        async for text in ctx.stream_results(leaf):
            assert text == f"{CANARY}{seen}!"
            seen += 1
        return Done(seen)


class Patient(Machine):
    """Waits in a step to be cancelled, and cleans up badly."""

    @step
    async def wait(self, secret: Secret, ctx: Context) -> Outcome[None]:
        await asyncio.sleep(60)
        return Done(None)

    async def on_cancel(self, state: Any, ctx: Context, reason: str) -> None:
        raise RuntimeError(f"stuck with {state.text}")


class Waiter(Machine, retry=RetryPolicy(attempts=1)):
    """Answers with the first signal."""

    @step
    async def wait(self, secret: Secret, ctx: Context) -> Outcome[str]:
        found = ctx.take(told)
        return Await(told, state=secret) if found is None else Done(f"{found.text}/{secret.text}")


TABLES = "select table_name from information_schema.tables where table_schema = $1 and table_type = 'BASE TABLE'"


async def dump(rows: Any) -> str:
    """Every row of every table, as text."""
    parts: list[str] = []
    for (table,) in await rows.connection.fetch(TABLES, rows.schema):
        for (line,) in await rows.connection.fetch(f'select t::text from "{rows.schema}"."{table}" as t'):
            parts.append(f"{table}: {line}")
    return "\n".join(parts)
