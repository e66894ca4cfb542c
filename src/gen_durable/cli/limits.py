"""`gen-durable limits`: how full each limit is, and changing one while everything runs."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gen_durable.cli.console import fail, plainly, say
from gen_durable.cli.database import SCHEMA, DsnOption, SchemaOption
from gen_durable.cli.options import ask
from gen_durable.limits import Concurrency, LimitState, Policy, Rate

SHOWN = 50
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}

limits = typer.Typer(invoke_without_command=True, help="See how full each limit is; set and remove limits.")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name that steps give as limit=.")]


@limits.callback()
@plainly
def show(
    context: typer.Context,
    *,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: bool = typer.Option(False, "--json", help="Print the limits as JSON."),
) -> None:
    """Show every limit: its policy, how much of it is taken, how many rows wait, and when the next token is there."""
    if context.invoked_subcommand is not None:
        return
    states = asyncio.run(ask(dsn, schema, lambda app: app.limits()))
    if as_json:
        typer.echo(json.dumps([asdict(state) for state in states], indent=2))
    elif not states:
        say("there are no limits: declare them with Worker(limits={...}) or `gen-durable limits set`")
    else:
        Console().print(_table(states))


@limits.command("set")
@plainly
def set_limit(
    name: NameArgument,
    *,
    concurrency: int | None = typer.Option(None, min=1, metavar="K", help="At most so many at a time."),
    rate: str | None = typer.Option(
        None, metavar="N/SPAN", help="At most so many in a span of time: 100/m, 5/30s, 1/d."
    ),
    burst: int = typer.Option(1, min=1, help="With --rate: so many at once after a rest."),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Make or change a limit while everything runs.

    Steps that run go on; from the moment this returns no worker begins one above the new limit. The change stays when
    workers start again, until what they declare is itself changed.
    """
    if (concurrency is None) == (rate is None):
        fail("give either --concurrency or --rate")
    policy: Policy = Concurrency(concurrency) if concurrency is not None else _rate(rate or "", burst)
    changed = asyncio.run(ask(dsn, schema, lambda app: app.set_limit(name, policy)))
    say(f"limit {name}: {'set' if changed else 'was so already'}")


@limits.command("rm")
@plainly
def remove(name: NameArgument, *, dsn: DsnOption = None, schema: SchemaOption = SCHEMA) -> None:
    """Remove a limit: rows that name it run freely, new ones that name it are refused."""
    if not asyncio.run(ask(dsn, schema, lambda app: app.remove_limit(name))):
        fail(f"there is no limit called {name}", 1)
    say(f"limit {name}: removed")


def _rate(text: str, burst: int) -> Rate:
    amount, slash, span = text.partition("/")
    found = _SPAN.fullmatch(span) or _SPAN.fullmatch(f"1{span}")
    if not slash or not amount.isdigit() or found is None:
        fail(f"--rate {text!r} is not of the form N/SPAN: write 100/m, 5/30s or 1/d")
    return Rate(int(amount), timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"]), burst)


def _table(states: list[LimitState]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("limit", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    table.add_column("taken", justify="right")
    table.add_column("waiting", justify="right")
    table.add_column("next", justify="right")
    for state in states[:SHOWN]:
        full = state.taken >= (state.slots or state.burst or 0)
        table.add_row(
            state.key or state.name,
            _policy(state),
            Text(f"{state.taken:g} of {state.slots or state.burst}", "yellow" if full else ""),
            Text(f"{state.waiting:,}", "yellow" if state.waiting else "dim"),
            "" if state.next_token is None else "now" if state.next_token <= 0 else f"in {_span(state.next_token)}",
        )
    if len(states) > SHOWN:
        table.add_row(Text(f"and {len(states) - SHOWN} more (--json shows all)", "dim"))
    return table


def _policy(state: LimitState) -> str:
    if state.period is None:
        return f"{state.slots} at a time"
    return f"one every {_span(state.period)}, burst {state.burst}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"
