"""Which database a command means, and a connection to it.

In: what the command was told. Out: a `Database` with an open door, or an error of ours. The rule is the same for all
commands: `--dsn`, else DATABASE_URL, else the embedded server in the working directory. A DSN is only ever shown
without its password.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, parse_qs, urlsplit

import typer

from gen_durable.errors import ConfigError, DatabaseUnavailable
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.pg.dsn import split_hosts
from gen_durable.pg.faults import ConnectionLost, SqlError
from gen_durable.store.schema import DEFAULT_SCHEMA

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="DATABASE_URL",
        metavar="URL",
        show_default=False,
        help="postgresql://user:password@host/database. Without it: the embedded server in ./.gen_durable/",
    ),
]
SchemaOption = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="The Postgres schema that everything lives in.")
]
SCHEMA = DEFAULT_SCHEMA


@dataclass(frozen=True, slots=True)
class Database:
    """A database that answered: where it is, in words, and how to ask it."""

    dsn: str
    where: str
    directory: Path | None
    link: PersistentConnection

    def __repr__(self) -> str:
        return f"Database({self.where})"  # a DSN holds a password


@asynccontextmanager
async def reach(dsn: str | None, *, directory: Path | None = None) -> AsyncGenerator[Database]:
    """Connect to the database of a DSN, or to the embedded one, which is held up meanwhile."""
    if dsn is not None:
        async with _connected(checked(dsn), shown(dsn), None) as database:
            yield database
        return
    from gen_durable.embedded import release, start

    server = await asyncio.to_thread(start, directory)
    try:
        async with _connected(server.dsn, server.notice, server.directory) as database:
            yield database
    finally:
        await asyncio.to_thread(release, server)


@asynccontextmanager
async def _connected(dsn: str, where: str, directory: Path | None) -> AsyncGenerator[Database]:
    link = PersistentConnection(Target(dsn))
    try:
        try:
            await link.connect()
        except ConnectionLost as error:
            raise DatabaseUnavailable(f"cannot connect to {where}: {_reason(error.cause)}") from error
        try:
            yield Database(dsn, where, directory, link)
        except ConnectionLost as error:
            raise DatabaseUnavailable(f"the connection to {where} broke: {_reason(error.cause)}") from error
    finally:
        await link.close()


def checked(dsn: str) -> str:
    """Refuse what cannot be a DSN, without repeating it."""
    if not dsn.startswith(("postgres://", "postgresql://")):
        raise ConfigError("the DSN must begin with postgresql://")
    return dsn


def shown(dsn: str) -> str:
    """Host and database of a DSN, without user and password; of several hosts, all."""
    try:
        hosts = [_host(urlsplit(host.dsn)) for host in split_hosts(dsn).hosts]
    except ValueError:
        return (
            "the database"  # a password with a / or a # makes other parts unreadable, and them a part of the password
        )
    return f"{','.join(hosts)}{urlsplit(dsn).path}"


def _host(parts: SplitResult) -> str:
    host = parts.hostname or parse_qs(parts.query).get("host", ["localhost"])[0]
    return f"{host}:{parts.port}" if parts.port is not None else host


def _reason(cause: BaseException) -> str:
    """What the driver said. Words about a DSN that it could not read may hold a piece of the password."""
    if isinstance(cause, SqlError):
        return str(cause)
    if isinstance(cause, OSError):
        return cause.strerror or str(cause) or type(cause).__name__
    if isinstance(cause, ValueError):
        return "the DSN cannot be read (special characters in a password must be percent-encoded)"
    return type(cause).__name__
