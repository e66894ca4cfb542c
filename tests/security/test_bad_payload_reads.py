"""Stored payloads that cannot be read: each is blamed on its own row, with an error of this library."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.security.test_codec import aes
from tests.support.canaries import Secret, told
from tests.support.engine import BRIEF, Engine, Opening, seconds
from tests.support.stored_payloads import DEEP, MACHINES, Clerk, until_resting
from typer.testing import CliRunner

from gen_durable import Finished, Handle
from gen_durable.cli.app import app as cli
from gen_durable.errors import DecodeError
from gen_durable.telemetry import StateUndecodable

pytestmark = pytest.mark.dirty
POLLED: dict[str, Any] = BRIEF | {"poll_interval": seconds(0.1), "max_poll_interval": seconds(0.1)}
LONG = Secret("good" * 30_000)


async def resting(e: Engine, state: Secret) -> Handle[Secret]:
    """An instance with a journal, whose step is due again in an hour."""
    async with e.worker(*MACHINES, **POLLED):
        handle = await e.app.insert(Clerk.begin, state)
        await until_resting(e, handle)
    return handle


async def last_error_of_next_run(e: Engine, handle: Handle[Any]) -> str:
    """The reason for which the claim was put back."""
    await e.rows.fetch("update @.instances set eligible_at = now(), last_error = null where id = $1", handle.id)
    async with e.worker(*MACHINES, **POLLED):
        await e.rows.when(lambda: has_error(e, handle.id))
    found = await e.app.get(handle.id)
    assert found.status == "runnable"
    return found.last_error or ""


async def has_error(e: Engine, instance: int) -> bool:
    return (await e.rows.row(instance))["last_error"] is not None


async def test_large_activities_that_cannot_be_decrypted(engine: Opening) -> None:
    """The page with the bad result is not an error of the engine."""
    async with engine(codec=aes()) as e:
        handle = await resting(e, LONG)
        bad = "update @.activities set result = '\"encrypted:1:AAAA\"' where instance_id = $1 and name = 'charge'"
        await e.rows.fetch(bad, handle.id)
        error = await last_error_of_next_run(e, handle)
    assert "activity/0/charge/result cannot be decoded" in error
    assert "engine" not in error


async def test_a_parent_does_not_run_with_a_result_that_cannot_be_decrypted(engine: Opening) -> None:
    """It is put back with the reason, and runs when the result is what it was."""
    async with engine(codec=aes()) as e, e.worker(*MACHINES, **POLLED):
        parent = await e.app.insert(Clerk.begin, Secret("good"))
        await until_resting(e, parent)
        await e.rows.fetch("update @.instances set eligible_at = now() where id = $1", parent.id)
        await e.rows.until(parent, status="awaiting_children", children_pending=1)
        spoil = "update @.instances set result = '\"encrypted:1:AAAA\"' where parent_id = $1 and status = 'done'"
        done = "select id, result from @.instances where parent_id = $1 and status = 'done'"
        (kept,) = await e.rows.fetch(done, parent.id)
        await e.rows.fetch(spoil, parent.id)
        slow = await e.rows.value("select id from @.instances where parent_id = $1 and fsm = 'Slow'", parent.id)
        await e.app.signal(slow, told, Secret("good"))
        (event,) = await e.seen.until(StateUndecodable)
        assert (event.id, "its result cannot be decoded" in event.error) == (parent.id, True)
        await e.rows.fetch("update @.instances set result = $2 where id = $1", kept[0], kept[1])
        await e.rows.fetch("update @.instances set eligible_at = now() where id = $1", parent.id)
        assert await e.end(parent) == Finished(parent.id, Secret("good"))


async def test_large_activities_beside_a_deep_checkpoint(engine: Opening) -> None:
    """The checkpoint is decoded with the list of activities: neither is an error of the engine."""
    async with engine() as e:
        handle = await resting(e, LONG)
        await e.rows.fetch("update @.checkpoints set value = $2::text::jsonb where instance_id = $1", handle.id, DEEP)
        error = await last_error_of_next_run(e, handle)
    assert error.startswith("RecursionError")


@pytest.mark.parametrize("stored", ["5", "[1, 2]", '[["a", 1]]', '"text"', "null", "{}"])
async def test_parameters_that_are_no_object(engine: Opening, stored: str) -> None:
    """`Activity.parameters` raises `DecodeError`; a list of pairs is no object either."""
    async with engine() as e:
        handle = await resting(e, Secret("good"))
        await e.rows.fetch(
            "update @.activities set parameters = $2::text::jsonb where instance_id = $1", handle.id, stored
        )
        for activity in await e.app.activities(handle.id):
            if stored == "{}":
                assert activity.parameters == {}
            else:
                with pytest.raises(DecodeError, match="are not an object"):
                    _ = activity.parameters


@pytest.mark.parametrize("stored", [DEEP, "9" * 5000, '{"a": ' + "1" * 4400 + "}"])
async def test_commands_show_a_payload_that_python_cannot_read(
    engine: Opening, dsn: str, schema: str, stored: str
) -> None:
    """`show --json` says so in its place, and is JSON."""
    async with engine() as e:
        handle = await e.app.insert(Clerk.begin, Secret("good"))
        await e.rows.fetch("update @.instances set state = $2::text::jsonb where id = $1", handle.id, stored)
    arguments = ["show", str(handle.id), "--json", "--state", "--dsn", dsn, "--schema", schema]
    done = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert done.exit_code == 0, done.exception
    assert "cannot be read" in json.loads(done.output)["state"]
