"""Checkpoints: kept for one visit, written behind the fence of a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.journal import Opening, Scripted, Threaded, Till, go, run

from gen_durable import Await, Context, Done, Fail, Finished, Machine, Next, Outcome, Retry, Worker, step
from gen_durable.core.services import services_of
from gen_durable.errors import LeaseLost
from gen_durable.store.statements import Statement

STEAL = (
    "update @schema.instances set claims = claims + 1, status = 'runnable', locked_by = null,"
    " lease_expires_at = null, eligible_at = now() + interval '1 hour' where id = $1"
)


async def test_a_checkpoint_belongs_to_one_visit(open_app: Opening) -> None:
    """A Retry and a wait at the same step keep it, a Next forgets it; a stored None is told from none."""
    seen: list[Any] = []

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        seen.append((ctx.has_checkpoint, ctx.last_checkpoint))
        match len(seen):
            case 1:
                await ctx.checkpoint(1)
                await ctx.checkpoint(None)
                assert (ctx.has_checkpoint, ctx.last_checkpoint) == (True, None)
                return Retry(n)
            case 2:
                await ctx.checkpoint({"at": 2})
                return Await(go, state=n, timeout=timedelta(0))
            case 3:
                return Next(machine.first, n)
            case _:
                return Done(n)

    machine = Scripted(first)
    async with open_app() as app:
        _, ending = await run(app, machine)
        assert isinstance(ending, Finished), machine.errors
        assert seen == [(False, None), (True, None), (True, {"at": 2}), (False, None)]


@pytest.mark.parametrize("how", ["checkpoint", "activity", "thread"])
async def test_a_lost_claim_stops_the_step(open_app: Opening, how: str) -> None:
    """The first write after the claim was taken over raises LeaseLost: the step ends, on_error is not asked."""
    reached: list[str] = []

    async with open_app() as app:

        async def steal(instance: int) -> None:
            await services_of(app).pool.run(
                Statement(services_of(app).statements.schema.render(STEAL), (instance,), list)
            )

        async def first(n: int, ctx: Context) -> Outcome[Any]:
            await steal(ctx.id)
            ctx.progress(0.5)
            try:
                await (ctx.checkpoint(1) if how == "checkpoint" else ctx.run("a", Till().charge, 1))
            except LeaseLost:
                reached.append("lost")
                raise
            reached.append("went on")
            return Done(n)

        def body(n: int, ctx: Context) -> Outcome[Any]:
            ctx.sync.run("steal", steal, ctx.id)  # its own row cannot be written any more
            reached.append("went on")
            return Done(n)

        machine = Threaded(body) if how == "thread" else Scripted(first)
        async with Worker(app, machines=[machine], queues={"default": 1}) as worker:
            handle = await app.insert(type(machine).first, 1)
            for _ in range(500):
                if not len(worker._runtime.claims) and (await handle.get()).claims == 2:
                    break
                await asyncio.sleep(0.01)
            other = await app.insert(type(machine).first, 1)  # the slot is free again
            for _ in range(500):
                if (await other.get()).claims == 2:
                    break
                await asyncio.sleep(0.01)
        assert reached == ([] if how == "thread" else ["lost", "lost"])
        assert isinstance(machine, Threaded) or machine.errors == []
        row = await handle.get()
        assert (row.seq, row.claims, row.last_error) == (0, 2, None)
        assert (await app.activities(handle), await app.progress(handle), await app.history(handle)) == ([], [], [])


class LosesItsClaim(Machine):
    """Its claim is taken over while `on_error` runs."""

    def __init__(self, steal: Callable[[int], Awaitable[None]]) -> None:
        self.steal = steal

    @step
    async def first(self, n: int, ctx: Context) -> Outcome[Any]:
        raise ValueError(n)

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Any]:
        await self.steal(ctx.id)
        await ctx.checkpoint(1)
        return Fail(error)


async def test_a_claim_that_is_lost_in_on_error(open_app: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """The outcome is the new owner's; nothing is written, and it is no error of the engine."""
    async with open_app() as app:

        async def steal(instance: int) -> None:
            await services_of(app).pool.run(
                Statement(services_of(app).statements.schema.render(STEAL), (instance,), list)
            )

        async with Worker(app, machines=[LosesItsClaim(steal)], queues={"default": 1}) as worker:
            handle = await app.insert(LosesItsClaim.first, 1)
            for _ in range(500):
                if not len(worker._runtime.claims) and (await handle.get()).claims == 2:
                    break
                await asyncio.sleep(0.01)
        row = await handle.get()
        assert (row.seq, row.claims, row.last_error) == (0, 2, None)
        assert f"instance {handle.id}: the claim was lost during a step" in caplog.messages
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_step_that_was_left_cannot_write(open_app: Opening) -> None:
    """A task that outlives its step has no business with the next one, although the claim is the same."""
    left: list[Context] = []

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        left.append(ctx)
        return Next(machine.second, n)

    async def second(n: int, ctx: Context) -> Outcome[Any]:
        assert ctx.claim == left[0].claim
        with pytest.raises(LeaseLost, match="has been left"):
            await left[0].checkpoint("late")
        return Done(ctx.last_checkpoint)

    machine = Scripted(first, second)
    async with open_app() as app:
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, None), machine.errors


async def test_a_checkpoint_of_a_newer_library_is_refused(open_app: Opening) -> None:
    """The row is put back for a worker that can read it; the step is not run, and on_error is not asked."""
    ran: list[int] = []

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        ran.append(ctx.attempt)
        await ctx.checkpoint(1)
        await services_of(app).pool.run(
            Statement(services_of(app).statements.schema.render("update @schema.checkpoints set format = 99"), (), list)
        )
        return Retry(n)

    async with open_app() as app:
        machine = Scripted(first)
        async with Worker(app, machines=[machine]):
            handle = await app.insert(Scripted.first, 1)
            for _ in range(500):
                row = await handle.get()
                if row.last_error is not None:
                    break
                await asyncio.sleep(0.01)
        assert "newer gen_durable (format 99" in (row.last_error or "")
        assert (ran, machine.errors, row.status.value) == ([0], [], "runnable")
