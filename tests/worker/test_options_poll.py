"""poll_interval and max_poll_interval: how often an idle worker asks."""

from __future__ import annotations

import asyncio
import itertools
import time

from tests.support.engine import NEVER, Engine, Opening, Rows, seconds

from gen_durable import Finished, job
from gen_durable.telemetry import RowsPicked


@job
async def double(number: int) -> int:
    return number * 2


async def silent_insert(rows: Rows, number: int) -> int:
    """A row that nobody is told of, as from psql: only polling finds it."""
    sql = "insert into @.instances (fsm, step, state) values ('double', 'run', to_jsonb($1::int)) returning id"
    return int(await rows.value(sql, number))


async def idle_picks(e: Engine, count: int) -> list[float]:
    """When the picks of an idle worker come, once the first ones are over."""
    times: list[float] = []
    done = asyncio.Event()

    def note(event: object) -> None:
        if isinstance(event, RowsPicked):
            times.append(time.monotonic())
            if len(times) >= count:
                done.set()

    unsubscribe = e.app.events.subscribe(note)
    async with asyncio.timeout(10):
        await done.wait()
    unsubscribe()
    return times


async def test_an_idle_worker_backs_off(engine: Opening) -> None:
    """Empty picks come at doubling distances up to max_poll_interval, then at that distance."""
    async with engine() as e, e.worker(double, poll_interval=seconds(0.05), max_poll_interval=seconds(0.3)):
        await e.rows.when(lambda: listening(e))  # a listener that connects late wakes the picker once more
        times = await idle_picks(e, 9)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert all(gap < 0.6 for gap in gaps), gaps
    assert sum(gap > 0.25 for gap in gaps) >= 4, (
        gaps
    )  # a pick that the machine slows down plans one more (scan positions)


async def test_polling_finds_what_nobody_told(engine: Opening) -> None:
    """A row that came without a notification is found by the next poll."""
    async with engine() as e, e.worker(double, poll_interval=seconds(0.1), max_poll_interval=seconds(0.1)):
        await e.seen.until(RowsPicked, count=3)
        handle = e.app.handle(await silent_insert(e.rows, 4), double)
        assert await e.end(handle) == Finished(handle.id, 8)


async def test_work_resets_the_back_off(engine: Opening) -> None:
    """After a pick that brought work the next poll comes after poll_interval again."""
    async with engine() as e, e.worker(double, poll_interval=seconds(0.05), max_poll_interval=seconds(0.8)):
        await e.seen.until(RowsPicked, count=5)
        began = len(e.seen.of(RowsPicked))
        await e.end(await e.app.insert(double, 1))
        times = await idle_picks(e, 3)
        assert len(e.seen.of(RowsPicked)) >= began + 3
        assert times[-1] - times[0] < 0.7


async def test_an_idle_worker_is_silent(engine: Opening) -> None:
    """Between polls an idle worker with ten queues makes no picks, and one pick asks for all of them."""
    queues = {f"q{n}": 2 for n in range(10)}
    async with engine() as e, e.worker(double, queues=queues, poll_interval=NEVER, max_poll_interval=NEVER):
        await e.seen.until(RowsPicked, count=10)
        await e.rows.fetch("select pg_sleep(0.4)")
        calls = len(e.seen.of(RowsPicked)) / len(queues)
        assert calls <= 3  # at the start, and when the listening connection is there


async def test_another_process_is_heard(engine: Opening) -> None:
    """Work that another client inserts is picked up by notification, long before a poll."""
    async with engine() as e, engine() as other, e.worker(double, poll_interval=NEVER, max_poll_interval=NEVER):
        await e.rows.when(lambda: listening(e))
        for n in range(3):
            handle = await other.app.insert(double, n)
            assert await other.end(handle) == Finished(handle.id, n * 2)


async def listening(e: Engine) -> bool:
    sql = "select count(*) from pg_stat_activity where query ilike 'listen%' || $1 || '%'"
    return bool(await e.rows.value(sql, e.rows.schema))
