"""history_keep: the history of an instance that goes on for ever is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engine import Engine, Opening

from gen_durable import Context, Done, Finished, Machine, Next, Outcome, Retry, step
from gen_durable.engine import history_trimmer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_trimmer, "PAUSE", 0.01)


async def noted(n: int) -> int:
    return n


class Loop(Machine, history_keep=20):
    @step
    async def turn(self, n: int, ctx: Context) -> Outcome[int]:
        await ctx.run("noted", noted, n)
        return Next(self.turn, n - 1) if n else Next(self.rest, 0)

    @step
    async def rest(self, n: int, ctx: Context) -> Outcome[int]:
        await ctx.run("once", noted, n)
        return Retry(n, delay=3600)


class Parted(Loop, history_keep=20):
    """A claim for each step."""

    @step
    async def turn(self, n: int, ctx: Context) -> Outcome[int]:
        await ctx.run("noted", noted, n)
        return Next(self.turn, n - 1, delay=0.001) if n else Next(self.rest, 0)


class All(Machine, history_keep=None):
    @step
    async def turn(self, n: int, ctx: Context) -> Outcome[int]:
        return Next(self.turn, n - 1) if n else Done(0)


async def kept(e: Engine, table: str, id_: int) -> int:
    return int(await e.rows.value(f"select count(*) from @.{table} where instance_id = $1", id_))


@pytest.mark.parametrize("machine", [Loop, Parted])
async def test_the_history_of_an_instance_without_end_is_bounded(engine: Opening, machine: type[Loop]) -> None:
    """After 420 outcomes 20 are kept, and those that came since the last hundred; so are the activities."""
    async with engine() as e:
        options: dict[str, Any] = {"poll_interval": 0.05, "max_poll_interval": 0.05, "gc_interval": None}
        async with e.worker(machine(), **options):
            handle = await e.app.insert(machine.turn, 418)
            await e.rows.until(handle, seq=420, status="runnable")

            async def trimmed() -> bool:
                return await kept(e, "transitions", handle.id) <= 40 and await kept(e, "activities", handle.id) <= 42

            await e.rows.when(trimmed)
        history = await e.app.history(handle)
        assert [t.seq for t in history[-20:]] == list(range(401, 421))
        assert "once" in {call.name for call in await e.app.activities(handle)}


async def test_none_keeps_all(engine: Opening) -> None:
    async with engine() as e, e.worker(All()):
        handle = await e.app.insert(All.turn, 299)
        assert await e.end(handle) == Finished(handle.id, 0)
        await asyncio.sleep(0.1)
        assert [t.seq for t in await e.app.history(handle)] == list(range(1, 301))


async def test_a_history_that_cannot_be_trimmed_does_not_keep_the_others(
    engine: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger of the user refuses to delete transitions of one of three instances: the others are trimmed."""
    async with engine() as e, e.worker(Loop()) as worker:
        ids = [7001, 7002, 7003]
        await e.rows.fetch(
            "insert into @.instances (id, fsm, step, status, claims, seq, eligible_at) overriding system value "
            "select id, 'Loop', 'turn', 'runnable', 1, 50, now() + interval '1 day' from unnest($1::bigint[]) as id",
            ids,
        )
        await e.rows.fetch(
            "insert into @.transitions (instance_id, started_at, duration, seq, attempt, step, outcome) "
            "select id, now(), 0, n, 0, 'turn', 'Next' from unnest($1::bigint[]) as id, generate_series(1, 50) as n",
            ids,
        )
        await e.rows.connection.execute(f"""
            create function {e.rows.schema}_refuse() returns trigger language plpgsql as $$
            begin raise exception 'refused' using errcode = '23514'; end $$;
            create trigger refuse before delete on "{e.rows.schema}".transitions for each row
              when (old.instance_id = 7002) execute function {e.rows.schema}_refuse();
        """)
        assert worker._runtime is not None
        trimmer = worker._runtime._history_trimmer
        for id_ in ids:
            trimmer.request_trim(id_, 50, 20)

        async def trimmed() -> bool:
            return [await kept(e, "transitions", id_) for id_ in ids] == [20, 50, 20]

        await e.rows.when(trimmed)
        assert caplog.text.count("history trimmer: the database refuses a row") == 1
        await e.rows.connection.execute(f"drop function {e.rows.schema}_refuse cascade")
