"""Opening and closing: wrong addresses, missing schemas, and use at the wrong time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.engine import Engine, Opening, opened

from gen_durable import Durable, Signal, Start, job
from gen_durable.errors import (
    ConfigError,
    DatabaseUnavailable,
    GenDurableError,
    SchemaMissing,
    SchemaTooNew,
)

go = Signal("go")
SECRET = "hunter2-canary"  # a password that must not show up anywhere


@job
async def double(number: int) -> int:
    return number * 2


@pytest.mark.parametrize("dsn", ["mysql://localhost/x", "localhost:5432", "", "host=localhost dbname=x", 42, b"pg"])
def test_a_bad_scheme(dsn: Any) -> None:
    """What is no Postgres DSN is refused when the object is made, without repeating it."""
    with pytest.raises(ConfigError, match="postgresql://"):
        Durable(dsn)
    with pytest.raises(ConfigError, match="postgresql://"):
        Durable("postgresql://localhost/x", listen_dsn=dsn)


@pytest.mark.parametrize("url", [f"mysql://u:{SECRET}@localhost/x", f"u:{SECRET}@localhost"])
async def test_a_bad_database_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """A bad DATABASE_URL is refused in the same way, and is named as the culprit."""
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(ConfigError, match="DATABASE_URL") as caught:
        await Durable().open()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"pooler": "session"}, {"pool_size": 0}, {"pool_size": "5"}, {"schema": "Bad"}, {"schema": 'x"; drop'}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    """An option that cannot work is refused by name."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        Durable("postgresql://localhost/x", **options)


@pytest.mark.parametrize("migrate", [True, None])
async def test_an_unreachable_port(migrate: bool | None) -> None:
    """Nobody listens there: `DatabaseUnavailable` soon, without the password."""
    app = Durable(f"postgresql://someone:{SECRET}@127.0.0.1:1/none", migrate=migrate)
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match="not reachable") as caught:
        await app.open()
    assert time.monotonic() - began < 5
    assert SECRET not in str(caught.value)


async def test_an_unknown_host() -> None:
    """A host that does not exist is told in the same way."""
    with pytest.raises(DatabaseUnavailable):
        await Durable("postgresql://someone@no-such-host.invalid/none").open()


async def test_a_wrong_password(dsn: str) -> None:
    """A refused login says so, without the password."""
    wrong = dsn.replace("postgres:", "nobody_at_all:", 1) if "postgres:" in dsn else None
    if wrong is None:
        pytest.skip("the server takes logins without a password")
    with pytest.raises(DatabaseUnavailable, match=r"InvalidPassword|InvalidAuthorization") as caught:
        await Durable(wrong).open()
    assert dsn.split(":")[2].split("@", maxsplit=1)[0] not in str(caught.value)


async def test_a_missing_schema(dsn: str, bare_schema: str) -> None:
    """A database that was never migrated is refused with what to do."""
    with pytest.raises(SchemaMissing, match="gen-durable migrate") as caught:
        await Durable(dsn, schema=bare_schema).open()
    assert "migrate=True" in str(caught.value)
    assert bare_schema in str(caught.value)


async def test_migrate_on_opening(dsn: str, bare_schema: str) -> None:
    """`migrate=True` makes the schema, and is nothing the second time."""
    for expected in (1, 2):
        async with Durable(dsn, schema=bare_schema, migrate=True) as app:
            assert (await app.insert(double, 1)).id == expected
    async with Durable(dsn, schema=bare_schema) as app:
        assert (await app.get(1)).state == 1


@pytest.mark.dirty
async def test_a_newer_schema(dsn: str, schema: str) -> None:
    """A database of a newer library is used as it is, but not migrated."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f'insert into "{schema}".migrations (version) values (9999)')
    await connection.close()
    async with Durable(dsn, schema=schema) as app:
        await app.insert(double, 1)
    with pytest.raises(SchemaTooNew, match="upgrade gen-durable"):
        await Durable(dsn, schema=schema, migrate=True).open()


async def test_a_role_without_rights(dsn: str, schema: str) -> None:
    """A role that may not use the schema gets an error of ours that says so, not the driver's."""
    connection = await asyncpg.connect(dsn)
    role = f"{schema}_guest"
    await connection.execute(f"create role {role} login password 'guest'")
    try:
        host = dsn.rsplit("@", 1)[1]
        with pytest.raises(GenDurableError, match=f"permission denied.*{schema}|may not use"):
            async with Durable(f"postgresql://{role}:guest@{host}", schema=schema) as app:
                await app.insert(double, 1)
    finally:
        await connection.execute(f"drop role {role}")
        await connection.close()


async def test_not_open_yet(dsn: str, schema: str) -> None:
    """Before opening every call says what to do."""
    app = Durable(dsn, schema=schema)
    handle = app.handle(1, double)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: app.insert(double, 1),
        lambda: app.insert_many([Start(double, 1)]),
        lambda: app.get(1),
        lambda: app.signal(1, go),
        handle.wait,
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="not open"):
            await call()


async def test_after_closing(engine: Opening) -> None:
    """A closed client refuses calls, also through its handles; closing twice is nothing; it can be opened again."""
    async with engine() as e:
        handle = await e.app.insert(double, 1)
        with pytest.raises(ConfigError, match="open already"):
            await e.app.open()
    await e.app.close()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: e.app.insert(double, 1),
        lambda: e.app.get(1),
        lambda: handle.signal(go),
        handle.wait,
        handle.get,
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="not open"):
            await call()
    async with e.app as again:
        assert (await again.get(handle.id)).state == 1


async def test_closing_leaves_no_connection(private_dsn: str, schema: str) -> None:
    """When the client is closed the server has no session of it left."""
    async with opened(private_dsn, schema) as outer:
        async with opened(private_dsn, schema) as e, e.worker(double):
            await e.end(await e.app.insert(double, 1))
            assert await sessions(outer) > 2
        await outer.rows.when(lambda: none_but_the_watcher(outer))


async def sessions(e: Engine) -> int:
    return int(await e.rows.value("select count(*) from pg_stat_activity where usename = current_user"))


async def none_but_the_watcher(e: Engine) -> bool:
    return await sessions(e) == 1


async def test_a_failed_open_lets_go_of_the_embedded_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open that fails after the embedded server was started does not keep it running."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = Durable(embedded_directory=tmp_path / "server", migrate=False)
    with pytest.raises(SchemaMissing):
        await app.open()
    deadline = asyncio.get_running_loop().time() + 15
    while (tmp_path / "server" / "pgdata" / "postmaster.pid").exists():
        assert asyncio.get_running_loop().time() < deadline, "the server is still running"
        await asyncio.sleep(0.05)
