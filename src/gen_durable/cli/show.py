"""`gen-durable show`: one instance, with its latest outcomes and activities."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime

import typer
from rich.table import Table

from gen_durable.cli.client_runner import run_with_client
from gen_durable.cli.console import exit_on_expected_errors, make_escaped_text, new_result_console, print_json
from gen_durable.cli.formatters import (
    decode_payload_as_stored,
    describe_wait_or_worker,
    format_duration,
    format_payload,
    format_relative_time,
    format_unique_key,
    instance_json_fields,
    text_or_encrypted_hint,
)
from gen_durable.cli.history import transition_json_fields
from gen_durable.cli.shared_options import (
    SCHEMA,
    CodecOption,
    DsnOption,
    IdArgument,
    KeyOption,
    SchemaOption,
    require_id_or_key,
)
from gen_durable.cli.tables import (
    make_one_line_per_row_table,
    new_borderless_table,
    print_table_after_gap,
)
from gen_durable.cli.traceback_printer import print_traceback
from gen_durable.client import Durable
from gen_durable.instances import Instance
from gen_durable.journal import Activity, Checkpoint, Progress, Transition
from gen_durable.listing import Count
from gen_durable.printable_text import TextBlock, escape_to_one_line
from gen_durable.signals import StoredSignal


@dataclass(frozen=True, slots=True)
class InstanceDetails:
    """An instance, and the part of its journal that is shown."""

    instance: Instance
    children: Count
    history: list[Transition]
    activities: list[Activity]
    progress: list[Progress]
    checkpoint: Checkpoint | None
    signals: list[StoredSignal]


@exit_on_expected_errors
def show(
    instance: IdArgument = None,
    *,
    key: KeyOption = None,
    last: int = typer.Option(
        10, "--last", "-n", metavar="N", min=0, help="How many of its latest outcomes and activities to show."
    ),
    state: bool = typer.Option(
        False,
        "--state",
        help="Show the state and the result; with --json also the checkpoint, and the parameters and results of "
        "activities. They may hold secrets.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Show one instance: its status, error, traceback and progress, and its latest outcomes.

    gen-durable show 42
    gen-durable show --key order:42 --state
    gen-durable show 42 -n 0                  without outcomes and activities

    Exit code 1: the instance does not exist.
    """
    details = asyncio.run(
        run_with_client(
            dsn, schema, lambda app: _read_details(app, require_id_or_key(instance, key), last), codec=codec
        )
    )
    if as_json:
        print_json(_details_json_fields(details, state=state))
        return
    now, console = datetime.now(UTC), new_result_console()
    console.print(_fields_table(details, now, state=state))
    print_traceback(console, "traceback", details.instance.traceback)
    if details.history:
        print_table_after_gap(console, _transitions_table(details.history, now))
    if details.activities:
        print_table_after_gap(console, _activities_table(details.activities, now))


async def _read_details(app: Durable, which: int | str, last: int) -> InstanceDetails:
    instance = await app.get(which)
    return InstanceDetails(
        instance,
        await app.count(parent=instance.id),
        await app.history(instance.id, last=last),
        await app.activities(instance.id, last=last),
        await app.progress(instance.id),
        await app.checkpoint(instance.id),
        [signal for signal in await app.signals(instance.id) if signal.state != "consumed"],
    )


def _details_json_fields(details: InstanceDetails, *, state: bool) -> dict[str, object]:
    """Everything for --json. Payloads only if `state`; messages of progress always."""
    stored = details.checkpoint
    checkpoint: dict[str, object] | None = None
    if stored is not None:
        checkpoint = {"version": stored.version, "updated_at": stored.updated_at.isoformat()}
        checkpoint |= {"value": decode_payload_as_stored(stored.raw_value)} if state else {}
    return instance_json_fields(details.instance, payloads=state) | {
        "traceback": details.instance.traceback,
        "children": {"value": details.children.value, "exact": details.children.exact},
        "progress": [
            {
                "step": p.step,
                "branch": p.branch,
                "fraction": p.fraction,
                "message": p.message,
                "updated_at": p.updated_at.isoformat(),
            }
            | ({"detail": decode_payload_as_stored(p.raw_detail)} if state else {})
            for p in details.progress
        ],
        "checkpoint": checkpoint,
        "signals": [{"id": s.id, "name": s.name, "state": s.state, "reason": s.reason} for s in details.signals],
        "history": [transition_json_fields(t, state=state) for t in details.history],
        "activities": [
            {
                "visit": a.visit,
                "step": a.step,
                "name": a.name,
                "attempt": a.attempt,
                "started_at": a.started_at.isoformat(),
                "duration": a.duration,
                "error": a.error,
            }
            | (
                {
                    "parameters": decode_payload_as_stored(a.raw_parameters),
                    "result": decode_payload_as_stored(a.raw_result),
                }
                if state
                else {}
            )
            for a in details.activities
        ],
    }


