"""Locks that logins can take: none of them stops work that waits for a partition key or a limit, nor a migration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from tests.support.engine import NEVER, opened
from tests.support.roles import logins

from gen_durable import Concurrency, Finished, Limit, Rate, Start, job
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema

# The numbers that advisory locks of gates, of policies and of migrations would have, if there were any.
ADVISORY = """
select pg_advisory_lock((hashtextextended('"{0}"', 0) & ~2047::bigint) | n) from generate_series(0, 2047) n;
select pg_advisory_lock(hashtext('"{0}"'), hashtext(name)) from unnest('{{slow,often}}'::text[]) name;
select pg_advisory_lock(hashtextextended('gen_durable/{0}', 0));
select pg_advisory_lock(id) from generate_series(-64, 4095) id;
"""


@job
async def noop(n: int) -> int:
    """Nothing, durably."""
    return n


@pytest.fixture
def own_logins(dsn: str, bare_schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, bare_schema) as found:
        yield found


@pytest.mark.direct(reason="holds session locks")
def test_a_login_without_a_role_stops_nothing(dsn: str, bare_schema: str, own_logins: dict[str, str]) -> None:
    """It holds every advisory number; limited and partitioned work goes on, limits change, a migration runs."""

    async def work() -> None:
        link = PersistentConnection(ConnectionTarget(dsn))
        try:
            async with asyncio.timeout(20):
                assert await migrate(link, Schema(bare_schema), repair_roles=True) == []
        finally:
            await link.close()
        async with opened(own_logins["worker"], bare_schema) as e, opened(own_logins["admin"], bare_schema) as admin:
            async with asyncio.timeout(10):
                await admin.app.set_limit("slow", Concurrency(1))
                await admin.app.set_limit("often", Rate(1000, timedelta(seconds=1)))
            handles = await e.app.insert_many(
                [Start(noop, n, partition_key="k") for n in range(3)]
                + [Start(noop, n, limit=Limit(name)) for n in range(3) for name in ("slow", "often")]
            )
            async with e.worker(noop, reap_interval=NEVER):
                for handle in handles:
                    assert isinstance(await e.end(handle), Finished)

    with psycopg.connect(own_logins["stranger"], autocommit=True) as hostile:
        for statement in ADVISORY.format(bare_schema).strip().splitlines():
            hostile.execute(statement.encode())
        (held,) = hostile.execute("select count(*) from pg_locks where locktype = 'advisory'").fetchone() or (0,)
        assert held > 4096
        asyncio.run(work())


def test_no_role_can_lock_a_row_of_the_locks(bare_schema: str, own_logins: dict[str, str]) -> None:
    """Nor the table, in a mode that keeps functions from locking its rows."""
    for dsn in own_logins.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            for statement in (
                "select from {}.gate_locks for key share",
                "select from {}.gate_locks for no key update",
                "lock table {}.gate_locks in row exclusive mode",
                "lock table {}.migrations in share row exclusive mode",
                "delete from {}.gate_locks",
                "select {}.reblock_rows_and_lock_limit_gates('slow')",
            ):
                connection.execute("begin")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.format(bare_schema).encode())
                connection.execute("rollback")
