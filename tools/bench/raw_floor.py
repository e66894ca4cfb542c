"""The raw floor: the least that a queue of durable rows costs on this server, whatever library is on top.

One narrow table with two indexes and one statement for each thing that has to be: claim rows by `ctid`, update the
state of a step, finish rows by id. One connection, one statement after the other, in batches; no fence, machines,
priorities beyond the order of the index, signals, children, limits or history. The table and the statements are fixed:
a change of the engine or of its SQL moves the ratio to the floor, never the floor itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg

from gen_durable import Durable
from gen_durable.core.services import services_of
from gen_durable.pg.connector import connect_to_first_usable_host
from tools.bench.process_main import Parent
from tools.bench.processes import Run, run_until
from tools.bench.server import Server
from tools.bench.throughput import Role
from tools.bench.work import CHAIN

BATCH: Final = 200  # as the bare ceiling
LEASE: Final = "15 s"
VALUE: Final = "1"
TABLE: Final = "raw_floor_rows"
DRAIN: Final = f"{__name__}:drain"
CHAINS: Final = f"{__name__}:chain"
FAN: Final = f"{__name__}:fan"
INSERTS: Final = f"{__name__}:insert"

# `fillfactor` as in the table of the engine, so that the updates of a step find space on the page of their row.
CREATE: Final = """
create table {table} (
  id bigint generated always as identity primary key,
  due_at timestamptz not null default now(),
  lease timestamptz,
  priority smallint not null default 0,
  status smallint not null default 0,
  queue text not null,
  state jsonb not null,
  result jsonb
) with (fillfactor = 60);
create index on {table} (queue, priority, due_at, id) where status = 0;
"""
FILL: Final = "insert into {table} (queue, state) select $1, $2::jsonb from generate_series(1, $3::int)"
INSERT: Final = "insert into {table} (queue, state) select * from unnest($1::text[], $2::jsonb[]) returning id"
CLAIM: Final = """
update {table} set status = 1, lease = now() + interval '{lease}'
where ctid = any (array(
  select ctid from {table} where queue = $1 and status = 0 and due_at <= now()
  order by priority, due_at, id limit $2 for update skip locked))
returning id, state
"""
UPDATE_STATE: Final = """
update {table} as t set state = step.state
from unnest($1::bigint[], $2::jsonb[]) as step (id, state) where t.id = step.id
"""
FINISH: Final = """
update {table} as t set status = 2, lease = null, result = ended.result
from unnest($1::bigint[], $2::jsonb[]) as ended (id, result) where t.id = ended.id
"""


class RawTable:
    """The table of the floor, on one connection of the library's driver."""

    def __init__(self, app: Durable, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self._table = f'"{services_of(app).statements.schema.name}".{TABLE}'

    @classmethod
    async def connect(cls, app: Durable) -> RawTable:
        """Open a connection of its own."""
        return cls(app, (await connect_to_first_usable_host(services_of(app).connection_target)).driver_connection)

    async def create(self) -> None:
        await self._connection.execute(CREATE.format(table=self._table))

    async def fill(self, queue: str, count: int) -> None:
        """Insert due rows within the server."""
        await self._connection.execute(FILL.format(table=self._table), queue, VALUE, count)

    async def analyze(self) -> None:
        await self._connection.execute(f"analyze {self._table}")

    async def insert(self, count: int) -> None:
        """Insert due rows in one statement."""
        await self._connection.fetch(INSERT.format(table=self._table), ["default"] * count, [VALUE] * count)

    async def claim(self, queue: str, limit: int) -> list[int]:
        """Claim due rows. Returns their ids, in order."""
        rows = await self._connection.fetch(CLAIM.format(table=self._table, lease=LEASE), queue, limit)
        return sorted(row[0] for row in rows)

    async def update_state(self, ids: list[int]) -> None:
        """Write the state of a step."""
        await self._connection.fetch(UPDATE_STATE.format(table=self._table), ids, [VALUE] * len(ids))

    async def finish(self, ids: list[int]) -> None:
        """Write the results."""
        await self._connection.fetch(FINISH.format(table=self._table), ids, [VALUE] * len(ids))


def floor_case(server: Server, count: int, *roles: Role) -> Callable[[], Awaitable[Run]]:
    """A case: roles that run `count` rows in each queue that they name to their end."""
    queues = sorted({str(arguments.get("queue", "default")) for _, arguments in roles})

    async def run() -> Run:
        async with server.app() as app:
            table = RawTable(app, server.admin)
            await table.create()
            for queue in queues:
                await table.fill(queue, count)
            await table.analyze()
            return await run_until(server, app, list(roles), count * len(queues))

    return run


def floor_insert_case(server: Server, role: str, ended: int, **arguments: object) -> Callable[[], Awaitable[Run]]:
    """A case: a role that inserts its rows itself and reports `ended` of them."""

    async def run() -> Run:
        async with server.app() as app:
            await RawTable(app, server.admin).create()
            return await run_until(server, app, [(role, arguments)], ended)

    return run


async def drain(parent: Parent, app: Durable, *, queue: str = "default") -> None:
    """A role: claim, finish, and again."""
    table = await RawTable.connect(app)
    count, at = 0, 0.0
    await parent.wait_for_start()
    while ids := await table.claim(queue, BATCH):
        await table.finish(ids)
        count += len(ids)
        at = time.monotonic()
    parent.report(count, at)
    await parent.wait_for_stop()


async def chain(parent: Parent, app: Durable) -> None:
    """A role: five steps under one claim; each but the last updates the state, the last finishes the row."""
    table = await RawTable.connect(app)
    count, at = 0, 0.0
    await parent.wait_for_start()
    while ids := await table.claim("default", BATCH):
        for _ in CHAIN[1:]:
            await table.update_state(ids)
        await table.finish(ids)
        count += len(ids)
        at = time.monotonic()
    parent.report(count, at)
    await parent.wait_for_stop()


async def fan(parent: Parent, app: Durable, *, children: int) -> None:
    """A role: one row, then as many as it has children, all claimed and finished; there is no join."""
    table = await RawTable.connect(app)
    await parent.wait_for_start()
    await table.insert(1)
    await table.update_state(await table.claim("default", 1))
    await table.insert(children)
    count = 1
    while ids := await table.claim("default", BATCH):
        await table.finish(ids)
        count += len(ids)
    parent.report(count, time.monotonic())
    await parent.wait_for_stop()


async def insert(parent: Parent, app: Durable, *, count: int, connections: int = 1, rows: int = 1) -> None:
    """A role: statements that insert `rows` rows each, on several connections at the same time."""
    tables = [await RawTable.connect(app) for _ in range(connections)]
    for table in tables:
        await table.insert(rows)  # prepares the statement

    async def insert_share(table: RawTable) -> None:
        for _ in range(count // rows // connections):
            await table.insert(rows)

    await parent.wait_for_start()
    await asyncio.gather(*map(insert_share, tables))
    parent.report(count, time.monotonic())
    await parent.wait_for_stop()
