"""What the tests of limits share: looks at the executing rows, and at what executions have written down.

`make limits-long` runs the same tests for longer and holds them to the numbers that are promised; in the ordinary
suite, where others use the same two cores, they are short and the bounds on time are wide.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg
from tests.support.programs.limits import EFFECTS

from gen_durable import Durable

LONG = bool(os.environ.get("LIMITS_LONG"))
PATIENCE = 60.0


def chosen(long: float, short: float) -> float:
    """How long, by the form in which the tests run."""
    return long if LONG else short


@dataclass
class Database:
    """The test's schema, past the engine. `@schema` stands for it."""

    connection: asyncpg.Connection[Any]
    schema: str

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        return list(await self.connection.fetch(sql.replace("@schema", self.schema), *args))

    async def value(self, sql: str, *args: object) -> Any:
        return (await self.fetch(sql, *args))[0][0]

    async def until(self, sql: str, value: object) -> None:
        """Ask until the answer is this."""
        found: object = None
        try:
            async with asyncio.timeout(PATIENCE):
                while (found := await self.value(sql)) != value:  # noqa: ASYNC110  # there is no event to wait for
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"not {value!r} but {found!r}: {sql}") from None


@asynccontextmanager
async def database(dsn: str, schema: str) -> AsyncIterator[Database]:
    connection = await asyncpg.connect(dsn)
    try:
        yield Database(connection, schema)
    finally:
        await connection.close()


@asynccontextmanager
async def opened(dsn: str, schema: str) -> AsyncIterator[tuple[Durable, Database]]:
    """A client, the rows, and a table for effects."""
    async with database(dsn, schema) as db, Durable(dsn, schema=schema) as app:
        await db.fetch(EFFECTS)
        yield app, db


@dataclass
class Samples:
    """What was seen of the executing rows, every 20 ms."""

    most: Counter[str] = field(default_factory=Counter)
    leases: dict[tuple[int, int], datetime] = field(default_factory=dict)
    looks: int = 0

    def note(self, rows: list[Any]) -> None:
        self.looks += 1
        self.most |= Counter(row["slot_key"] for row in rows)
        self.leases |= {(row["id"], row["claims"]): row["lease_expires_at"] for row in rows}


@asynccontextmanager
async def sampled(dsn: str, schema: str, note: Callable[[list[Any]], None]) -> AsyncIterator[None]:
    """Look at the rows that execute under a concurrency limit, every 20 ms."""
    sql = (
        "select id, claims, slot_key, lease_expires_at, updated_at from @schema.instances"
        " where status = 'executing' and slot_key is not null"
    )

    async def look(db: Database) -> None:
        while True:
            note(await db.fetch(sql))
            await asyncio.sleep(0.02)

    async with database(dsn, schema) as db:
        task = asyncio.create_task(look(db))
        try:
            yield
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.wait([task])


async def overlaps(db: Database, leases: dict[tuple[int, int], datetime]) -> dict[str, int]:
    """By key, how many executions were alive at once, at most. One that was killed ends at its lease as last seen."""
    began: dict[tuple[int, int], tuple[str, datetime]] = {}
    ended: dict[tuple[int, int], datetime] = {}
    for row in await db.fetch("select key, id, claim, word, at from @schema.effects"):
        if row["word"] == "begin":
            began[row["id"], row["claim"]] = (row["key"], row["at"])
        else:
            ended[row["id"], row["claim"]] = row["at"]
    turns: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for claim, (key, at) in began.items():
        lease = leases.get(claim)
        ends = [moment for moment in (ended.get(claim), lease) if moment is not None]
        turns[key] += [(at, 1), (max(min(ends, default=at), at), -1)]
    most: dict[str, int] = {}
    for key, several in turns.items():
        alive = 0
        for _, change in sorted(several):  # an end comes before a beginning of the same moment
            alive += change
            most[key] = max(most.get(key, 0), alive)
    return most
