"""Delays and schedules run on time: the worker sleeps until the next due moment, not for a poll period."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

from tests.support.engine import NEVER, Opening, seconds

from gen_durable import Context, Finished, job

SLACK = 0.3
"""Seconds that a busy machine may add; without a timer it would be the poll interval, an hour."""


@job
async def moment(_: None, ctx: Context) -> float:
    """When it ran, by the wall clock that the database shares."""
    return time.time()


async def test_a_delay_ends_on_time(engine: Opening) -> None:
    """Delayed rows run at their moment, not before it and not after it, in the order of their moments."""
    async with engine() as e, e.worker(moment, poll_interval=NEVER, max_poll_interval=NEVER):
        handles = [await e.app.insert(moment, None, delay=seconds(delay)) for delay in (0.6, 0.2, 0.4)]
        for handle in handles:
            ended = await e.end(handle)
            due = (await handle.get()).eligible_at.timestamp()
            assert isinstance(ended, Finished)
            assert due <= ended.result < due + SLACK


async def test_a_schedule_is_kept(engine: Opening) -> None:
    """A row for a moment runs at that moment."""
    async with engine() as e, e.worker(moment, poll_interval=NEVER, max_poll_interval=NEVER):
        due = datetime.now(UTC) + timedelta(seconds=0.4)
        handle = await e.app.insert(moment, None, schedule_at=due)
        ended = await e.end(handle)
        assert isinstance(ended, Finished)
        assert due.timestamp() <= ended.result < due.timestamp() + SLACK


async def test_a_delay_written_before_the_worker_came(engine: Opening) -> None:
    """A worker that starts later still wakes for what is due in between."""
    async with engine() as e:
        handle = await e.app.insert(moment, None, delay=seconds(0.5))
        async with e.worker(moment, poll_interval=NEVER, max_poll_interval=NEVER):
            ended = await e.end(handle)
        due = (await handle.get()).eligible_at.timestamp()
        assert isinstance(ended, Finished)
        assert due <= ended.result < due + SLACK


async def test_a_far_delay_hides_no_near_one(engine: Opening) -> None:
    """Rows far in the future, at a more urgent priority, do not keep the worker from the near ones."""
    async with engine() as e, e.worker(moment, poll_interval=NEVER, max_poll_interval=NEVER):
        await asyncio.gather(*(e.app.insert(moment, None, delay=NEVER, priority=-n) for n in range(20)))
        handle = await e.app.insert(moment, None, delay=seconds(0.3), priority=5)
        ended = await e.end(handle)
        due = (await handle.get()).eligible_at.timestamp()
        assert isinstance(ended, Finished)
        assert due <= ended.result < due + SLACK
