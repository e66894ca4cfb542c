"""A step gets the same value however it is reached: by running ahead, by a new claim, by a waiter here or elsewhere."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gen_durable import Context, Done, Durable, Finished, Machine, Next, Outcome, Worker, step

SOON = timedelta(seconds=20)
STATE: dict[str, Any] = {"longer": -0.0, "b": 1e16, "a": {"zz": 1, "é": 2, "y": 1.5e17}}
seen: list[str] = []


class Same(Machine):
    """Notes what it is given."""

    @step
    async def start(self, run_ahead: bool, ctx: Context) -> Outcome[Any]:
        return Next(Same.end, STATE, run_ahead=run_ahead)

    @step
    async def end(self, state: dict[str, Any], ctx: Context) -> Outcome[Any]:
        activity = await ctx.run("made", made)
        await ctx.checkpoint(STATE)
        seen.append(repr((state, activity, ctx.last_checkpoint)))
        return Done(state)


async def made() -> dict[str, Any]:
    return STATE


async def test_a_state_is_the_same_however_its_step_is_reached(dsn: str, schema: str) -> None:
    """With its order of keys, its zeros and its ints; and so are an activity's value, a checkpoint and the result."""
    seen.clear()
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Same()]):
        results = []
        for run_ahead in (True, False):
            handle = await app.insert(Same.start, run_ahead)
            ended = await handle.wait(timeout=SOON)
            assert isinstance(ended, Finished)
            results += [repr(ended.result), repr((await app.get(handle.id)).result)]
            checkpoint = await app.checkpoint(handle.id)
            assert checkpoint is None or repr(checkpoint.value) in seen[-1]
    assert len(set(seen)) == 1, seen
    assert len(set(results)) == 1, results
