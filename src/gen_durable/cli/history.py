"""`gen-durable history`: what an instance has done, outcome by outcome."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import typer
from rich.console import Console
from rich.table import Table

from gen_durable.cli.console import plainly, say
from gen_durable.cli.database import SCHEMA, DsnOption, SchemaOption
from gen_durable.cli.options import CodecOption, IdArgument, KeyOption, ask, target, words
from gen_durable.cli.tables import lines, span
from gen_durable.client import Durable
from gen_durable.journal import Transition

WIDE: Final = 100  # columns; below, errors are worth more than the names of workers


@plainly
def history(
    instance: IdArgument = None,
    *,
    key: KeyOption = None,
    last: int | None = typer.Option(None, "--last", "-n", min=0, show_default=False, help="Only so many of the last."),
    state: bool = typer.Option(False, "--state", help="With --json: the states too; they may hold secrets."),
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Show every committed outcome of an instance, as far as its machine keeps them.

    Exit code 1: there is no such instance.
    """
    which = target(instance, key)
    past = asyncio.run(ask(dsn, schema, lambda app: _read(app, which, last), codec=codec))
    if as_json:
        typer.echo(json.dumps([outcome_fields(one, state=state) for one in past], indent=2))
    elif past:
        console = Console()
        console.print(_table(past, workers=console.width >= WIDE))
    else:
        say("nothing is kept of it: it has not run yet, or its machine has history='off'")


async def _read(app: Durable, which: int | str, last: int | None) -> list[Transition]:
    one = await app.get(which)  # tells an unknown instance from one without a history
    return await app.history(one.id, last=last)


def _table(past: list[Transition], *, workers: bool) -> Table:
    return lines(
        ("seq", "step", "outcome", "started", "took", *(("worker",) if workers else ()), "error"),
        (
            (
                str(one.seq),
                one.step + (f", attempt {one.attempt}" if one.attempt else ""),
                one.outcome + (f" -> {one.next_step}" if one.next_step is not None else ""),
                f"{one.started_at.astimezone():%Y-%m-%d %H:%M:%S}",
                span(one.duration),
                *((one.worker or "",) if workers else ()),
                words(one.error),
            )
            for one in past
        ),
        style="red",
    )


def outcome_fields(one: Transition, *, state: bool) -> dict[str, object]:
    """An outcome for --json; the state only if it is asked for."""
    told: dict[str, object] = {
        "seq": one.seq,
        "step": one.step,
        "outcome": one.outcome,
        "next_step": one.next_step,
        "attempt": one.attempt,
        "started_at": one.started_at.isoformat(),
        "duration": one.duration,
        "worker": one.worker,
        "error": one.error,
    }
    if not state:
        return told
    return told | {"state": None if one.raw_state is None else json.loads(one.raw_state)}
