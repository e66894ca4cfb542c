"""Cancels and early joins in the harness: inline, by the same SQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg

from gen_durable import Await, Context, Done, Machine, Next, Outcome, ScheduleChildren, Signal, Start, Status, step
from gen_durable.testing import HarnessFactory

go = Signal("go", int)


class Leaf(Machine):
    """Ends at once, or waits."""

    @step
    async def run(self, waits: bool, ctx: Context) -> Outcome[int]:
        return Await(go, then=self.run, state=False) if waits else Done(1)


class Root(Machine):
    """One child ends, the other waits."""

    def __init__(self, **barrier: Any) -> None:
        self.barrier = barrier

    @step
    async def start(self, state: int, ctx: Context) -> Outcome[list[str]]:
        children = [Start(Leaf.run, True), Start(Leaf.run, False)]
        return ScheduleChildren(children, then=self.join, state=state, **self.barrier)

    @step
    async def join(self, state: int, ctx: Context) -> Outcome[list[str]]:
        return Done([child.status.value for child in ctx.children])


async def test_the_rest_is_cancelled(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Root(join="any", cancel_rest=True), Leaf()]) as harness:
        handle = await harness.app.insert(Root.start, 0)
        await harness.drain()
        await harness.assert_done(handle, ["cancelled", "done"])


async def test_a_deadline(durable_harness: HarnessFactory) -> None:
    barrier = {"timeout": timedelta(hours=1), "cancel_rest": True}
    async with durable_harness(machines=[Root(**barrier), Leaf()]) as harness:
        handle = await harness.app.insert(Root.start, 0)
        await harness.drain()
        assert await harness.fire_timeouts(handle) == 1
        await harness.drain()
        await harness.assert_done(handle, ["awaiting_signal", "done"])
        assert await harness.waiting() == ()


async def test_a_tree_in_a_callers_transaction(durable_harness: HarnessFactory, gen_durable_dsn: str) -> None:
    """The client, or the next drain, carries on what was committed."""
    async with durable_harness(machines=[Root(), Leaf()]) as harness:
        handle = await harness.app.insert(Root.start, 0)
        await harness.drain()
        connection = await asyncpg.connect(gen_durable_dsn)
        async with connection.transaction():
            assert (await handle.cancel(connection=connection)).ended == 1
            assert len(await harness.waiting()) == 2
        await connection.close()
        assert (await harness.drain()).waiting == ()


async def test_a_tree(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Root(), Leaf()]) as harness:
        handle = await harness.app.insert(Root.start, 0)
        await harness.drain()
        assert (await harness.app.cancel(handle)).ended == 2
        assert (await handle.get()).status is Status.CANCELLED
        assert await harness.waiting() == ()


async def test_a_step_that_cancels_its_own_instance(durable_harness: HarnessFactory) -> None:
    cleaned: list[str] = []

    class Own(Machine):
        @step
        async def work(self, state: int, ctx: Context) -> Outcome[int]:
            await harness.app.cancel(ctx.id, reason="enough")
            return Next(self.work, state)

        async def on_cancel(self, state: int, ctx: Context, reason: str) -> None:
            cleaned.append(reason)

    async with durable_harness(machines=[Own()]) as harness:
        handle = await harness.app.insert(Own.work, 0)
        tally = await harness.drain()
        assert [e.outcome for e in tally.executions] == ["Cancel"]
        assert ((await handle.get()).status, cleaned) == (Status.CANCELLED, ["enough"])
