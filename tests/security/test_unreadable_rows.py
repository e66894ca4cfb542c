"""Rows that Python cannot read, as a table writer or a newer version may leave them: one bad row, never a lost page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.engine import Engine, Opening
from typer.testing import CliRunner

from gen_durable import Await, Context, Done, Durable, Finished, Machine, Outcome, Signal, job, step
from gen_durable.cli.app import app as cli
from gen_durable.errors import InputError
from gen_durable.instances import Status
from gen_durable.store.python_range_times import EARLIEST, LATEST

TIMES = {"20000-01-01": LATEST, "4000-01-01 BC": EARLIEST, "infinity": LATEST, "-infinity": EARLIEST}
DEEP = "(repeat('[', 5000) || repeat(']', 5000))::jsonb"
INSTANCE_TIMES = ("eligible_at", "inserted_at", "updated_at", "started_at", "await_deadline", "token_at")
OTHER_TIMES = {
    "signals": "inserted_at",
    "transitions": "started_at",
    "activities": "started_at",
    "checkpoints": "updated_at",
    "progress": "updated_at",
}
go = Signal("go", int)


def one() -> int:
    return 1


class Told(Machine, history="states"):
    """Leaves a row in every table, and waits."""

    @step
    async def begin(self, state: int, ctx: Context) -> Outcome[int]:
        ctx.progress(0.5)
        await ctx.run("one", one)
        return Await(go, then=self.end, state=state, timeout=3600)

    @step
    async def end(self, state: int, ctx: Context) -> Outcome[int]:
        return Done(ctx.take(go) or state)


@job
async def plain(state: int) -> int:
    return state


async def read_all(app: Durable, instance: int) -> None:
    """Every read of the client finds the instance and its neighbour."""
    for payloads in (False, True):
        page = await app.list(payloads=payloads)
        assert [found.id for found in page.instances] == [instance + 1, instance]
        assert isinstance(page.instances[1].metadata, dict)
    assert (await app.get(instance)).id == instance
    reads: tuple[Callable[..., Awaitable[Any]], ...] = (app.history, app.activities, app.progress, app.signals)
    for read in reads:
        assert await read(instance)
    await app.checkpoint(instance)
    await app.rejected_signals()
    assert (await app.count()).value == 2


async def run_commands(dsn: str, schema: str, instance: int) -> None:
    """Every command that reads shows it."""
    number = str(instance)
    for command in (
        ["ls"],
        ["ls", "--json"],
        ["show", number],
        ["show", number, "--json", "--state"],
        ["history", number],
        ["signals", number],
    ):
        done = await asyncio.to_thread(CliRunner().invoke, cli, [*command, "--dsn", dsn, "--schema", schema])
        assert done.exit_code == 0, (command, done.output, done.exception)


async def given_instances(e: Engine) -> int:
    async with e.worker(Told()):
        handle = await e.app.insert(Told.begin, 0, metadata={"a": 1})
        await e.rows.until(handle, status="awaiting_signal")
    neighbour = await e.app.insert(plain, 2)
    await e.app.signal(handle.id, go, 5)
    await e.rows.fetch(
        "insert into @.checkpoints (instance_id, visit, version, format, value) select id, visit, 1, 1, '1' "
        "from @.instances where id = $1",
        handle.id,
    )
    assert neighbour.id == handle.id + 1
    return handle.id


@pytest.mark.dirty
async def test_a_bad_value_spoils_no_other_row(engine: Opening, dsn: str, schema: str) -> None:
    """Each column, one at a time: reads go on, the instance names its problem, and the commands show it."""
    async with engine() as e:
        instance = await given_instances(e)
        for column in INSTANCE_TIMES:
            for bad, shown in TIMES.items():
                await e.rows.fetch(f"update @.instances set {column} = '{bad}' where id = $1", instance)
                await read_all(e.app, instance)
                found = await e.app.get(instance)
                if column != "await_deadline":  # shown for waiting rows
                    assert getattr(found, column) == shown
                    assert f"{column} is outside of the years 1 to 9999" in found.problems
            if column in ("eligible_at", "inserted_at"):
                await run_commands(dsn, schema, instance)
            reset = "null" if column in ("started_at", "await_deadline", "token_at") else "now()"
            await e.rows.fetch(f"update @.instances set {column} = {reset} where id = $1", instance)
        for table, column in OTHER_TIMES.items():
            for bad in TIMES:
                owner = "target_id" if table == "signals" else "instance_id"
                await e.rows.fetch(f"update @.{table} set {column} = '{bad}' where {owner} = $1", instance)
                await read_all(e.app, instance)
        await run_commands(dsn, schema, instance)
        assert (await e.app.get(instance)).problems == ()

        for metadata in ("'[1]'", "'\"x\"'", f"jsonb_build_object('a', {DEEP})"):
            await e.rows.fetch(f"update @.instances set metadata = {metadata}, state = {DEEP} where id = $1", instance)
            await read_all(e.app, instance)
            found = await e.app.get(instance)
            assert (found.metadata, found.problems) == ({}, ("metadata is not a readable object",))
            with pytest.raises(Exception, match="the stored JSON cannot be read"):
                _ = found.state
        await run_commands(dsn, schema, instance)


@pytest.mark.dirty
async def test_a_status_of_a_newer_version_is_unknown(engine: Opening, dsn: str, schema: str) -> None:
    """It is read and shown, and is no filter."""
    async with engine() as e:
        instance = await given_instances(e)
        await e.rows.fetch("alter type @.durable_status add value 'paused'")
        await e.rows.fetch("update @.instances set status = 'paused' where id = $1", instance)
        await read_all(e.app, instance)
        found = await e.app.get(instance)
        assert (found.status, found.status.terminal) == (Status.UNKNOWN, False)
        assert found.problems == ("status 'paused' is unknown to this version of gen_durable",)
        await run_commands(dsn, schema, instance)
        with pytest.raises(InputError, match="'unknown' is not stored"):
            await e.app.list(status="unknown")


@pytest.mark.dirty
@pytest.mark.parametrize(
    "bad",
    [
        *(f"update @.instances set eligible_at = '{time}' where id = $1" for time in TIMES),
        *(f"update @.signals set inserted_at = '{time}' where target_id = $1" for time in TIMES),
        *(f"update @.instances set await_deadline = '{time}' where id = $1" for time in TIMES),
        f"update @.instances set state = {DEEP} where id = $1",
    ],
)
async def test_a_worker_runs_the_others(engine: Opening, bad: str) -> None:
    """A pick that meets the row goes on with its neighbours."""
    async with engine() as e:
        instance = await given_instances(e)
        await e.rows.fetch(bad, instance)
        later = [await e.app.insert(plain, n) for n in range(3)]
        async with e.worker(Told(), plain):
            for handle in later:
                assert isinstance(await e.end(handle), Finished)
