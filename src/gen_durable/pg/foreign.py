"""A caller's own connection: which kind it is, and one call run on it.

In: an object that the caller has from its driver, and a call whose parameters are texts (`store.guests`). Out: the
rows, or whatever that driver raised. The kinds are told by the names of their classes: no driver is imported that the
caller has not imported before.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from gen_durable.errors import InputError
from gen_durable.store.text_params import named, names

if TYPE_CHECKING:
    from gen_durable.store.statements import Statement

Rows = Sequence[Sequence[Any]]


class Kind(enum.Enum):
    """The kinds of connections that are known."""

    ASYNCPG = "an asyncpg connection"
    PSYCOPG = "a psycopg Connection"
    PSYCOPG_ASYNC = "a psycopg AsyncConnection"
    SQLALCHEMY = "a SQLAlchemy Connection or Session"
    SQLALCHEMY_ASYNC = "a SQLAlchemy AsyncConnection or AsyncSession"
    DJANGO = "a Django connection"


_KINDS: Final = {
    ("asyncpg", "Connection"): Kind.ASYNCPG,
    ("asyncpg", "PoolConnectionProxy"): Kind.ASYNCPG,
    ("gen_durable", "Borrowed"): Kind.ASYNCPG,  # ctx.connection
    ("psycopg", "Connection"): Kind.PSYCOPG,
    ("psycopg", "AsyncConnection"): Kind.PSYCOPG_ASYNC,
    ("sqlalchemy", "Connection"): Kind.SQLALCHEMY,
    ("sqlalchemy", "Session"): Kind.SQLALCHEMY,
    ("sqlalchemy", "scoped_session"): Kind.SQLALCHEMY,
    ("sqlalchemy", "AsyncConnection"): Kind.SQLALCHEMY_ASYNC,
    ("sqlalchemy", "AsyncSession"): Kind.SQLALCHEMY_ASYNC,
    ("sqlalchemy", "async_scoped_session"): Kind.SQLALCHEMY_ASYNC,
    ("django", "BaseDatabaseWrapper"): Kind.DJANGO,
    ("django", "ConnectionProxy"): Kind.DJANGO,
}


def kind_of(connection: object) -> Kind:
    """What a caller has handed over as `connection=`."""
    for base in type(connection).__mro__:
        kind = _KINDS.get((base.__module__.partition(".")[0], base.__name__))
        if kind is not None:
            return kind
    given = f"{type(connection).__module__}.{type(connection).__name__}"
    raise InputError(
        f"connection= got {given}, which is none that is known: pass a connection or session, not a pool or an "
        "engine, of asyncpg, psycopg 3, SQLAlchemy or Django"
    )


async def run_awaiting(connection: Any, call: Statement[Any]) -> Rows:
    """Run a call on a connection that is awaited."""
    return await _awaiting(connection)(connection, call)


def run_blocking(connection: Any, call: Statement[Any]) -> Rows:
    """Run a call on a connection that blocks."""
    return _blocking(connection)(connection, call)


def _awaiting(connection: object) -> Callable[[Any, Statement[Any]], Awaitable[Rows]]:
    match kind_of(connection):
        case Kind.ASYNCPG:
            return _asyncpg
        case Kind.PSYCOPG_ASYNC:
            return _psycopg_async
        case Kind.SQLALCHEMY_ASYNC:
            return _sqlalchemy_async
        case other:
            raise InputError(f"connection= got {other.value}, which blocks: use SyncDurable with it")


def _blocking(connection: object) -> Callable[[Any, Statement[Any]], Rows]:
    match kind_of(connection):
        case Kind.PSYCOPG:
            return _psycopg
        case Kind.SQLALCHEMY:
            return _sqlalchemy
        case Kind.DJANGO:
            return _django
        case other:
            raise InputError(f"connection= got {other.value}, which is awaited: use Durable with it")


def django_connection(alias: str) -> Any:
    """Django's connection of this thread to one of its databases."""
    try:
        # Django ships no types.
        from django.db import connections  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise InputError("using= names a database of Django, which is not installed: pass connection=") from error
    return cast("Any", connections)[alias]


async def _asyncpg(connection: Any, call: Statement[Any]) -> Rows:
    rows: Rows = await connection.fetch(call.text, *call.args)
    return rows


# A cursor of the driver's own class and with plain rows, whatever factories the caller has set up.
def _psycopg(connection: Any, call: Statement[Any]) -> Rows:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    with Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(_percent(call), names(call.args)).fetchall()


async def _psycopg_async(connection: Any, call: Statement[Any]) -> Rows:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(_percent(call), names(call.args))
        return await cursor.fetchall()


def _sqlalchemy(connection: Any, call: Statement[Any]) -> Rows:
    from sqlalchemy import text

    rows: Rows = connection.execute(text(named(call.text, ":")), names(call.args)).all()
    return rows


async def _sqlalchemy_async(connection: Any, call: Statement[Any]) -> Rows:
    from sqlalchemy import text

    rows: Rows = (await connection.execute(text(named(call.text, ":")), names(call.args))).all()
    return rows


def _django(connection: Any, call: Statement[Any]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(_percent(call), names(call.args))
        rows: Rows = cursor.fetchall()
        return rows


def _percent(call: Statement[Any]) -> Any:
    return named(call.text, "%(", ")s")
