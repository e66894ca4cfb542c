"""Limits that are named wrongly are refused at an insert, and harm no other row at an outcome."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.limits import database

from gen_durable import (
    Concurrency,
    Context,
    Done,
    Durable,
    Fail,
    Failed,
    Finished,
    Limit,
    Machine,
    Next,
    Outcome,
    Rate,
    Start,
    Worker,
    job,
    step,
)
from gen_durable.errors import ConfigError, InputError, OutcomeRejected, UnknownLimit
from gen_durable.instances import Ending
from gen_durable.limits import Policy

SOON = timedelta(seconds=20)
SIZE = 40
WRONG: dict[int, tuple[Any, str]] = {
    3: ("nope", "Unknown limit"),
    17: (Limit("r", weight=4), "a weight of 4 is above the burst of limit r"),
    21: (Limit("l", weight=2), "limit l is a concurrency limit"),
    30: (["l", "m"], "one limit of the kind concurrency, not two"),
}
UNDECLARED = (3, 17, 21)
"""Those that would do if the limits were declared otherwise."""


@job(limit="l")
async def limited(n: int) -> int:
    """Has a limit of its own."""
    return n


class Crowd(Machine):
    """Instances that all return at the same moment, some of them with a limit that cannot be."""

    def __init__(self) -> None:
        self.here = 0
        self.all_here = asyncio.Event()
        self.errors: dict[int, Exception] = {}

    @step
    async def meet(self, n: int, ctx: Context) -> Outcome[int]:
        self.here += 1
        if self.here == SIZE:
            self.all_here.set()
        await self.all_here.wait()
        return Next(self.end, n, limit=WRONG[n][0] if n in WRONG else ["l", Limit("r", str(n))])

    @step
    async def end(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)

    @step
    async def mistaken(self, n: int, ctx: Context) -> Outcome[int]:
        return Next(self.by_state, n)

    @step(limit=lambda n: ("l", n))
    async def by_state(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
        self.errors[state] = error
        return Fail(error)


LIMITS: dict[str, Policy] = {"l": Concurrency(5), "m": Concurrency(5), "r": Rate(1000, timedelta(seconds=1), burst=3)}


async def test_an_insert_that_names_a_limit_wrongly_inserts_nothing(dsn: str, schema: str) -> None:
    """Not the row, and none of its batch; the message names the limit and says what to do."""
    async with Durable(dsn, schema=schema) as app:
        for name in ("l", "m", "r"):
            await app.set_limit(name, LIMITS[name])
        with pytest.raises(UnknownLimit, match=r"Unknown limit 'nope'\. Declare it with Worker\(limits="):
            await app.insert(limited, 1, limit="nope")
        with pytest.raises(UnknownLimit, match="nope"):
            await app.insert_many([Start(limited, n, limit="nope" if n == 7 else None) for n in range(10)])
        for limit, words in WRONG.values():
            with pytest.raises(InputError, match=words):
                await app.insert(limited, 1, limit=limit)
        async with database(dsn, schema) as db:
            assert await db.value("select count(*) from @schema.instances") == 0
        with pytest.raises(InputError, match="remove it before"):
            await app.set_limit("l", LIMITS["r"])
        handle = await app.insert(limited, 1)
        async with Worker(app, jobs=[limited]):
            assert await handle.wait(SOON) == Finished(handle.id, 1)


async def test_an_outcome_that_names_a_limit_wrongly_does_not_harm_its_batch(dsn: str, schema: str) -> None:
    """Of forty outcomes in one flush three name limits that are not declared so: their rows are put back. One names two
    limits of one kind: that is its step's own error. The others go on, and those put back once the limits exist.
    """
    crowd = Crowd()
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[crowd], queues={"default": SIZE}, limits=LIMITS),
        database(dsn, schema) as db,
    ):
        handles = await app.insert_many([Start(Crowd.meet, n) for n in range(SIZE)])
        others = [handle for n, handle in enumerate(handles) if n not in UNDECLARED]
        endings: list[Ending[int]] = await asyncio.gather(*(handle.wait(SOON) for handle in others))
        assert [ending.id for ending in endings if not isinstance(ending, Finished)] == [handles[30].id]
        assert list(crowd.errors) == [30]
        assert isinstance(crowd.errors[30], OutcomeRejected)
        assert WRONG[30][1] in str(crowd.errors[30])
        for n in UNDECLARED:
            words, instance = WRONG[n][1], handles[n].id
            await db.until(f"select last_error like '%{words}%' from @schema.instances where id = {instance}", True)
        await app.set_limit("nope", Concurrency(1))
        await app.set_limit("r", Rate(1000, timedelta(seconds=1), burst=4))
        for n in (3, 17):
            assert await handles[n].wait(SOON) == Finished(handles[n].id, n)
        assert list(crowd.errors) == [30]


async def test_a_limit_told_by_a_function_of_the_state_that_is_no_limit(dsn: str, schema: str) -> None:
    """What `@step(limit=lambda ...)` gives is checked too, and is the error of the step that went on to it."""
    crowd = Crowd()
    async with Durable(dsn, schema=schema) as app:
        async with Worker(app, machines=[crowd], limits=LIMITS):
            assert isinstance(await (await app.insert(Crowd.mistaken, 8)).wait(SOON), Failed)
        assert "takes a limit's name" in str(crowd.errors[8])


async def test_a_policy_that_is_none_is_refused(dsn: str, schema: str) -> None:
    """By the client and by the worker, before the database is asked."""
    async with Durable(dsn, schema=schema) as app:
        for wrong in (5, "10", None, Concurrency):
            with pytest.raises(ConfigError, match="must be Concurrency"):
                await app.set_limit("l", wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="must be Concurrency"):
                Worker(app, jobs=[limited], limits={"l": wrong})  # type: ignore[dict-item]
        with pytest.raises(InputError, match="the name of a limit"):
            await app.set_limit("a/b", Concurrency(1))
        assert await app.limits() == []
        assert await app.remove_limit("l") is False
