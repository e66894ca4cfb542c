"""A database that cannot be written to: reading works, writing and workers say that it is read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psycopg
import pytest
from tests.support.engine import Opening
from tests.support.roles import PASSWORD, login_dsn
from typer.testing import CliRunner

from gen_durable import Concurrency, Durable, Signal, SyncDurable, Worker, job
from gen_durable.cli.app import app as cli
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable

go = Signal("go")
READ_ONLY = "the database is read-only: it is a standby, or default_transaction_read_only is on"


@job
async def double(number: int) -> int:
    return number * 2


def read_only(dsn: str) -> str:
    """As on a standby: every transaction is read-only, and the library must not change that."""
    return f"{dsn}{'&' if '?' in dsn else '?'}default_transaction_read_only=on"


@asynccontextmanager
async def reader(dsn: str, schema: str) -> AsyncIterator[Durable]:
    async with Durable(read_only(dsn), schema=schema) as app:
        yield app


@pytest.mark.direct
async def test_a_client_that_only_reads_works(engine: Opening, dsn: str, schema: str) -> None:
    """All reads, and a wait for an instance that another client's worker runs."""
    async with engine() as e, reader(dsn, schema) as app:
        handle = await e.app.insert(double, 2)
        found = app.handle(handle.id, double)
        assert (await app.get(handle.id)).state == 2
        assert [one.id for one in await app.list(queue="default")] == [handle.id]
        assert (await app.count()).value == 1
        assert await app.history(handle.id) == []
        assert await app.limits() == []
        async with e.worker(double):
            assert await found.result(timeout=30) == 4


@pytest.mark.direct
async def test_writes_say_that_the_database_is_read_only(engine: Opening, dsn: str, schema: str) -> None:
    """Each of them, also in a transaction of the caller, and by a blocking client."""
    async with engine() as e, reader(dsn, schema) as app:
        handle = await e.app.insert(double, 2)
        calls = [
            app.insert(double, 1),
            app.signal(handle.id, go),
            app.cancel(handle.id),
            app.retry(handle.id),
            app.set_limit("l", Concurrency(1)),
        ]
        for refused in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(refused, DatabaseUnavailable)
            assert READ_ONLY in str(refused)
        connection = await asyncpg.connect(read_only(dsn))
        with pytest.raises(DatabaseRefused, match=READ_ONLY):
            await app.insert(double, 1, connection=connection)
        await connection.close()

        def insert() -> None:
            with SyncDurable(read_only(dsn), schema=schema) as blocking:
                blocking.insert(double, 1)

        with pytest.raises(DatabaseUnavailable, match=READ_ONLY):
            await asyncio.to_thread(insert)


@pytest.mark.direct
async def test_a_worker_refuses_to_start_there(dsn: str, schema: str) -> None:
    async with reader(dsn, schema) as app:
        with pytest.raises(DatabaseUnavailable, match=f"a worker cannot start: {READ_ONLY}"):
            await Worker(app, jobs=[double]).start()


@pytest.mark.direct
async def test_a_worker_refuses_to_start_with_a_login_that_only_reads(dsn: str, schema: str) -> None:
    """It may read the tables and call the functions, which run with its rights."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {schema}_reader login password '{PASSWORD}'".encode())
        connection.execute(f"grant usage on schema {schema} to {schema}_reader".encode())
        connection.execute(f"grant select on all tables in schema {schema} to {schema}_reader".encode())
    try:
        async with Durable(login_dsn(dsn, f"{schema}_reader"), schema=schema) as app:
            assert (await app.count()).value == 0
            with pytest.raises(DatabaseRefused, match=f"its login is read-only in schema '{schema}'"):
                await Worker(app, jobs=[double]).start()
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"drop owned by {schema}_reader; drop role {schema}_reader".encode())


PROGRAM = """
import os
from gen_durable import Durable, Worker, job

@job
async def double(number: int) -> int:
    return number * 2

def worker():
    return Worker(Durable(os.environ["APP_DSN"], schema=os.environ["APP_SCHEMA"]), jobs=[double])
"""


@pytest.mark.direct
def test_the_commands_say_so(dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, with an exit code."""
    (tmp_path / "shop_that_reads.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("APP_DSN", read_only(dsn))
    monkeypatch.setenv("APP_SCHEMA", schema)
    options = ["--dsn", read_only(dsn), "--schema", schema]
    assert CliRunner().invoke(cli, ["ls", *options]).exit_code == 0
    for words in (["limits", "set", "l", "--concurrency", "1", *options], ["migrate", *options[:2], "--schema", "new"]):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 2
        assert READ_ONLY in done.output
        assert len(done.output.splitlines()) == 1
    done = CliRunner().invoke(cli, ["worker", "shop_that_reads:worker"])
    assert done.exit_code == 1
    assert f"gen-durable: a worker cannot start: {READ_ONLY}" in done.output
