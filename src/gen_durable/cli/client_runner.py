"""Runs one operation of the client for a command: connects, calls it, and turns its errors into exit codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from gen_durable.cli.console import exit_with_error
from gen_durable.cli.database_opener import open_database
from gen_durable.cli.object_importer import import_object
from gen_durable.client import Durable
from gen_durable.encryption import PayloadCodec
from gen_durable.errors import NoTarget, NotFound, WrongStatus
from gen_durable.store.schema import Schema

T = TypeVar("T")


async def run_with_client(
    dsn: str | None, schema: str, operation: Callable[[Durable], Awaitable[T]], *, codec: str | None = None
) -> T:
    """Run one operation of the client. An unknown instance or a wrong status ends the command with exit code 1."""
    Schema(schema)  # rejects a bad name before it connects
    payload_codec = None if codec is None else cast(PayloadCodec, import_object(codec))
    async with (
        open_database(dsn) as database,
        Durable(database.dsn, schema=schema, pool_size=1, codec=payload_codec) as app,
    ):
        try:
            return await operation(app)
        except (NotFound, NoTarget, WrongStatus) as error:
            exit_with_error(error, 1)
