"""The checkpointer: fenced by the lease, read by whoever goes on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.capabilities import Opening

from gen_durable import Context, Done, Finished, Machine, Outcome, Retry, Worker, step
from gen_durable.core.services import services_of
from gen_durable.errors import DecodeError, LeaseLost


class Load(Machine):
    """Its step does what a test says, execution by execution."""

    def __init__(self, *bodies: Any) -> None:
        self.bodies = list(bodies)

    @step
    async def load(self, n: int, ctx: Context) -> Outcome[Any]:
        return await self.bodies.pop(0)(ctx)  # type: ignore[no-any-return]


async def again(ctx: Context) -> Outcome[Any]:
    return Retry(1)


async def tell(ctx: Context) -> Outcome[Any]:
    return Done([ctx.has_checkpoint, ctx.last_checkpoint])


async def run(engine: Opening, *bodies: Any) -> Any:
    async with engine() as e:
        handle = await e.app.insert(Load.load, 1)
        ending = await e.end(handle, machines=[Load(*bodies)])
        assert isinstance(ending, Finished), ending
        return ending.result


async def test_saved_and_loaded(engine: Opening) -> None:
    """The newest one counts; the next execution has it, and so has whoever looks from outside."""

    async def save(ctx: Context) -> Outcome[Any]:
        await ctx.checkpoint({"at": 1})
        await ctx.checkpoint({"at": 2})
        return Retry(1)

    async with engine() as e:
        handle = await e.app.insert(Load.load, 1)
        assert (await e.end(handle, machines=[Load(save, tell)])).result == [True, {"at": 2}]
        kept = await e.app.checkpoint(handle)
        assert kept is not None
        assert (kept.value, kept.version) == ({"at": 2}, 2)


async def test_a_claim_that_is_lost_cannot_save(engine: Opening) -> None:
    """`LeaseLost` stops the task; the checkpoint of the claim before is still there, to be read by the next."""
    async with engine() as e:
        reached: list[str] = []

        async def save(ctx: Context) -> Outcome[Any]:
            await ctx.checkpoint("mine")
            await services_of(e.app).pool.run(
                services_of(e.app).statements.release_claims([(ctx.id, ctx.claim, None, None)])
            )
            try:
                await ctx.checkpoint("too late")
            except LeaseLost:
                reached.append("lost")
                raise
            reached.append("saved")
            return Done(None)

        handle = await e.app.insert(Load.load, 1)
        assert (await e.end(handle, machines=[Load(save, tell)])).result == [True, "mine"]
        assert reached == ["lost"]


async def test_it_is_loaded_without_a_claim(engine: Opening) -> None:
    """Reading is not fenced: the old claimant still sees what it has read, anybody sees what is there."""
    async with engine() as e:

        async def save(ctx: Context) -> Outcome[Any]:
            await ctx.checkpoint(7)
            await e.sql("update @schema.instances set claims = claims + 1 where id = $1", ctx.id)
            assert ctx.last_checkpoint == 7
            kept = await e.app.checkpoint(ctx.id)
            assert kept is not None
            assert kept.value == 7
            await e.sql("update @schema.instances set claims = claims - 1 where id = $1", ctx.id)
            return Done(kept.value)

        handle = await e.app.insert(Load.load, 1)
        assert (await e.end(handle, machines=[Load(save)])).result == 7


async def test_deleted(engine: Opening) -> None:
    async def save(ctx: Context) -> Outcome[Any]:
        await ctx.checkpoint(1)
        await ctx.clear_checkpoint()
        return Retry(1)

    assert await run(engine, save, tell) == [False, None]


@pytest.mark.parametrize("value", [None, [], {}, "", 0, False])
async def test_none_is_told_from_empty(engine: Opening, value: object) -> None:
    """A checkpoint that holds nothing is one."""

    async def save(ctx: Context) -> Outcome[Any]:
        await ctx.checkpoint(value)
        return Retry(1)

    assert await run(engine, again, tell) == [False, None]
    assert await run(engine, save, tell) == [True, value]


async def test_one_of_a_newer_version_is_refused(engine: Opening) -> None:
    """The step is not run on what it would misread; it waits for a worker that can, and says why."""
    async with engine() as e:

        async def save(ctx: Context) -> Outcome[Any]:
            await ctx.checkpoint(1)
            await e.sql("update @schema.checkpoints set format = 99")
            return Retry(1)

        handle = await e.app.insert(Load.load, 1)
        async with Worker(e.app, machines=[Load(save)]):
            row = await e.until(handle, lambda row: row.last_error is not None)
        assert "newer gen_durable (format 99" in (row.last_error or "")
        assert row.status == "runnable"
        with pytest.raises(DecodeError, match="upgrade"):
            await e.app.checkpoint(handle)
