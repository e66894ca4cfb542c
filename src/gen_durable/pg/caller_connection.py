"""Run one statement on the caller's own connection, of whichever driver it is.

The statement's parameters are texts (`store.caller_statements`). Connections are recognised by the names of their
classes, so no driver is imported that the caller has not imported before. Errors of that driver pass through unchanged.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from gen_durable.errors import InputError
from gen_durable.store.caller_statements import named_arguments, with_named_parameters

if TYPE_CHECKING:
    from gen_durable.store.statements import Statement

Rows = Sequence[Sequence[Any]]


class ConnectionKind(enum.Enum):
    """The supported connection types, as error messages name them."""

    ASYNCPG = "an asyncpg connection"
    PSYCOPG = "a psycopg Connection"
    PSYCOPG_ASYNC = "a psycopg AsyncConnection"
    SQLALCHEMY = "a SQLAlchemy Connection or Session"
    SQLALCHEMY_ASYNC = "a SQLAlchemy AsyncConnection or AsyncSession"
    DJANGO = "a Django connection"


_KINDS: Final = {
    ("asyncpg", "Connection"): ConnectionKind.ASYNCPG,
    ("asyncpg", "PoolConnectionProxy"): ConnectionKind.ASYNCPG,
    ("gen_durable", "ConnectionUntilStepEnds"): ConnectionKind.ASYNCPG,  # ctx.connection
    ("psycopg", "Connection"): ConnectionKind.PSYCOPG,
    ("psycopg", "AsyncConnection"): ConnectionKind.PSYCOPG_ASYNC,
    ("sqlalchemy", "Connection"): ConnectionKind.SQLALCHEMY,
    ("sqlalchemy", "Session"): ConnectionKind.SQLALCHEMY,
    ("sqlalchemy", "scoped_session"): ConnectionKind.SQLALCHEMY,
    ("sqlalchemy", "AsyncConnection"): ConnectionKind.SQLALCHEMY_ASYNC,
    ("sqlalchemy", "AsyncSession"): ConnectionKind.SQLALCHEMY_ASYNC,
    ("sqlalchemy", "async_scoped_session"): ConnectionKind.SQLALCHEMY_ASYNC,
    ("django", "BaseDatabaseWrapper"): ConnectionKind.DJANGO,
    ("django", "ConnectionProxy"): ConnectionKind.DJANGO,
}


def find_connection_kind(connection: object) -> ConnectionKind:
    """The type of the object passed as `connection=`. Raises `InputError` if it is not supported."""
    for base in type(connection).__mro__:
        kind = _KINDS.get((base.__module__.partition(".")[0], base.__name__))
        if kind is not None:
            return kind
    given = f"{type(connection).__module__}.{type(connection).__name__}"
    raise InputError(
        f"connection= got {given}, an unsupported type. Pass a connection or session (not a pool or engine) of "
        "asyncpg, psycopg 3, SQLAlchemy or Django."
    )


def try_call_after_django_commit(connection: Any, callback: Callable[[], None]) -> bool:
    """Have Django call back after the commit, and not after a rollback, also of a savepoint.

    Returns False if that is not possible: with other connections, and where autocommit is off.
    """
    if find_connection_kind(connection) is not ConnectionKind.DJANGO:
        return False
    try:
        connection.on_commit(callback)
    except Exception:
        return False
    return True


def listen_for_sqlalchemy_commits(connection: Any, callback: Callable[[object], None]) -> None:
    """Have SQLAlchemy call back at the commits of a connection (right before) or session (right after).

    A hint that only saves time: the commit may fail, or be that of a savepoint. SQLAlchemy keeps the callback as long
    as the connection or session, and only once.
    """
    kind = find_connection_kind(connection)
    if kind not in (ConnectionKind.SQLALCHEMY, ConnectionKind.SQLALCHEMY_ASYNC):
        return
    from sqlalchemy import Connection, event

    target = connection.registry() if hasattr(connection, "registry") else connection
    if kind is ConnectionKind.SQLALCHEMY_ASYNC:
        target = target.sync_session if hasattr(target, "sync_session") else target.sync_connection
    name = "commit" if isinstance(target, Connection) else "after_commit"
    event.listen(target, name, callback)


async def run_on_async_connection(connection: Any, statement: Statement[Any]) -> Rows:
    """Run a statement on an asynchronous connection."""
    return await _find_async_runner(connection)(connection, statement)


def run_on_blocking_connection(connection: Any, statement: Statement[Any]) -> Rows:
    """Run a statement on a blocking connection."""
    return _find_blocking_runner(connection)(connection, statement)


def _find_async_runner(connection: object) -> Callable[[Any, Statement[Any]], Awaitable[Rows]]:
    match find_connection_kind(connection):
        case ConnectionKind.ASYNCPG:
            return _run_on_asyncpg
        case ConnectionKind.PSYCOPG_ASYNC:
            return _run_on_psycopg_async
        case ConnectionKind.SQLALCHEMY_ASYNC:
            return _run_on_sqlalchemy_async
        case other:
            raise InputError(f"connection= got {other.value}, which blocks. Use SyncDurable with it.")


def _find_blocking_runner(connection: object) -> Callable[[Any, Statement[Any]], Rows]:
    match find_connection_kind(connection):
        case ConnectionKind.PSYCOPG:
            return _run_on_psycopg
        case ConnectionKind.SQLALCHEMY:
            return _run_on_sqlalchemy
        case ConnectionKind.DJANGO:
            return _run_on_django
        case other:
            raise InputError(f"connection= got {other.value}, which is asynchronous. Use Durable with it.")


def resolve_caller_connection(connection: object, using: str | None) -> object:
    """The caller's connection for a call, or None if the client uses its own; `using` is the alias of Django."""
    if using is None:
        return connection
    if connection is not None:
        raise InputError("give either connection= or using=, not both")
    return get_django_connection(using)


def get_django_connection(alias: str) -> Any:
    """Django's connection of this thread to one of its databases."""
    try:
        # Django ships no types.
        from django.db import connections  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise InputError("using= names a Django database, but Django is not installed. Pass connection=.") from error
    return cast("Any", connections)[alias]


async def _run_on_asyncpg(connection: Any, statement: Statement[Any]) -> Rows:
    rows: Rows = await connection.fetch(statement.text, *statement.args)
    return rows


# The driver's own cursor class and plain rows: the caller may have set other factories on the connection.
def _run_on_psycopg(connection: Any, statement: Statement[Any]) -> Rows:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    with Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(_rewrite_with_percent_parameters(statement), named_arguments(statement.args)).fetchall()


async def _run_on_psycopg_async(connection: Any, statement: Statement[Any]) -> Rows:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(_rewrite_with_percent_parameters(statement), named_arguments(statement.args))
        return await cursor.fetchall()


def _run_on_sqlalchemy(connection: Any, statement: Statement[Any]) -> Rows:
    from sqlalchemy import text

    rows: Rows = connection.execute(
        text(with_named_parameters(statement.text, ":")), named_arguments(statement.args)
    ).all()
    return rows


async def _run_on_sqlalchemy_async(connection: Any, statement: Statement[Any]) -> Rows:
    from sqlalchemy import text

    rows: Rows = (
        await connection.execute(text(with_named_parameters(statement.text, ":")), named_arguments(statement.args))
    ).all()
    return rows


def _run_on_django(connection: Any, statement: Statement[Any]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(_rewrite_with_percent_parameters(statement), named_arguments(statement.args))
        rows: Rows = cursor.fetchall()
        return rows


def _rewrite_with_percent_parameters(statement: Statement[Any]) -> Any:
    return with_named_parameters(statement.text, "%(", ")s")
