"""A claim is stolen while its step runs: nothing that the old worker still writes counts, and its task ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.journal import SOON, Opening, Scripted

from gen_durable import Context, Done, Durable, Finished, Outcome, Worker
from gen_durable.core.services import services_of
from gen_durable.errors import LeaseLost
from gen_durable.store.statements import Statement
from gen_durable.telemetry import StaleOutcome


@pytest.mark.parametrize("stubborn", [False, True], ids=["lets it pass", "catches it"])
async def test_checkpoint_progress_and_outcome_of_the_old_worker_change_nothing(
    open_app: Opening, stubborn: bool
) -> None:
    """The new owner's checkpoint, report and result stand. LeaseLost ends the old task, or its outcome is stale."""
    began, taken, lost, stale = (asyncio.Event() for _ in range(4))

    async def old(n: int, ctx: Context) -> Outcome[Any]:
        await ctx.checkpoint("old, before")
        began.set()
        await taken.wait()
        ctx.progress(0.1, "old")
        try:
            await ctx.checkpoint("old, after")
        except LeaseLost:
            lost.set()
            if not stubborn:
                raise
        return Done("old")

    async def new(n: int, ctx: Context) -> Outcome[Any]:
        assert ctx.last_checkpoint == "old, before"
        await ctx.checkpoint("new")
        ctx.progress(0.9, "new")
        taken.set()
        async with asyncio.timeout(10):
            await (stale if stubborn else lost).wait()
        return Done("new")

    async with open_app() as app, open_app() as other:
        app.events.subscribe(lambda event: stale.set() if isinstance(event, StaleOutcome) else None)
        first, second = Scripted(old), Scripted(new)
        # One slot, which the old step keeps busy: its worker does not take the row back.
        async with Worker(app, machines=[first], queues={"default": 1}, prefetch=0):
            handle = await app.insert(Scripted.first, 1)
            async with asyncio.timeout(10):
                await began.wait()
            async with Worker(other, machines=[second]):
                await services_of(app).pool.run(
                    services_of(app).statements.release_claims([(handle.id, 1, None, None)])
                )
                services_of(other).notifier.wake("default")
                assert await handle.wait(SOON) == Finished(handle.id, "new"), second.errors
        assert lost.is_set()
        assert first.errors == []  # on_error is not asked: it is not the step's error
        assert await _checkpoint(app, handle.id) == "new"
        assert [(p.fraction, p.message) for p in await app.progress(handle)] == [(0.9, "new")]
        row = await handle.get()
        assert (row.result, row.seq, row.claims) == ("new", 1, 3)
        assert [t.outcome for t in await app.history(handle)] == ["Done"]


async def _checkpoint(app: Durable, instance: int) -> object:
    text = services_of(app).statements.schema.render(
        "select value #>> '{}' from @schema.checkpoints where instance_id = $1"
    )
    return await services_of(app).pool.run(Statement(text, (instance,), lambda rows: rows[0][0]))
