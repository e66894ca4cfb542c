"""`gen-durable history`: the committed outcomes of an instance."""

from __future__ import annotations

import asyncio
from typing import Final

import typer
from rich.table import Table

from gen_durable.cli.client_runner import run_with_client
from gen_durable.cli.console import exit_on_expected_errors, new_result_console, print_json, print_message
from gen_durable.cli.formatters import decode_payload_as_stored, format_duration, text_or_encrypted_hint
from gen_durable.cli.shared_options import (
    SCHEMA,
    CodecOption,
    DsnOption,
    IdArgument,
    KeyOption,
    SchemaOption,
    require_id_or_key,
)
from gen_durable.cli.tables import make_one_line_per_row_table
from gen_durable.cli.traceback_printer import print_traceback
from gen_durable.client import Durable
from gen_durable.journal import Transition

WIDE: Final = 100  # narrower terminals show errors rather than waits, causes and the names of workers


@exit_on_expected_errors
def history(
    instance: IdArgument = None,
    *,
    key: KeyOption = None,
    last: int | None = typer.Option(
        None, "--last", "-n", metavar="N", min=0, show_default=False, help="Show only the last N outcomes."
    ),
    tracebacks: bool = typer.Option(False, "--tracebacks", help="Print the tracebacks of errors too."),
    state: bool = typer.Option(False, "--state", help="With --json: include the states. They may hold secrets."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Show the committed outcomes of an instance.

    How many are kept depends on `history=` and `history_keep=` of the machine.

    Exit code 1: the instance does not exist.
    """
    which = require_id_or_key(instance, key)
    transitions = asyncio.run(
        run_with_client(dsn, schema, lambda app: _read_transitions(app, which, last), codec=codec)
    )
    if as_json:
        print_json([transition_json_fields(t, state=state, traceback=tracebacks) for t in transitions])
    elif transitions:
        console = new_result_console()
        console.print(_transitions_table(transitions, is_wide=console.width >= WIDE))
        for t in transitions if tracebacks else ():
            print_traceback(console, f"{t.seq} {t.step}, {t.error_type}", t.traceback)
    else:
        print_message("no history: the instance has not run yet, or its machine has history='off'")


async def _read_transitions(app: Durable, which: int | str, last: int | None) -> list[Transition]:
    instance = await app.get(which)  # raises NotFound; an instance without a history gives an empty list
    return await app.history(instance.id, last=last)


def _transitions_table(transitions: list[Transition], *, is_wide: bool) -> Table:
    return make_one_line_per_row_table(
        ("seq", "step", "outcome", "started", "took", *(("waited", "cause", "worker") if is_wide else ()), "error"),
        (
            (
                str(t.seq),
                t.step + (f", attempt {t.attempt}" if t.attempt else ""),
                t.outcome + (f" -> {t.next_step}" if t.next_step is not None else ""),
                f"{t.started_at.astimezone():%Y-%m-%d %H:%M:%S}",
                format_duration(t.duration),
                *((format_duration(t.waited), t.cause, t.worker or "") if is_wide else ()),
                text_or_encrypted_hint(t.error),
            )
            for t in transitions
        ),
        style="red",
    )


def transition_json_fields(t: Transition, *, state: bool, traceback: bool = False) -> dict[str, object]:
    """An outcome for --json; with its state and its traceback only if wanted."""
    found: dict[str, object] = {
        "seq": t.seq,
        "step": t.step,
        "outcome": t.outcome,
        "next_step": t.next_step,
        "attempt": t.attempt,
        "started_at": t.started_at.isoformat(),
        "duration": t.duration,
        "waited": t.waited,
        "cause": t.cause,
        "worker": t.worker,
        "error": t.error,
        "error_type": t.error_type,
    }
    found |= {"traceback": t.traceback} if traceback else {}
    return found | ({"state": decode_payload_as_stored(t.raw_state)} if state else {})
