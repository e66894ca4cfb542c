"""Random JSON, bytes and foreign envelopes in every payload column: one bad row, and no other is stopped or hidden.

`make test-long` runs ten times as many, with another seed; FUZZ_SEED=7 repeats one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.security.test_codec import aes
from tests.support.canaries import Secret, told
from tests.support.engine import BRIEF, Engine, Opening, seconds
from tests.support.length import short_or_long
from tests.support.stored_payloads import (
    COLUMNS,
    MACHINES,
    BadValue,
    BadValues,
    Clerk,
    Slow,
    quick,
    store,
    stored_values,
    until_resting,
)
from typer.testing import CliRunner

from gen_durable import Finished, Handle
from gen_durable.cli.app import app as cli
from gen_durable.core.services import services_of
from gen_durable.errors import GenDurableError, NoTarget
from gen_durable.operations.reencrypt import reencrypt
from gen_durable.store.reencrypt import PAYLOAD_TABLES

pytestmark = [pytest.mark.scaled, pytest.mark.dirty]
EACH = short_or_long(2, 40)  # bad values for each column, at each time
POLLED: dict[str, Any] = BRIEF | {"poll_interval": seconds(0.1), "max_poll_interval": seconds(0.1)}
SEED = int(os.environ.get("FUZZ_SEED") or short_or_long(1, 2))
PLACES = [(table, column) for table, columns in COLUMNS.items() for column in columns]
RESTING = [
    (table, column) for table, column in PLACES if table != "signals" and (table, column) != ("instances", "result")
]
OF_CHILD = [("instances", column) for column in COLUMNS["instances"]]


async def test_the_columns_are_all_of_the_schema(engine: Opening) -> None:
    """A new column of JSON joins the list."""
    assert set(COLUMNS) == set(PAYLOAD_TABLES)
    async with engine() as e:
        found = await e.rows.fetch(
            "select table_name, column_name from information_schema.columns "
            "where table_schema = $1 and data_type = 'jsonb' and table_name in "
            "(select table_name from information_schema.tables where table_type = 'BASE TABLE' and table_schema = $1)",
            e.rows.schema,
        )
    listed = {(t, c) for t, columns in COLUMNS.items() for c, kind in columns.items() if kind == "jsonb"}
    assert {(row[0], row[1]) for row in found} == listed | {("limits", "declared")}


class Readers:
    """Every read of a client, and what it raised that is not an error of this library."""

    def __init__(self, e: Engine) -> None:
        self._e = e
        self.wrong: list[str] = []

    async def read(self, bad: BadValue, handle: Handle[Any]) -> None:
        """Read one instance in every way, and look at each payload of what came."""
        app = self._e.app
        calls: tuple[Callable[[], Awaitable[Any]], ...] = (
            lambda: app.get(handle.id),
            lambda: app.history(handle.id),
            lambda: app.activities(handle.id),
            lambda: app.checkpoint(handle.id),
            lambda: app.progress(handle.id),
            lambda: app.signals(handle.id, payloads=True),
            lambda: handle.wait(seconds(0)),
            lambda: handle.result(seconds(0)),
        )
        for call in calls:
            found = await self._guard(bad, call)
            for one in found if isinstance(found, list) else [found]:
                self.look(bad, one)

    def look(self, bad: BadValue, one: Any) -> None:
        """Each property that decodes something."""
        for name in ("state", "result", "metadata", "parameters", "value", "detail", "payload", "last_error", "error"):
            try:
                getattr(one, name, None)
            except GenDurableError:
                pass
            except Exception as error:
                self._add(bad, f"{type(one).__name__}.{name}", error)

    async def _guard(self, bad: BadValue, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except GenDurableError:
            return None
        except Exception as error:
            self._add(bad, "a read", error)
            return None

    def _add(self, bad: BadValue, what: str, error: Exception) -> None:
        self.wrong.append(
            f"{bad.table}.{bad.column} {bad.kind} {bad.text[:60]}: {what}: {type(error).__name__} {error}"
        )


async def read_pages(e: Engine, good: Sequence[int], readers: Readers) -> None:
    """Lists have every row, and those that were not touched are as they were."""
    ids = [row[0] for row in await e.rows.fetch("select id from @.instances order by id desc")]
    for payloads in (False, True):
        found = [one async for one in e.app.list_all(payloads=payloads)]
        assert [one.id for one in found] == ids
        for one in found:
            readers.look(BadValue("instances", "?", "listed", ""), one)
        if payloads:
            assert [one.state["text"][:4] for one in found if one.id in good] == ["good"] * len(good)
    assert (await e.app.count()).value == len(ids)


async def wake(e: Engine, ids: Sequence[int]) -> None:
    await e.rows.fetch("update @.instances set eligible_at = now() where id = any ($1::bigint[])", ids)


@pytest.mark.parametrize("has_codec", [False, True])
@pytest.mark.parametrize("size", [(4, EACH), pytest.param((52_000, 8), marks=pytest.mark.long)])
async def test_every_column(engine: Opening, dsn: str, schema: str, has_codec: bool, size: tuple[int, int]) -> None:
    """At rest, in the join of a parent and after the end. Witnesses that were not touched end as they should.

    Long payloads do not come with the claim: the worker reads them page by page.
    """
    length, each = size
    codec = aes() if has_codec else None
    good = Secret("good" * (length // 4))
    chance = random.Random(SEED)
    values = BadValues(chance, schema, codec, aes(key=bytes(32)))
    given: list[tuple[BadValue, Handle[Any]]] = []
    async with engine(codec=codec) as e:
        readers = Readers(e)

        async def spoil(handle: Handle[Any], instance: int, place: tuple[str, str], stored: Sequence[str]) -> None:
            bad = values.draw(*place, stored)
            await store(e, instance, bad)
            given.append((bad, e.app.handle(instance, Clerk.begin)))

        async def insert(count: int) -> list[Handle[Any]]:
            return [await e.app.insert(Clerk.begin, good, metadata={"a": 1}) for _ in range(count)]

        async with e.worker(*MACHINES, queues={"default": 16}, **POLLED):
            at_rest = await insert(each * len(RESTING))
            in_join = await insert(each * (len(OF_CHILD) + 1))
            at_end = await insert(each * len(PLACES))
            witnesses = await insert(3)
            healthy = [*in_join, *at_end, *witnesses]
            for handle in (*at_rest, *healthy):
                await until_resting(e, handle)
            stored = await stored_values(e)
            for n, handle in enumerate(at_rest):
                await spoil(handle, handle.id, RESTING[n % len(RESTING)], stored)
            await wake(e, [handle.id for handle in (*at_rest, *healthy)])
            for handle in healthy:
                await e.rows.until(handle, status="awaiting_children", children_pending=1)
            children = {
                row["parent_id"]: (row["quick"], row["slow"])
                for row in await e.rows.fetch(
                    "select parent_id, min(id) filter (where fsm = 'quick') as quick, min(id) filter "
                    "(where fsm = 'Slow') as slow from @.instances where parent_id is not null group by 1"
                )
            }
            for n, handle in enumerate(in_join):
                first, second = children[handle.id]
                if n % (len(OF_CHILD) + 1) < len(OF_CHILD):
                    await spoil(handle, first, OF_CHILD[n % (len(OF_CHILD) + 1)], stored)
                else:
                    bad = values.draw("signals", "payload", stored)
                    await e.rows.fetch("select @.signal($1::bigint, 'told', $2::text::jsonb)", second, bad.text)
                    given.append((bad, e.app.handle(second, Slow.wait)))
            for handle in in_join:
                with contextlib.suppress(NoTarget):  # the signal before could be read
                    await e.app.signal(children[handle.id][1], told, good)
            for handle in (*at_end, *witnesses):
                await e.app.signal(children[handle.id][1], told, good)
                assert await e.end(handle) == Finished(handle.id, good)
            for n, handle in enumerate(at_end):
                await spoil(handle, handle.id, PLACES[n % len(PLACES)], stored)
            last = await e.app.insert(quick, good)
            assert await e.end(last) == Finished(last.id, good)
            await asyncio.gather(*(readers.read(bad, handle) for bad, handle in given))
            await read_pages(e, [handle.id for handle in witnesses] + [last.id], readers)
            await wake(e, [handle.id for handle in at_rest])
            again = await insert(1)
            await until_resting(e, again[0])
        await read_commands(dsn, schema, chance.sample(given, short_or_long(6, 60)), readers)
        if codec is not None:
            async for _ in reencrypt(services_of(e.app), batch=100, patience_seconds=0, encrypt_clear=False):
                pass
        assert readers.wrong == [], f"seed {SEED}"
        blamed = "select distinct last_error from @.instances where last_error like 'an error of the engine%'"
        assert [row[0] for row in await e.rows.fetch(blamed)] == [], f"seed {SEED}"


async def read_commands(dsn: str, schema: str, given: Sequence[tuple[BadValue, Handle[Any]]], readers: Readers) -> None:
    for bad, handle in given:
        number = str(handle.id)
        for command in (["show", number, "--state", "--json"], ["show", number, "--state"], ["history", number]):
            arguments = [*command, "--dsn", dsn, "--schema", schema]
            done = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
            if done.exit_code != 0:
                readers.wrong.append(f"{bad}: {command} {done.output} {done.exception!r}")
