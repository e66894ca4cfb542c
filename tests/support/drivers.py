"""The connections that callers bring along, each behind the same few words.

They are set up so that they also work through a pooler in transaction mode: without statements that are prepared in one
transaction and used in another.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from gen_durable import Durable, SyncDurable


@dataclass
class CallerConnection:
    """A caller's connection: `transaction(commit=...)` is its own transaction, and inside another a savepoint."""

    app: Durable | SyncDurable
    connection: Any
    begin: Callable[[], Any]
    using: str | None = None

    @asynccontextmanager
    async def transaction(self, *, commit: bool) -> AsyncIterator[None]:
        with contextlib.suppress(RolledBack):
            block = self.begin()
            if isinstance(block, AbstractAsyncContextManager):
                async with block:
                    yield
                    if not commit:
                        raise RolledBack
            else:
                with block:
                    yield
                    if not commit:
                        raise RolledBack

    async def insert(self, *args: Any, **options: Any) -> Any:
        return await self._call(self.app.insert, *args, **options)

    async def insert_many(self, *args: Any, **options: Any) -> Any:
        return await self._call(self.app.insert_many, *args, **options)

    async def signal(self, *args: Any, **options: Any) -> Any:
        return await self._call(self.app.signal, *args, **options)

    async def debounce(self, *args: Any, **options: Any) -> Any:
        return await self._call(self.app.debounce, *args, **options)

    async def cancel(self, *args: Any, **options: Any) -> Any:
        return await self._call(self.app.cancel, *args, **options)

    async def _call(self, call: Any, *args: Any, **options: Any) -> Any:
        where = {"connection": self.connection} if self.using is None else {"using": self.using}
        answer = call(*args, **where, **options)
        return await answer if isinstance(self.app, Durable) else answer


class RolledBack(Exception):
    """Raised to leave a transaction without committing it."""


@asynccontextmanager
async def asyncpg_connection(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    connection = await asyncpg.connect(dsn, statement_cache_size=0)
    # As many do; ours must not be encoded by it once more.
    await connection.set_type_codec("jsonb", encoder=repr, decoder=repr, schema="pg_catalog")
    async with Durable(dsn, schema=schema) as app:
        yield CallerConnection(app, connection, connection.transaction)
    await connection.close()


@asynccontextmanager
async def asyncpg_pooled(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    pool = asyncpg.create_pool(dsn, min_size=1, max_size=1, statement_cache_size=0)
    async with pool, pool.acquire() as connection, Durable(dsn, schema=schema) as app:
        yield CallerConnection(app, connection, connection.transaction)


@asynccontextmanager
async def psycopg_sync(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    with (
        psycopg.connect(
            dsn, autocommit=True, row_factory=dict_row, cursor_factory=psycopg.ClientCursor, prepare_threshold=None
        ) as connection,
        SyncDurable(dsn, schema=schema) as app,
    ):
        yield CallerConnection(app, connection, connection.transaction)


@asynccontextmanager
async def psycopg_async(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    connection = await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None
    )
    async with connection, Durable(dsn, schema=schema) as app:
        yield CallerConnection(app, connection, connection.transaction)


def _begin_sync(connection: Any) -> Callable[[], Any]:
    return lambda: connection.begin_nested() if connection.in_transaction() else connection.begin()


@contextmanager
def _engine(dsn: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn, prepare_threshold=None)
    )
    yield engine
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_connection(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    with _engine(dsn) as engine, engine.connect() as connection, SyncDurable(dsn, schema=schema) as app:
        yield CallerConnection(app, connection, _begin_sync(connection))


@asynccontextmanager
async def sqlalchemy_session(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    with _engine(dsn) as engine, Session(engine) as session, SyncDurable(dsn, schema=schema) as app:
        yield CallerConnection(app, session, _begin_sync(session))


@asynccontextmanager
async def sqlalchemy_async_connection(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    # SQLAlchemy prepares by itself, and needs names that no other client of the same server connection has.
    engine = create_async_engine(
        "postgresql+asyncpg://",
        connect_args={
            "dsn": dsn,
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"guest_{uuid.uuid4().hex}",
        },
    )
    async with engine.connect() as connection, Durable(dsn, schema=schema) as app:
        yield CallerConnection(app, connection, _begin_sync(connection))
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    engine = create_async_engine(
        "postgresql+psycopg://",
        async_creator=lambda: psycopg.AsyncConnection.connect(dsn, prepare_threshold=None),
    )
    async with AsyncSession(engine) as session, Durable(dsn, schema=schema) as app:
        yield CallerConnection(app, session, _begin_sync(session))
    await engine.dispose()


@asynccontextmanager
async def django_connection(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    with _in_django(dsn) as (connection, atomic), SyncDurable(dsn, schema=schema) as app:
        yield CallerConnection(app, connection, atomic)


@asynccontextmanager
async def django_alias(dsn: str, schema: str) -> AsyncIterator[CallerConnection]:
    with _in_django(dsn) as (connection, atomic), SyncDurable(dsn, schema=schema) as app:
        yield CallerConnection(app, connection, atomic, using="default")


@contextmanager
def _in_django(dsn: str) -> Iterator[tuple[Any, Callable[[], AbstractContextManager[Any]]]]:
    from django.db import connection, connections, transaction

    parts = conninfo_to_dict(dsn)
    place = {name.upper(): str(parts.get(name, "")) for name in ("host", "port", "user", "password")}
    own = {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], **place}
    if not settings.configured:
        settings.configure(DATABASES={"default": own}, USE_TZ=True)
        django.setup()
    connections.settings["default"] |= own | {"DISABLE_SERVER_SIDE_CURSORS": True}
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the test awaits around it; nothing else uses the connection
    try:
        yield connection, transaction.atomic
    finally:
        connection.close()
        del connections["default"]  # the next may lead elsewhere
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


SIX = ["asyncpg_connection", "psycopg_sync", "psycopg_async", "sqlalchemy_connection", "sqlalchemy_async_session"]
SIX += ["django_alias"]
"""One of each kind, where more would be the same again."""
CONNECTIONS = {
    caller.__name__: caller
    for caller in (
        asyncpg_connection,
        asyncpg_pooled,
        psycopg_sync,
        psycopg_async,
        sqlalchemy_connection,
        sqlalchemy_session,
        sqlalchemy_async_connection,
        sqlalchemy_async_session,
        django_connection,
        django_alias,
    )
}
