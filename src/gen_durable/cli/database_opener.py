"""Find the database of a command and connect to it.

All commands follow the same rule: `--dsn`, else DATABASE_URL, else the embedded server in the working directory. A DSN
is only ever shown without its password.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

from gen_durable.errors import ConfigError, DatabaseUnavailable
from gen_durable.pg.dsn import check_required_tls, is_tls_required, may_password_be_in_other_parts, split_dsn_by_host
from gen_durable.pg.error_classifier import MALFORMED_DSN, READ_ONLY_DATABASE, ConnectionLost, SqlError
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection


@dataclass(frozen=True, slots=True)
class ConnectedDatabase:
    """A database and an open connection to it. `location` names it in messages, without the password."""

    dsn: str
    location: str
    directory: Path | None
    connection: PersistentConnection

    def __repr__(self) -> str:
        return f"ConnectedDatabase({self.location})"  # a DSN holds a password


@asynccontextmanager
async def open_database(dsn: str | None, *, directory: Path | None = None) -> AsyncGenerator[ConnectedDatabase]:
    """Connect to the database of a DSN, or start the embedded server and connect to it."""
    if dsn is not None:
        async with _connect_and_explain_errors(
            require_postgresql_dsn(dsn), describe_dsn_without_password(dsn), None
        ) as database:
            yield database
        return
    from gen_durable.embedded import release, start

    server = await asyncio.to_thread(start, directory)
    try:
        async with _connect_and_explain_errors(server.dsn, server.data_location, server.directory) as database:
            yield database
    finally:
        await asyncio.to_thread(release, server)


@asynccontextmanager
async def _connect_and_explain_errors(
    dsn: str, location: str, directory: Path | None
) -> AsyncGenerator[ConnectedDatabase]:
    requires_tls = is_tls_required(None, os.environ)
    if requires_tls:
        check_required_tls("the DSN", dsn, os.environ)
    connection = PersistentConnection(ConnectionTarget(dsn, requires_tls=requires_tls))
    try:
        try:
            await connection.connect()
        except ConnectionLost as error:
            raise DatabaseUnavailable(
                f"cannot connect to {location}: {_describe_cause_without_password(error)}"
            ) from error
        try:
            yield ConnectedDatabase(dsn, location, directory, connection)
        except ConnectionLost as error:
            raise DatabaseUnavailable(
                f"the connection to {location} was lost: {_describe_cause_without_password(error)}"
            ) from error
    finally:
        await connection.close()


def require_postgresql_dsn(dsn: str) -> str:
    """Raise `ConfigError` for text that is not a DSN; the message does not repeat it."""
    if not dsn.startswith(("postgres://", "postgresql://")):
        raise ConfigError("The DSN must begin with postgresql://")
    return dsn


def describe_dsn_without_password(dsn: str) -> str:
    """The hosts and the database of a DSN, without user and password."""
    if may_password_be_in_other_parts(dsn):
        return "the database"
    hosts = [_format_host(urlsplit(host.dsn)) for host in split_dsn_by_host(dsn).hosts]
    return f"{','.join(hosts)}{urlsplit(dsn).path}"


def _format_host(parts: SplitResult) -> str:
    host = parts.hostname or parse_qs(parts.query).get("host", ["localhost"])[0]
    return f"{host}:{parts.port}" if parts.port is not None else host


def _describe_cause_without_password(error: ConnectionLost) -> str:
    """The driver's message, unless it may quote a piece of the password."""
    cause = error.cause
    if error.hides_cause:
        return MALFORMED_DSN
    if error.is_read_only:
        return READ_ONLY_DATABASE
    if isinstance(cause, SqlError):
        return "; ".join(str(cause).splitlines())  # its DETAIL and HINT are lines of their own
    if isinstance(cause, OSError):
        return cause.strerror or str(cause) or type(cause).__name__
    return type(cause).__name__
