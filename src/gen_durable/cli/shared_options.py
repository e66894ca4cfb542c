"""Options and arguments that several commands share, and how they are read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gen_durable.cli.console import exit_with_message
from gen_durable.durations import parse_duration
from gen_durable.errors import InputError
from gen_durable.store.schema import DEFAULT_SCHEMA

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="DATABASE_URL",
        metavar="URL",
        show_default=False,
        help="postgresql://user:password@host/database. Default: the embedded server in ./.gen_durable/",
    ),
]
SchemaOption = Annotated[
    str, typer.Option("--schema", metavar="NAME", help="The Postgres schema of gen_durable's tables.")
]
SCHEMA = DEFAULT_SCHEMA
IdArgument = Annotated[int | None, typer.Argument(metavar="ID", show_default=False, help="The id of the instance.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", show_default=False, help="The unique key of the instance, instead of its ID."),
]
CodecOption = Annotated[
    str | None,
    typer.Option(
        "--codec",
        envvar="GEN_DURABLE_CODEC",
        metavar="MODULE:NAME",
        show_default=False,
        help="The codec that payloads are encrypted with: the one that your code passes as Durable(codec=...).",
    ),
]


def require_id_or_key(instance: int | None, key: str | None) -> int | str:
    """The ID or the unique key, whichever was given. Ends the command unless exactly one was."""
    if (instance is None) == (key is None):
        exit_with_message("give either the ID of the instance or --key KEY")
    return instance if instance is not None else key or ""


def parse_time_or_age(text: str, option: str) -> datetime:
    """Read a duration before now (90s, 10m, 2h, 3d), or a date with or without a time; local time without a zone."""
    if text[-1:] in "smhd":
        try:
            return datetime.now(UTC) - parse_duration(text)
        except (InputError, OverflowError):
            pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        exit_with_message(
            f"{option} {text!r} is not a time. Write 10m, 2h or 3d (ago), or a date such as 2026-01-31T12:00."
        )
