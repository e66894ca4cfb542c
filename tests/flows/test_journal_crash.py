"""A worker is killed at every point of a step with two activities and a checkpoint; another goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.programs import journal as program

from gen_durable import Durable, Finished


@pytest.mark.parametrize("point", program.POINTS)
async def test_what_was_finished_is_not_done_again(
    dsn: str, schema: str, spawn: Callable[..., Any], point: str
) -> None:
    """SIGKILL at this point: each finished activity has run once, the checkpoint is there, the history has no gap."""
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(program.Pay.pay, 7)
        first = spawn("journal", STOP_AT=point)
        await first.until(f"at {point}")
        first.kill()
        second = spawn("journal")
        ending = await handle.wait(timedelta(seconds=20))
        assert isinstance(ending, Finished)
        mailed, key, other_key, forgotten = ending.result
        assert (mailed, forgotten) == ("CHARGED 7", "None")
        lines = [line.partition(" ")[2] for line in first.lines() + second.lines()]
        assert (lines.count("charged"), lines.count("mailed")) == (1, 1)
        # The same key in all executions of the visit, another one in the next.
        assert {line for line in lines if line.startswith("key")} == {f"key {key}"}
        assert key != other_key
        crashed_before = point != "next"
        had_checkpoint = point in ("after-checkpoint", "in-b", "after-b", "end")
        assert (f"checkpoint {7 if had_checkpoint else None}" in lines) or point == "next"
        history = await app.history(handle)
        assert [(t.seq, t.step, t.outcome, t.next_step, t.attempt) for t in history] == [
            (1, "pay", "Next", "end", 1 if crashed_before else 0),
            (2, "end", "Done", None, 0 if crashed_before else 1),
        ]
        assert history[0].state == [mailed, key]
        assert [(a.name, a.ok, a.visit, a.attempt) for a in await app.activities(handle)] == [
            ("charge", True, 0, 0),
            ("mail", True, 0, 0),
        ]
