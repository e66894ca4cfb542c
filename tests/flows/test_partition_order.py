"""Instances of one partition key run one at a time and in order, by several workers, some of which are killed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

from tests.support.programs import steps

from gen_durable import Durable, Finished, Start

KEYS, TURNS = 12, 20


async def test_strict_order_under_four_workers_with_crashes(dsn: str, schema: str, spawn: Callable[..., Any]) -> None:
    """Half of the rows come in one by one, half in batches; two of four workers are killed in the middle."""
    async with Durable(dsn, schema=schema) as app:
        workers = [spawn("steps", LEASE="0.9", CONCURRENCY="8") for _ in range(4)]
        await asyncio.gather(*(worker.until("ready") for worker in workers))
        handles = []
        for n in range(TURNS // 2):
            handles += [await app.insert(steps.turn, f"{key}/{n}", partition_key=str(key)) for key in range(KEYS)]
        for key in range(KEYS):
            batch = [Start(steps.turn, f"{key}/{n}", partition_key=str(key)) for n in range(TURNS // 2, TURNS)]
            handles += await app.insert_many(batch)
        for worker in workers[:2]:
            await asyncio.sleep(0.15)
            worker.kill()
        endings = await asyncio.gather(*(handle.wait(timedelta(seconds=40)) for handle in handles))
    assert all(isinstance(ending, Finished) for ending in endings)

    told: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for line in workers[0].effects.read_text().splitlines():
        _, word, *rest = line.split()
        if word in ("begin", "end"):
            key, _, n = rest[0].partition("/")
            told[key].append((word, int(n)))
    assert len(told) == KEYS
    for key, lines in told.items():
        begun = [n for word, n in lines if word == "begin"]
        assert begun == sorted(begun), f"key {key} out of order: {begun}"
        assert set(begun) == set(range(TURNS))
        # Whoever begins comes after the end of the one before: nothing of a key overlaps, apart from a turn that was
        # killed and runs again.
        for (word, n), (after, next_n) in pairwise(lines):
            if (word, after) == ("begin", "begin"):
                assert next_n == n, f"key {key}: {next_n} began while {n} was running"
