"""Tokens of rate limits: none is given twice, none is lost, and they come evenly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.support.limits import LONG, chosen, opened
from tests.support.programs.limits import Task, tick, work

from gen_durable import Rate, Start

KEYS, JOBS, BURST = 100, 50, 5


@pytest.mark.slow
async def test_eight_pickers_and_a_hundred_cold_keys(dsn: str, schema: str, spawn: Callable[..., Any]) -> None:
    """5,000 rows fall due at one moment, for buckets that nobody has touched: each gives exactly its burst.

    With eight processes that pick as fast as they can; in the long form three times in a row.
    """
    async with opened(dsn, schema) as (app, db):
        pickers = [spawn("picker", KNOWN="work/1/run") for _ in range(8)]
        await asyncio.gather(*(picker.until("ready") for picker in pickers))
        for run in "abc" if LONG else "a":
            await app.set_limit(run, Rate(1, timedelta(days=1), burst=BURST))
            moment = datetime.now(UTC) + timedelta(seconds=1.5)
            starts = [
                Start(work, Task(str(key), 0), limit=(run, str(key)), schedule_at=moment)
                for _ in range(JOBS)
                for key in range(KEYS)
            ]
            await app.insert_many(starts)
            assert datetime.now(UTC) < moment + timedelta(seconds=1)
            await db.until(
                "select clock_timestamp() >= max(eligible_at) from @schema.instances where claims = 0", value=True
            )
            await db.until("select not exists (select from @schema.instances where due_at <= now())", value=True)
            granted = await db.fetch(
                "select rate_key, count(*) filter (where claims = 1) as once, count(*) filter (where claims > 0) as n"
                " from @schema.instances where starts_with(rate_key, $1) group by rate_key",
                f"{run}/",
            )
            assert len(granted) == KEYS
            assert {(row["once"], row["n"]) for row in granted} == {(BURST, BURST)}
            busy = await db.value(
                "select count(distinct locked_by) from @schema.instances where starts_with(rate_key, $1)", f"{run}/"
            )
            print(f"run {run}: {KEYS} keys x {JOBS} jobs, {sum(r['n'] for r in granted)} grants by {busy} pickers")
            assert busy > 1
        for picker in pickers:
            picker.kill()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("processes", [1, 4])
async def test_a_hundred_a_second(dsn: str, schema: str, spawn: Callable[..., Any], processes: int) -> None:
    """Under a backlog steps begin at the rate that was asked for, without a pause, by however many workers."""
    seconds = chosen(20, 2)
    async with opened(dsn, schema) as (app, _):
        await app.set_limit("r", Rate(100, timedelta(seconds=1), burst=10))
        await app.insert_many([Start(tick, n, limit="r") for n in range(int(chosen(5000, 1000)))])
        workers = [spawn("limits") for _ in range(processes)]
        await asyncio.gather(*(worker.until("ready") for worker in workers))
        deadline = time.monotonic() + seconds + 10
        while len(times := begun(workers[0])) < 11 or times[-1] - times[0] < seconds + 0.5:
            assert time.monotonic() < deadline, f"{len(times)} began"
            await asyncio.sleep(0.1)
        for worker in workers:
            worker.kill()
    # The burst is there at once; what comes after it comes at the rate.
    after = [at for at in times[10:] if at < times[0] + seconds]
    rate = (len(after) - 1) / (after[-1] - after[0])
    gap = max(later - sooner for sooner, later in pairwise(after))
    total = sum(at < times[0] + seconds for at in times)
    print(
        f"{processes} workers: {total} in {seconds:g} s, {rate:.2f}/s after the burst, longest gap {gap * 1000:.1f} ms"
    )
    assert chosen(98, 60) <= rate <= chosen(102, 115)  # a busy machine cannot keep up
    assert total <= (100 * seconds + 10) * chosen(1.02, 1.1)
    assert gap <= chosen(0.05, 0.5)


def begun(worker: Any) -> list[float]:
    """When each began, by all processes."""
    lines = [line.split() for line in worker.effects.read_text().splitlines()]
    return sorted(float(line[2]) for line in lines if line[1] == "tick" and len(line) == 3)
