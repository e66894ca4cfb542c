"""`ls`, `show` and `count` say truly what an instance waits for, and whether it fails."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.commands import CommandServer, environment
from tests.support.engine import NEVER, Opening

from gen_durable import Context, Done, Fail, Machine, Outcome, Rate, Retry, ScheduleChildren, Start, job, step
from gen_durable.errors import InputError

Show = Callable[..., Any]
mends: list[int] = []


@job
async def quick(n: int) -> int:
    return n


class Joins(Machine):
    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        children = [Start(quick, 1)] + [Start(quick, n, queue="unserved") for n in (2, 3)]
        return ScheduleChildren(children, then=self.end, state=n, join=2)

    @step
    async def end(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)


class Fails(Machine):
    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n) if mends else Fail("no luck")


class Wobbles(Machine):
    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        raise RuntimeError("still no luck")

    async def on_error(self, n: Any, ctx: Context, error: Exception) -> Outcome[int]:
        return Retry(n, delay=3600)


@pytest.fixture
def command(tmp_path: Path, command_server: CommandServer, dsn: str, schema: str) -> Show:
    """Run a command on this test's schema, while the event loop goes on."""

    async def run(*arguments: str) -> str:
        options = ("--dsn", dsn, "--schema", schema)
        done: subprocess.CompletedProcess[str] = await asyncio.to_thread(
            command_server.run, tmp_path, [*arguments, *options], environment()
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


async def test_a_join_says_how_many_children_it_still_needs(engine: Opening, command: Show) -> None:
    """Of two out of three, one is done: one more of the two that are left."""
    async with engine() as e, e.worker(Joins(), quick):
        handle = await e.app.insert(Joins.begin, 1)
        await e.rows.until(handle, status="awaiting_children", children_pending=2)
        assert "awaiting_children, waits for 1 more of 2 pending children" in await command("show", str(handle.id))
        assert "waits for 1 more of 2 pending children" in await command("ls", "-m", "Joins")
        found = json.loads(await command("show", str(handle.id), "--json"))
        assert (found["children_pending"], found["children_needed"]) == (2, 1)


async def test_rows_that_wait_for_a_rate_are_not_due(engine: Opening, command: Show) -> None:
    """The next one says when its token is expected, those behind it that they come later."""
    async with engine() as e:
        await e.app.set_limit("mail", Rate(1, NEVER))
        handles = [await e.app.insert(quick, n, limit="mail") for n in range(3)]
        async with e.worker(quick):
            await e.end(handles[0])
            await e.rows.when(lambda: _has_token_time(e, handles[1].id))
        assert await command("count", "--due") == "0\n"
        assert await command("count", "--blocked") == "1\n"
        _, second, first = (await command("ls", "-s", "runnable")).splitlines()
        assert re.search(r"rate limit mail, expected in (1h|59m|60m)", first)
        assert "rate limit mail, expected after the instances before it" in second
        shown = await command("show", str(handles[1].id))
        assert re.search(r"runnable, rate limit mail, expected in ", shown)
        assert re.search(r"may run .*\(in ", shown)
        assert "may run" not in await command("show", str(handles[2].id))


async def _has_token_time(e: Any, instance: int) -> bool:
    return (await e.rows.row(instance))["token_at"] is not None


async def test_the_error_of_a_retried_instance_is_a_previous_one(engine: Opening, command: Show) -> None:
    """Until it fails again, or progresses."""
    mends.clear()
    async with engine() as e:
        async with e.worker(Fails()):
            handle = await e.app.insert(Fails.begin, 1)
            await e.end(handle)
        assert re.search(r"^error +no luck *$", await command("show", str(handle.id)), re.MULTILINE)
        assert not (await handle.get()).has_previous_error
        await handle.retry()
        assert re.search(r"^previous error +no luck *$", await command("show", str(handle.id)), re.MULTILINE)
        assert "previous error: no luck" in await command("ls")
        assert json.loads(await command("show", str(handle.id), "--json"))["has_previous_error"] is True
        mends.append(1)
        async with e.worker(Fails()):
            await e.end(handle)
        assert "error" not in await command("show", str(handle.id), "-n", "0")


async def test_the_error_of_an_instance_that_is_tried_again_is_its_error(engine: Opening, command: Show) -> None:
    """Of a step that raised, and of a row that a worker has put back."""
    async with engine() as e:
        async with e.worker(Wobbles()):
            handle = await e.app.insert(Wobbles.begin, 1)
            await e.rows.until(handle, attempt=1, status="runnable")
        assert re.search(r"^error +.*still no luck", await command("show", str(handle.id)), re.MULTILINE)
        await e.rows.fetch(
            "update @.instances set step_errors = 0, postponements = 1, last_error = 'cannot run here' where id = $1",
            handle.id,
        )
        assert re.search(r"^error +cannot run here", await command("show", str(handle.id)), re.MULTILINE)


async def test_a_count_of_nothing_is_0(dsn: str, schema: str, command: Show) -> None:
    """Exactly, also on a table that is too large to count: the estimate would be about 1."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            f"insert into {schema}.instances (fsm, step, queue) select 'm', 's', 'q' || n % 3 "  # type: ignore[arg-type]
            "from generate_series(1, 30000) n".encode()
        )
        connection.execute(f"analyze {schema}.instances".encode())
    assert await command("count", "--queue", "none") == "0\n"
    assert json.loads(await command("count", "--queue", "none", "--json")) == {"value": 0, "exact": True}
    assert (await command("count", "--queue", "q1")).startswith("about ")


async def test_errors_that_are_encrypted_cannot_be_searched(engine: Opening) -> None:
    """A sentence instead of an empty list."""
    from tests.security.test_codec import aes

    async with engine(codec=aes()) as e:
        for call in (e.app.list(error="x"), e.app.count(error="x")):
            with pytest.raises(InputError, match="encrypted"):
                await call
