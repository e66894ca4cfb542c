"""Cancelling what runs in other processes, and what nobody runs any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.processes import Spawn
from tests.support.programs.trees import Branch, Tree

from gen_durable import Cancelled, Durable, Worker


@asynccontextmanager
async def opened(dsn: str, schema: str) -> AsyncIterator[tuple[Durable, asyncpg.Connection[Any]]]:
    connection = await asyncpg.connect(dsn)
    try:
        async with Durable(dsn, schema=schema) as app:
            yield app, connection
    finally:
        await connection.close()


async def count(connection: asyncpg.Connection[Any], schema: str, where: str) -> int:
    return int(await connection.fetchval(f'select count(*) from "{schema}".instances where {where}'))


async def until(connection: asyncpg.Connection[Any], schema: str, where: str, least: int, within: float) -> None:
    """Wait until so many rows are as they should be."""
    deadline = time.monotonic() + within
    while (found := await count(connection, schema, where)) < least:
        assert time.monotonic() < deadline, f"{found} of {least} are {where}"
        await asyncio.sleep(0.02)


async def test_a_tree_of_a_thousand_while_four_processes_run_it(dsn: str, schema: str, spawn: Spawn) -> None:
    """10 x 10 x 10 leaves under a root, 80 of them at work: all have ended within 5 s, and nobody waits for them."""
    programs = [spawn("trees") for _ in range(4)]
    for program in programs:
        await program.until("ready")
    async with opened(dsn, schema) as (app, connection):
        handle = await app.insert(Tree.grow, Branch(3, 10))
        await until(connection, schema, "status = 'executing' and state ->> 'depth' = '0'", 60, 30)
        await until(connection, schema, "true", 1111, 30)
        began = time.monotonic()
        answer = await app.cancel(handle, reason="enough")
        assert 1000 <= answer.ended + answer.requested <= 1111
        await until(connection, schema, "status = 'cancelled'", 1111, 5 - (time.monotonic() - began))
        assert await handle.wait(timedelta(0)) == Cancelled(handle.id, "enough")
        assert await count(connection, schema, "children_pending <> 0 or last_error <> 'enough'") == 0
        cleaned = [line for program in programs for line in program.lines() if "cleaned" in line]
        assert 0 < len(cleaned) <= answer.requested  # the others had not begun
    for program in programs:
        assert program.terminate() == 0


async def test_a_tree_that_still_grows(dsn: str, schema: str, spawn: Spawn) -> None:
    """Cancelled while its branches are being started: not one is left, whatever was under way."""
    programs = [spawn("trees", CONCURRENCY="5") for _ in range(2)]
    for program in programs:
        await program.until("ready")
    async with opened(dsn, schema) as (app, connection):
        for pause in (0.0, 0.02, 0.05, 0.1):
            handle = await app.insert(Tree.grow, Branch(4, 4))
            await asyncio.sleep(pause)
            await app.cancel(handle)
            deadline = time.monotonic() + 5
            while await count(connection, schema, "finished_at is null"):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
        assert await count(connection, schema, "status <> 'cancelled'") == 0


async def test_a_worker_in_another_process_is_told_at_once(dsn: str, schema: str, spawn: Spawn) -> None:
    """Well under a second, with a heartbeat every five."""
    program = spawn("trees")
    async with opened(dsn, schema) as (app, _):
        handle = await app.insert(Tree.grow, Branch(0, 0), unique_key="tree")
        await program.until("leaf")
        began = time.monotonic()
        answer = await app.cancel("tree", reason="enough")
        assert (answer.ended, answer.requested) == (0, 1)
        assert await handle.wait(timedelta(seconds=2)) == Cancelled(handle.id, "enough")
        assert time.monotonic() - began < 1
        await program.until("cleaned")


async def test_the_worker_is_dead(dsn: str, schema: str, spawn: Spawn) -> None:
    """Killed with SIGKILL in the middle of a step: another's reaper ends the instance instead of running it again."""
    program = spawn("trees", LEASE="0.9")
    async with opened(dsn, schema) as (app, _):
        handle = await app.insert(Tree.grow, Branch(0, 0))
        await program.until("leaf")
        program.kill()
        answer = await handle.cancel(reason="enough")
        assert (answer.ended, answer.requested) == (0, 1)
        tree = Tree()
        async with Worker(app, machines=[tree], reap_interval=timedelta(seconds=0.1)):
            assert await handle.wait(timedelta(seconds=10)) == Cancelled(handle.id, "enough")
        assert (await handle.get()).crashes == 1


async def test_who_cancels_dies_in_the_middle(
    dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first statement of a cancel came to pass: the next worker carries the rest on."""
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    async with opened(dsn, schema) as (app, connection):
        handle = await app.insert(Tree.grow, Branch(2, 5))
        async with Worker(app, machines=[Tree()], queues={"default": 3}, drain_timeout=timedelta(0)):
            await until(connection, schema, "true", 6, 10)
        assert await connection.fetchval(f'select "{schema}".cancel($1::bigint, $2)', handle.id, "enough") == "ended"
        assert await count(connection, schema, "finished_at is null") > 0
        async with Worker(app, machines=[Tree()], reap_interval=timedelta(seconds=0.1)):
            deadline = time.monotonic() + 10
            while await count(connection, schema, "finished_at is null"):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
        assert await count(connection, schema, "status <> 'cancelled'") == 0
