"""`gen-durable signal`, `cancel`, `retry`, `rm`: change one instance."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any, cast

import typer

from gen_durable.cli.client_runner import run_with_client
from gen_durable.cli.console import exit_on_expected_errors, exit_with_message, print_message
from gen_durable.cli.shared_options import (
    SCHEMA,
    CodecOption,
    DsnOption,
    IdArgument,
    KeyOption,
    SchemaOption,
    require_id_or_key,
)
from gen_durable.signals import Signal


@exit_on_expected_errors
def signal(
    arguments: Annotated[
        list[str], typer.Argument(metavar="ID NAME [JSON]", show_default=False, help="With --key: NAME [JSON].")
    ],
    *,
    key: KeyOption = None,
    dedup_key: str | None = typer.Option(
        None, "--dedup-key", metavar="KEY", help="Deliver only once per key, however often the command runs."
    ),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Send a signal to an instance.

    The payload is JSON (default: null); - reads it from stdin.

    gen-durable signal 42 payment '{"amount": 100}'
    gen-durable signal --key order:42 payment '{"amount": 100}' --dedup-key evt_1

    Exit code 1: the instance does not exist or has ended.
    """
    instance = None
    if key is None:
        first, *arguments = arguments
        if not first.isdigit():
            exit_with_message(
                f"{first!r} is not an ID. Write `signal ID NAME [JSON]` or `signal --key KEY NAME [JSON]`."
            )
        instance = int(first)
    if len(arguments) not in (1, 2):
        exit_with_message("Write `signal ID NAME [JSON]` or `signal --key KEY NAME [JSON]`.")
    payload = _parse_payload(arguments[1]) if len(arguments) == 2 else None
    sent = Signal[Any](arguments[0], cast(Any, Any))
    which = require_id_or_key(instance, key)
    delivered = asyncio.run(
        run_with_client(dsn, schema, lambda app: app.signal(which, sent, payload, dedup_key=dedup_key), codec=codec)
    )
    print_message(f"signal {arguments[0]}: {'delivered' if delivered else 'already delivered with this dedup key'}")


@exit_on_expected_errors
def cancel(
    instance: IdArgument = None,
    *,
    key: KeyOption = None,
    reason: str = typer.Option(
        "cancelled", "--reason", metavar="TEXT", help="Stored as the error of the cancelled instances."
    ),
    cascade: bool = typer.Option(True, help="Cancel its descendants, too."),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Cancel an instance and its descendants.

    Waiting instances end at once; executing ones are stopped by their workers.

    gen-durable cancel 42 --reason "duplicate order"

    Exit code 1: the instance does not exist or has already ended.
    """
    which = require_id_or_key(instance, key)
    cancelled = asyncio.run(run_with_client(dsn, schema, lambda app: app.cancel(which, reason=reason, cascade=cascade)))
    if not cancelled:
        exit_with_message(f"instance {cancelled.id} is already {cancelled.was.value}. There is nothing to cancel.", 1)
    print_message(f"instance {cancelled.id}: {cancelled.ended} cancelled, {cancelled.requested} executing and stopping")


@exit_on_expected_errors
def retry(
    instance: IdArgument = None, *, key: KeyOption = None, dsn: DsnOption = None, schema: SchemaOption = SCHEMA
) -> None:
    """Resume a failed or cancelled instance at the step in which it ended.

    It does not get back a unique key that it has released. A parent that has
    continued without it does not wait for it again.

    Exit code 1: the instance does not exist, is done, or has not ended.
    """
    which = require_id_or_key(instance, key)
    asyncio.run(run_with_client(dsn, schema, lambda app: app.retry(which)))
    print_message(f"{_describe_target(which)}: runnable again")


@exit_on_expected_errors
def rm(
    instance: IdArgument = None, *, key: KeyOption = None, dsn: DsnOption = None, schema: SchemaOption = SCHEMA
) -> None:
    """Delete an ended instance.

    Workers delete old instances by themselves, after the retention time.

    Exit code 1: the instance does not exist, or it or its parent has not ended.
    """
    which = require_id_or_key(instance, key)
    asyncio.run(run_with_client(dsn, schema, lambda app: app.delete(which)))
    print_message(f"{_describe_target(which)}: deleted")


def _parse_payload(text: str) -> object:
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        exit_with_message(
            f"The payload is not JSON ({error}). Quote it for the shell, as in '{{\"amount\": 100}}' or '\"text\"'."
        )


def _describe_target(which: int | str) -> str:
    return f"instance {which}" if isinstance(which, int) else f"instance with key {which}"
