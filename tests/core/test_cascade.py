"""Cascades in the background: one at a time for each origin, and none is forgotten."""

from __future__ import annotations

import asyncio

from gen_durable import Durable
from gen_durable.core.services import services_of


async def test_a_start_while_the_last_cascade_ends(dsn: str, schema: str) -> None:
    """In whichever iteration of the loop it comes, a cascade runs that has not ended."""
    async with Durable(dsn, schema=schema) as app:
        cascader = services_of(app).notifier.cascader
        seen = set()
        while len(seen) < 5:
            cascader.start(None)
            assert not cascader._tasks[None].done()
            seen.add(cascader._tasks[None])
            await asyncio.sleep(0)


async def test_a_cascade_that_other_code_cancels_before_it_begins(dsn: str, schema: str) -> None:
    """The next one of its origin runs."""
    async with Durable(dsn, schema=schema) as app:
        cascader = services_of(app).notifier.cascader
        cascader.start(7)
        cascader._tasks[7].cancel()
        await asyncio.sleep(0.01)
        cascader.start(7)
        assert not cascader._tasks[7].done()
        await asyncio.wait([cascader._tasks[7]], timeout=10)
        assert cascader._tasks == {}
