"""`gen-durable show`: all that is known of one instance, and what it has done lately."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gen_durable.cli.console import plainly
from gen_durable.cli.database import SCHEMA, DsnOption, SchemaOption
from gen_durable.cli.history import outcome_fields
from gen_durable.cli.options import (
    CodecOption,
    IdArgument,
    KeyOption,
    ask,
    fields,
    note,
    payload,
    plain,
    since,
    stored,
    target,
    words,
)
from gen_durable.cli.tables import lines, span
from gen_durable.client import Durable
from gen_durable.instances import Instance
from gen_durable.journal import Activity, Checkpoint, Progress, Transition
from gen_durable.listing import Count


@dataclass(frozen=True, slots=True)
class Known:
    """An instance, and its journal as far as it is shown."""

    one: Instance
    children: Count
    history: list[Transition]
    activities: list[Activity]
    progress: list[Progress]
    checkpoint: Checkpoint | None


@plainly
def show(
    instance: IdArgument = None,
    *,
    key: KeyOption = None,
    last: int = typer.Option(10, "--last", "-n", min=0, help="Show so many of its last outcomes and activities."),
    state: bool = typer.Option(
        False,
        "--state",
        help="Show the state and the result too; with --json also the checkpoint and what activities were called with "
        "and returned. They may hold secrets.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Show one instance: where it is, what it waits for, what went wrong, how far it has come, and what it did last.

    gen-durable show 42
    gen-durable show --key order:42 --state
    gen-durable show 42 -n 0                  only where it is

    Exit code 1: there is no such instance.
    """
    known = asyncio.run(ask(dsn, schema, lambda app: _look(app, target(instance, key), last), codec=codec))
    if as_json:
        typer.echo(json.dumps(_told(known, state=state), indent=2))
        return
    now, console = datetime.now(UTC), Console()
    console.print(_facts(known, now, state=state))
    if known.history:
        console.print("\n", _outcomes(known.history, now), sep="")
    if known.activities:
        console.print("\n", _calls(known.activities, now), sep="")


async def _look(app: Durable, which: int | str, last: int) -> Known:
    one = await app.get(which)
    return Known(
        one,
        await app.count(parent=one.id),
        await app.history(one.id, last=last),
        await app.activities(one.id, last=last),
        await app.progress(one.id),
        await app.checkpoint(one.id),
    )


def _told(known: Known, *, state: bool) -> dict[str, object]:
    """All of it for --json; what was written by steps only if it is asked for, but for the words of their progress."""
    kept = known.checkpoint
    checkpoint: dict[str, object] | None = None
    if kept is not None:
        checkpoint = {"version": kept.version, "updated_at": kept.updated_at.isoformat()}
        checkpoint |= {"value": stored(kept.raw_value)} if state else {}
    return fields(known.one, payloads=state) | {
        "children": {"value": known.children.value, "exact": known.children.exact},
        "progress": [
            {
                "step": p.step,
                "branch": p.branch,
                "fraction": p.fraction,
                "message": p.message,
                "updated_at": p.updated_at.isoformat(),
            }
            | ({"detail": stored(p.raw_detail)} if state else {})
            for p in known.progress
        ],
        "checkpoint": checkpoint,
        "history": [outcome_fields(t, state=state) for t in known.history],
        "activities": [
            {
                "visit": a.visit,
                "name": a.name,
                "attempt": a.attempt,
                "started_at": a.started_at.isoformat(),
                "duration": a.duration,
                "error": a.error,
            }
            | ({"parameters": stored(a.raw_parameters), "result": stored(a.raw_result)} if state else {})
            for a in known.activities
        ],
    }


def _facts(known: Known, now: datetime, *, state: bool) -> Table:
    one = known.one
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in _lines(known, now):
        if value:
            made.add_row(name, Text(plain(value)))
    if state:
        for name, raw in (("state", one.raw_state), ("result", one.raw_result)):
            if raw is not None:
                made.add_row(name, Text(plain(payload(raw))))
    elif one.raw_result is not None:
        made.add_row("state, result", Text("there are; --state shows them", "dim"))
    else:
        made.add_row("state", Text("there is one; --state shows it", "dim"))
    return made


def _lines(known: Known, now: datetime) -> list[tuple[str, str]]:
    one, children = known.one, known.children
    waits = "" if one.status.terminal else note(one) if note(one) != words(one.last_error) else ""
    numbers = {"attempt": one.attempt, "crashes": one.crashes}
    return [
        ("id", str(one.id)),
        ("machine", f"{one.machine}, version {one.version}"),
        ("step", one.step),
        ("status", one.status.value + (f", {waits}" if waits else "")),
        ("", ", ".join(f"{name} {n}" for name, n in numbers.items() if n)),
        ("error", words(one.last_error)),
        ("progress", "\n".join(_how_far(p, now) for p in known.progress)),
        ("checkpoint", _kept(known.checkpoint, now)),
        ("queue", one.queue + (f", priority {one.priority}" if one.priority else "")),
        ("partition key", one.partition_key or ""),
        ("unique key", "" if one.unique_key is None else one.unique_key.decode(errors="backslashreplace")),
        ("metadata", json.dumps(one.metadata, ensure_ascii=False) if one.metadata else ""),
        ("parent", "" if one.parent_id is None else str(one.parent_id)),
        ("children", f"{'' if children.exact else 'about '}{children.value}" if children.value else ""),
        ("may run", _when(one.due_at if one.status == "runnable" else None, now)),
        ("timeout", _when(one.await_deadline, now)),
        ("inserted", _when(one.inserted_at, now)),
        ("changed", _when(one.updated_at, now)),
        ("ended", _when(one.finished_at, now)),
    ]


def _how_far(one: Progress, now: datetime) -> str:
    where = f"{one.step} ({one.branch})" if one.branch else one.step
    told = ([] if one.fraction is None else [f"{one.fraction:.0%}"]) + ([words(one.message)] if one.message else [])
    return f"{where}: {', '.join(told) or 'begun'} ({since(one.updated_at, now)})"


def _kept(one: Checkpoint | None, now: datetime) -> str:
    return "" if one is None else f"number {one.version} of this visit ({since(one.updated_at, now)})"


def _outcomes(past: list[Transition], now: datetime) -> Table:
    return lines(
        ("seq", "step", "outcome", "began", "took", "error"),
        (
            (
                str(t.seq),
                t.step + (f", attempt {t.attempt}" if t.attempt else ""),
                t.outcome + (f" -> {t.next_step}" if t.next_step is not None else ""),
                since(t.started_at, now),
                span(t.duration),
                words(t.error),
            )
            for t in past
        ),
        style="red",
    )


def _calls(several: list[Activity], now: datetime) -> Table:
    return lines(
        ("visit", "activity", "", "began", "took", "error"),
        (
            (
                str(a.visit),
                a.name + (f", attempt {a.attempt}" if a.attempt else ""),
                "finished" if a.ok else "failed",
                since(a.started_at, now),
                span(a.duration),
                words(a.error),
            )
            for a in several
        ),
        style="red",
    )


def _when(then: datetime | None, now: datetime) -> str:
    return "" if then is None else f"{then.astimezone():%Y-%m-%d %H:%M:%S %z} ({since(then, now)})"
