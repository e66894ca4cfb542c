"""`gen-durable signals`: list, restore and delete signals."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from gen_durable.cli.client_runner import run_with_client
from gen_durable.cli.console import (
    exit_on_expected_errors,
    exit_with_message,
    new_result_console,
    print_json,
    print_message,
)
from gen_durable.cli.formatters import (
    decode_payload_as_stored,
    format_payload,
    format_relative_time,
    text_or_encrypted_hint,
)
from gen_durable.cli.shared_options import SCHEMA, CodecOption, DsnOption, KeyOption, SchemaOption, require_id_or_key
from gen_durable.cli.tables import collapse_whitespace, make_one_line_per_row_table
from gen_durable.client import Durable
from gen_durable.operations.signal_admin import Restoration
from gen_durable.signals import StoredSignal

USAGE: Final = (
    "Write `signals ID`, `signals --rejected`, `signals restore SIGNAL_ID...` or `signals rm ID [--name NAME]`."
)
REASONS: Final[dict[Restoration, str]] = {
    "restored": "restored",
    "duplicate": "stays rejected, because another signal has its dedup key now",
    "not_rejected": "is not rejected",
    "unknown": "does not exist",
}


@exit_on_expected_errors
def signals(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID | restore SIGNAL_ID... | rm ID]", show_default=False, help="An instance's ID."),
    ] = None,
    *,
    key: KeyOption = None,
    rejected: bool = typer.Option(False, "--rejected", help="Only rejected signals; without an ID of all instances."),
    payloads: bool = typer.Option(False, "--payloads", help="Show the payloads too."),
    name: str | None = typer.Option(None, "--name", metavar="NAME", help="With rm: only signals of this name."),
    as_json: bool = typer.Option(False, "--json", help="Print the signals as JSON."),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """List the signals of an instance, or all rejected ones; restore or delete signals.

    A rejected signal has a payload that no worker could read. It is kept, and a
    worker with another definition tries it again. `restore` lets every worker try
    again. `rm` deletes the unread and rejected signals of an instance.

    gen-durable signals 42
    gen-durable signals --rejected
    gen-durable signals restore 7 8
    gen-durable signals rm 42 --name payment

    Exit code 1: the instance does not exist, or a signal could not be restored.
    """
    match words or []:
        case ["restore", *ids] if ids and key is None:
            _restore_and_report_signals(_parse_ids(ids), dsn, schema)
        case ["rm", *rest] if len(rest) <= 1:
            which = require_id_or_key(_parse_ids(rest)[0] if rest else None, key)
            deleted = asyncio.run(run_with_client(dsn, schema, lambda app: app.delete_signals(which, name)))
            print_message(f"{deleted:,} signals deleted")
        case [*rest] if len(rest) <= 1 and (rest or key is not None or rejected):
            given = None if not rest and key is None else require_id_or_key(_parse_ids(rest)[0] if rest else None, key)
            found = asyncio.run(
                run_with_client(
                    dsn,
                    schema,
                    lambda app: _read_signals(app, given, rejected=rejected, payloads=payloads),
                    codec=codec,
                )
            )
            _print_signals(found, payloads=payloads, as_json=as_json)
        case _:
            exit_with_message(USAGE)


async def _read_signals(app: Durable, which: int | str | None, *, rejected: bool, payloads: bool) -> list[StoredSignal]:
    if which is None:
        return await app.rejected_signals(payloads=payloads)
    found = await app.signals(which, payloads=payloads)
    if not found:
        await app.get(which)  # raises NotFound for an unknown instance
    return [signal for signal in found if signal.state == "rejected"] if rejected else found


def _restore_and_report_signals(ids: list[int], dsn: str | None, schema: str) -> None:
    verdicts = asyncio.run(run_with_client(dsn, schema, lambda app: app.restore_signals(ids)))
    for one, verdict in verdicts.items():
        print_message(f"signal {one} {REASONS[verdict]}")
    if any(verdict != "restored" for verdict in verdicts.values()):
        raise typer.Exit(1)


def _print_signals(found: list[StoredSignal], *, payloads: bool, as_json: bool) -> None:
    if as_json:
        print_json([_signal_json_fields(signal, payloads=payloads) for signal in found])
    elif not found:
        print_message("there are no signals")
    else:
        now = datetime.now(UTC)
        heads = ("id", "instance", "machine", "name", "state", "age", "bytes", "dedup key", "payload or reason")
        new_result_console().print(
            make_one_line_per_row_table(
                heads,
                (
                    (
                        *(
                            str(signal.id),
                            str(signal.target_id),
                            signal.machine,
                            signal.name,
                            describe_signal_state(signal),
                        ),
                        *(format_relative_time(signal.inserted_at, now), f"{signal.size:,}", signal.dedup_key or ""),
                        _describe_reason_and_payload(signal, payloads=payloads),
                    )
                    for signal in found
                ),
            )
        )


def describe_signal_state(signal: StoredSignal) -> str:
    """The state, as words."""
    return signal.state.replace("_", " ")


def _describe_reason_and_payload(signal: StoredSignal, *, payloads: bool) -> str:
    parts = [signal.reason or ""]
    if payloads and signal.raw_payload is not None:
        parts.append(text_or_encrypted_hint(collapse_whitespace(format_payload(signal.raw_payload))))
    return "; ".join(part for part in parts if part)


def _signal_json_fields(signal: StoredSignal, *, payloads: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": signal.id,
        "instance": signal.target_id,
        "machine": signal.machine,
        "name": signal.name,
        "state": signal.state,
        "inserted_at": signal.inserted_at.isoformat(),
        "size": signal.size,
        "dedup_key": signal.dedup_key,
        "reason": signal.reason,
    }
    return fields | ({"payload": decode_payload_as_stored(signal.raw_payload)} if payloads else {})


def _parse_ids(words: list[str]) -> list[int]:
    if not all(word.isdigit() for word in words):
        exit_with_message(USAGE)
    return [int(word) for word in words]
