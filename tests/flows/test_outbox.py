"""Instances that start with the commit of an outcome, and that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable import (
    Concurrency,
    Context,
    Done,
    Durable,
    Failed,
    Finished,
    Machine,
    Next,
    Outcome,
    RetryPolicy,
    Start,
    Worker,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.errors import InvalidOutcome

Proxied = Callable[[], AbstractAsyncContextManager[Any]]
SOON = timedelta(seconds=20)
MARK = "lose-this-answer"


@job
async def mail(text: str) -> str:
    return text


@job(queue="elsewhere")
async def elsewhere(text: str) -> str:
    return text


class Order(Machine, retry=RetryPolicy(attempts=1)):
    """Tells others as it goes on."""

    @step
    async def start(self, text: str, ctx: Context) -> Outcome[str]:
        return Next(self.end, text, spawn=[Start(mail, "started"), Start(elsewhere, "started")])

    @step
    async def end(self, text: str, ctx: Context) -> Outcome[str]:
        return Done(text, spawn=[Start(mail, "ended", unique_key="mail"), Start(mail, "taken", unique_key="mail")])

    @step
    async def odd(self, text: str, ctx: Context) -> Outcome[str]:
        match text:
            case "limited":
                return Done(text, spawn=[Start(mail, "x", limit=("api", "eu"), group=("tenant", "acme"))])
            case "late":
                return Done(text, spawn=[Start(mail, "x", delay=timedelta(hours=1), priority=3)])
            case _:
                return Done(text, spawn=[mail])  # type: ignore[list-item]

    @step(transactional=True)
    async def inside(self, text: str, ctx: Context) -> Outcome[str]:
        return Done(text, spawn=[Start(mail, "inside")])


async def rows(dsn: str, schema: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        sql = f"select * from \"{schema}\".instances where fsm <> 'Order' order by id"
        return await connection.fetch(sql)
    finally:
        await connection.close()


async def test_started_with_the_commit_and_not_waited_for(dsn: str, schema: str) -> None:
    """They run in their queues at once, have no parent, and a key that is taken leaves one out."""
    hour = timedelta(hours=1)
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(
            app,
            machines=[Order()],
            jobs=[mail, elsewhere],
            queues={"default": 5, "elsewhere": 1},
            poll_interval=hour,
            max_poll_interval=hour,
        ),
    ):
        handle = await app.insert(Order.start, "done")
        assert await handle.wait(SOON) == Finished(handle.id, "done")
        found = await rows(dsn, schema)
        assert [(row["fsm"], row["state"]) for row in found] == [
            ("mail", '"started"'),
            ("elsewhere", '"started"'),
            ("mail", '"ended"'),
        ]
        assert all(row["parent_id"] is None and row["parent_round"] is None for row in found)
        for row in found:
            ending = await app.handle(row["id"], mail).wait(SOON)
            assert isinstance(ending, Finished)
        inside = await app.insert(Order.inside, "done")
        assert await inside.wait(SOON) == Finished(inside.id, "done")
        assert (await rows(dsn, schema))[-1]["state"] == '"inside"'


async def test_options_of_a_start_are_kept(dsn: str, schema: str) -> None:
    """Limits, groups, delays, priorities; a spawn that is no `Start` is the step's error, and nothing is started."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Order()], queues={"default": 5}):
        await app.set_limit("api", Concurrency(3))
        for text in ("limited", "late"):
            handle = await app.insert(Order.odd, text)
            assert await handle.wait(SOON) == Finished(handle.id, text)
        limited, late = await rows(dsn, schema)
        assert "eu" in limited["slot_key"]
        assert "acme" in limited["group_key"]
        assert late["priority"] == 3
        assert late["eligible_at"] - late["inserted_at"] > timedelta(minutes=59)
        handle = await app.insert(Order.odd, "nonsense")
        assert isinstance(await handle.wait(SOON), Failed)
        assert len(await rows(dsn, schema)) == 2


async def test_a_stale_outcome_starts_nothing(dsn: str, schema: str) -> None:
    """What an outcome starts hangs on its fence; a repeated flush starts it once."""
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(Order.end, "x")
        picked = await services_of(app).pool.run(
            services_of(app).statements.pick("w", {"default": 1}, ["Order/1/end"], 60.0)
        )
        (claim,) = picked.claims
        from gen_durable.engine.outcome_encoder import encode_outcome
        from gen_durable.testing import make_context

        spec = Order.__gen_durable__.steps["end"]
        done = Done("x", spawn=[Start(mail, "one"), Start(elsewhere, "two")])
        commit = encode_outcome(claim, spec, make_context(Order.end), done, may_continue=True).commit
        claim.epoch += 1
        stale = encode_outcome(claim, spec, make_context(Order.end), done, may_continue=True).commit
        assert (await services_of(app).pool.run(services_of(app).statements.flush([stale]))).stale_ids == {handle.id}
        assert await rows(dsn, schema) == []
        assert (await services_of(app).pool.run(services_of(app).statements.flush([commit]))).follow_ups.queues == {
            "default",
            "elsewhere",
        }
        assert (await services_of(app).pool.run(services_of(app).statements.flush([commit]))).already_committed_ids == {
            handle.id
        }
        assert len(await rows(dsn, schema)) == 2


def test_what_is_no_start_is_refused() -> None:
    """Where the outcome is made."""
    with pytest.raises(InvalidOutcome, match=r"Done\(spawn=\)"):
        Done(1, spawn=[1])  # type: ignore[list-item]
    with pytest.raises(InvalidOutcome, match="at most 1,000"):
        Done(1, spawn=[Start(mail, "x")] * 1001)