def _fields_table(details: InstanceDetails, now: datetime, *, state: bool) -> Table:
    instance = details.instance
    table = new_borderless_table(has_head=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _list_named_field_texts(details, now):
        if value:
            table.add_row(name, make_escaped_text(value))
    if state:
        for name, raw in (("state", instance.raw_state), ("result", instance.raw_result)):
            if raw is not None:
                table.add_row(name, make_escaped_text(_to_unindented_text_block(format_payload(raw))))
    elif instance.raw_result is not None:
        table.add_row("state, result", make_escaped_text("hidden; --state shows them", "dim"))
    else:
        table.add_row("state", make_escaped_text("hidden; --state shows it", "dim"))
    return table


def _list_named_field_texts(details: InstanceDetails, now: datetime) -> list[tuple[str, str]]:
    instance, children = details.instance, details.children
    waits = "" if instance.status.terminal else describe_wait_or_worker(instance, now)
    numbers = {"attempt": instance.attempt, "crashes": instance.crashes}
    return [
        ("id", str(instance.id)),
        ("machine", f"{instance.machine}, version {instance.version}"),
        ("step", instance.step),
        ("status", instance.status.value + (f", {waits}" if waits else "")),
        ("", ", ".join(f"{name} {n}" for name, n in numbers.items() if n)),
        ("cannot be read", "; ".join(instance.problems)),
        (
            "previous error" if instance.has_previous_error else "error",
            _to_unindented_text_block(text_or_encrypted_hint(instance.last_error)),
        ),
        ("error type", instance.error_type or ""),
        (
            "progress",
            _to_unindented_text_block(
                "\n".join(escape_to_one_line(_describe_progress(p, now)) for p in details.progress)
            ),
        ),
        ("checkpoint", _describe_checkpoint(details.checkpoint, now)),
        ("signals", _describe_signals(details.signals)),
        ("queue", instance.queue + (f", priority {instance.priority}" if instance.priority else "")),
        ("partition key", instance.partition_key or ""),
        ("unique key", format_unique_key(instance.unique_key) or ""),
        ("metadata", json.dumps(instance.metadata, ensure_ascii=False) if instance.metadata else ""),
        ("parent", "" if instance.parent_id is None else str(instance.parent_id)),
        ("children", f"{'' if children.exact else 'about '}{children.value}" if children.value else ""),
        (
            "may run",
            _format_absolute_and_relative_time(instance.due_at if instance.status == "runnable" else None, now),
        ),
        ("timeout", _format_absolute_and_relative_time(instance.await_deadline, now)),
        ("inserted", _format_absolute_and_relative_time(instance.inserted_at, now)),
        ("first claimed", _format_absolute_and_relative_time(instance.started_at, now)),
        ("changed", _format_absolute_and_relative_time(instance.updated_at, now)),
        ("ended", _format_absolute_and_relative_time(instance.finished_at, now)),
    ]


def _to_unindented_text_block(text: str) -> TextBlock:
    """Text that keeps its lines: the column indents them."""
    return TextBlock(text, indent="")


def _describe_progress(progress: Progress, now: datetime) -> str:
    where = f"{progress.step} ({progress.branch})" if progress.branch else progress.step
    parts = [] if progress.fraction is None else [f"{progress.fraction:.0%}"]
    if progress.message:
        parts.append(text_or_encrypted_hint(progress.message))
    return f"{where}: {', '.join(parts) or 'started'} ({format_relative_time(progress.updated_at, now)})"


def _describe_signals(signals: list[StoredSignal]) -> str:
    """`2 waiting (go), 1 rejected (pay)`, or `3 never read (go)` of an ended instance."""
    parts: list[str] = []
    for state in ("waiting", "never_read", "rejected"):
        names = [signal.name for signal in signals if signal.state == state]
        if names:
            parts.append(f"{len(names):,} {state.replace('_', ' ')} ({', '.join(dict.fromkeys(names))})")
    return ", ".join(parts)


def _describe_checkpoint(checkpoint: Checkpoint | None, now: datetime) -> str:
    return (
        ""
        if checkpoint is None
        else f"number {checkpoint.version} of this visit ({format_relative_time(checkpoint.updated_at, now)})"
    )


def _transitions_table(transitions: list[Transition], now: datetime) -> Table:
    return make_one_line_per_row_table(
        ("seq", "step", "outcome", "started", "took", "error"),
        (
            (
                str(t.seq),
                t.step + (f", attempt {t.attempt}" if t.attempt else ""),
                t.outcome + (f" -> {t.next_step}" if t.next_step is not None else ""),
                format_relative_time(t.started_at, now),
                format_duration(t.duration),
                text_or_encrypted_hint(t.error),
            )
            for t in transitions
        ),
        style="red",
    )


def _activities_table(activities: list[Activity], now: datetime) -> Table:
    return make_one_line_per_row_table(
        ("visit", "step", "activity", "", "started", "took", "error"),
        (
            (
                str(a.visit),
                a.step,
                a.name + (f", attempt {a.attempt}" if a.attempt else ""),
                "finished" if a.ok else "failed",
                format_relative_time(a.started_at, now),
                format_duration(a.duration),
                text_or_encrypted_hint(a.error),
            )
            for a in activities
        ),
        style="red",
    )


def _format_absolute_and_relative_time(then: datetime | None, now: datetime) -> str:
    return "" if then is None else f"{then.astimezone():%Y-%m-%d %H:%M:%S %z} ({format_relative_time(then, now)})"
