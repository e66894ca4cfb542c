"""`gen-durable history`: what an instance has done, outcome by outcome."""

from __future__ import annotations

import asyncio
import json

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gen_durable.cli.asking import IdArgument, KeyOption, ask, plain, target
from gen_durable.cli.console import plainly, say
from gen_durable.cli.database import SCHEMA, DsnOption, SchemaOption
from gen_durable.client import Durable
from gen_durable.journal import Transition


@plainly
def history(
    instance: IdArgument = None,
    *,
    key: KeyOption = None,
    state: bool = typer.Option(False, "--state", help="With --json: the states too; they may hold secrets."),
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Show every committed outcome of an instance, as far as its machine keeps them.

    Exit code 1: there is no such instance.
    """
    which = target(instance, key)
    past = asyncio.run(ask(dsn, schema, lambda app: _read(app, which)))
    if as_json:
        typer.echo(json.dumps([_plain(one, state=state) for one in past], indent=2))
    elif past:
        Console().print(_table(past))
    else:
        say("nothing is kept of it: it has not run yet, or its machine has history='off'")


async def _read(app: Durable, which: int | str) -> list[Transition]:
    one = await app.get(which)  # tells an unknown instance from one without a history
    return await app.history(one.id)


def _table(past: list[Transition]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    made.add_column("seq", justify="right")
    for name in ("step", "outcome", "started", "took", "worker"):
        made.add_column(name, no_wrap=True)
    made.add_column("error", no_wrap=True, overflow="ellipsis")
    for one in past:
        made.add_row(
            str(one.seq),
            Text(one.step + (f", attempt {one.attempt}" if one.attempt else "")),
            Text(one.outcome + (f" -> {one.next_step}" if one.next_step is not None else "")),
            f"{one.started_at.astimezone():%Y-%m-%d %H:%M:%S}",
            f"{one.duration * 1000:.1f} ms" if one.duration < 1 else f"{one.duration:.1f} s",
            Text(plain(one.worker or "")),
            Text(plain(" ".join((one.error or "").split())), "red"),
        )
    return made


def _plain(one: Transition, *, state: bool) -> dict[str, object]:
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
    return told | ({"state": one.state} if state else {})
