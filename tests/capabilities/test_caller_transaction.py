"""Enqueue in the caller's transaction: the run is there if the caller commits, and never was if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.support.capabilities import double

from gen_durable import Durable, SyncDurable


class Undo(Exception):
    """The caller changes its mind."""


@pytest.fixture
def runs(dsn: str, schema: str) -> Callable[[], list[int]]:
    """The states of the runs that are there, seen by another connection."""

    def look() -> list[int]:
        with psycopg.connect(dsn) as connection:
            return [row[0] for row in connection.execute(f"select state from {schema}.instances order by id".encode())]

    return look


async def test_asyncpg(dsn: str, schema: str, runs: Callable[[], list[int]]) -> None:
    app, connection = Durable(dsn, schema=schema), await asyncpg.connect(dsn)
    async with connection.transaction():
        await app.insert(double, 1, connection=connection)
        assert runs() == []
    with suppress(Undo):
        async with connection.transaction():
            await app.insert(double, 2, connection=connection)
            raise Undo
    await connection.close()
    assert runs() == [1]


def test_psycopg(dsn: str, schema: str, runs: Callable[[], list[int]]) -> None:
    app = SyncDurable(dsn, schema=schema)
    with psycopg.connect(dsn) as connection:
        app.insert(double, 1, connection=connection)
        assert runs() == []
        connection.commit()
        app.insert(double, 2, connection=connection)
        connection.rollback()
    assert runs() == [1]


async def test_psycopg_async(dsn: str, schema: str, runs: Callable[[], list[int]]) -> None:
    app = Durable(dsn, schema=schema)
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await app.insert(double, 1, connection=connection)
        assert runs() == []
        await connection.commit()
        await app.insert(double, 2, connection=connection)
        await connection.rollback()
    assert runs() == [1]


@contextmanager
def sync_engine(dsn: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy(dsn: str, schema: str, runs: Callable[[], list[int]], kind: str) -> None:
    app = SyncDurable(dsn, schema=schema)
    with sync_engine(dsn) as engine, engine.connect() if kind == "connection" else Session(engine) as connection:
        app.insert(double, 1, connection=connection)
        assert runs() == []
        connection.commit()
        app.insert(double, 2, connection=connection)
        connection.rollback()
    assert runs() == [1]


@pytest.mark.parametrize("kind", ["connection", "session"])
async def test_sqlalchemy_async(dsn: str, schema: str, runs: Callable[[], list[int]], kind: str) -> None:
    app = Durable(dsn, schema=schema)
    engine = create_async_engine("postgresql+asyncpg://", connect_args={"dsn": dsn})
    async with engine.connect() if kind == "connection" else AsyncSession(engine) as connection:
        await app.insert(double, 1, connection=connection)
        assert runs() == []
        await connection.commit()
        await app.insert(double, 2, connection=connection)
        await connection.rollback()
    await engine.dispose()
    assert runs() == [1]


@pytest.fixture
def django_atomic(dsn: str) -> Iterator[Callable[[], Any]]:
    """Django's own transaction on the server under test."""
    import django
    from django.conf import settings
    from django.db import connections, transaction

    parts = conninfo_to_dict(dsn)
    place = {name.upper(): str(parts.get(name, "")) for name in ("host", "port", "user", "password")}
    own = {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], **place}
    if not settings.configured:
        settings.configure(DATABASES={"default": own}, USE_TZ=True)
        django.setup()
    connections.settings["seed"] = connections.settings["default"] | own
    yield lambda: transaction.atomic(using="seed")
    connections["seed"].close()
    del connections["seed"]


def test_django(dsn: str, schema: str, runs: Callable[[], list[int]], django_atomic: Callable[[], Any]) -> None:
    app = SyncDurable(dsn, schema=schema)
    with django_atomic():
        app.insert(double, 1, using="seed")
        assert runs() == []
    with suppress(Undo), django_atomic():
        app.insert(double, 2, using="seed")
        raise Undo
    assert runs() == [1]
