"""The server that is measured: private, fresh, and deleted at the end.

By default the embedded one in a temporary directory, with its shipped settings (fsync on). GEN_DURABLE_TEST_DSN names
another; `scripts/postgres15` sets it to a throw-away cluster.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg

from gen_durable import Durable
from gen_durable.core.services import services_of
from tools.bench.resource_usage import Reading, Updates, postmaster_of, read_server, read_updates

SETTINGS = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, with a connection for setting up and for reading its counters."""

    dsn: str
    settings: dict[str, str]
    admin: asyncpg.Connection[Any]
    postmaster: int
    numbers: count[int]

    @asynccontextmanager
    async def app(self) -> AsyncIterator[Durable]:
        """A `Durable` on a fresh schema, dropped at the end; no run sees the dead rows of another."""
        # A checkpoint now avoids one in the middle of a run, and full-page writes of the pages filled next.
        await self.admin.execute("checkpoint")
        name = f"bench_{next(self.numbers)}"
        async with Durable(self.dsn, schema=name, migrate=True) as app:
            yield app
        await self.admin.execute(f'drop schema "{name}" cascade')

    async def analyze(self, app: Durable) -> None:
        """Collect the statistics that autovacuum would collect at some random time."""
        await self.admin.execute(f'analyze "{services_of(app).statements.schema.name}".instances')

    async def read(self) -> Reading:
        """Read the server's CPU time and WAL position."""
        return await read_server(self.admin, self.postmaster)

    async def updates(self, app: Durable) -> Updates:
        """The updates of a schema."""
        return await read_updates(self.admin, services_of(app).statements.schema.name)


@asynccontextmanager
async def serve(shared_buffers: str | None = None) -> AsyncIterator[Server]:
    """The server to measure. `shared_buffers` instead of the 128 MB that the embedded one ships with."""
    if dsn := os.environ.get("GEN_DURABLE_TEST_DSN"):
        async with _connected(dsn) as server:
            yield server
        return
    from gen_durable.embedded import release, start

    directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="gd-bench-"))

    @asynccontextmanager
    async def started() -> AsyncIterator[Server]:
        embedded = await asyncio.to_thread(start, directory)
        postmaster = 0
        try:
            async with _connected(embedded.dsn) as server:
                postmaster = server.postmaster
                yield server
        finally:
            await asyncio.to_thread(release, embedded)
            await asyncio.to_thread(_wait_for_end, postmaster)

    try:
        if shared_buffers is not None:
            async with started() as server:
                await server.admin.execute(f"alter system set shared_buffers = '{shared_buffers}'")
        async with started() as server:
            yield server
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Server]:
    admin = await asyncpg.connect(dsn)
    try:
        settings = {name: str(await admin.fetchval("select current_setting($1)", name)) for name in SETTINGS}
        yield Server(dsn, settings, admin, await postmaster_of(admin), count(1))
    finally:
        await admin.close()


def _wait_for_end(postmaster: int) -> None:
    """The embedded server stops by itself soon after its last user; its directory goes only then."""
    deadline = time.monotonic() + 20
    while postmaster and Path(f"/proc/{postmaster}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
