"""`gen-durable limits`: show the use of each limit, and change limits while workers run."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from gen_durable.cli.client_runner import run_with_client
from gen_durable.cli.console import (
    exit_on_expected_errors,
    exit_with_message,
    make_escaped_text,
    new_result_console,
    print_json,
    print_message,
)
from gen_durable.cli.shared_options import SCHEMA, DsnOption, SchemaOption
from gen_durable.cli.tables import new_borderless_table
from gen_durable.durations import parse_duration
from gen_durable.limits import Concurrency, LimitState, Policy, Rate

SHOWN = 50

limits = typer.Typer(invoke_without_command=True, help="Show the use of each limit; set and remove limits.")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name that steps use as limit=.")]


@limits.callback()
@exit_on_expected_errors
def show_limits(
    context: typer.Context,
    *,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
    as_json: bool = typer.Option(False, "--json", help="Print the limits as JSON."),
) -> None:
    """Show every limit: its policy, its use, how many rows wait, and when the next token is due."""
    if context.invoked_subcommand is not None:
        return
    states = asyncio.run(run_with_client(dsn, schema, lambda app: app.limits()))
    if as_json:
        print_json([asdict(state) for state in states])
    elif not states:
        print_message("there are no limits. Declare them with Worker(limits={...}) or `gen-durable limits set`.")
    else:
        new_result_console().print(_limits_table(states))


@limits.command("set")
@exit_on_expected_errors
def set_limit(
    name: NameArgument,
    *,
    concurrency: int | None = typer.Option(None, min=1, metavar="K", help="The most steps at a time."),
    rate: str | None = typer.Option(
        None, metavar="N/DURATION", help="The most step starts per duration: 100/m, 5/30s, 1/d."
    ),
    burst: int = typer.Option(
        1, min=1, metavar="N", help="With --rate: how many may start at once after an idle time."
    ),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Create or change a limit while workers run.

    Running steps finish. When the command returns, no worker starts a step
    above the new limit. The change survives restarts of workers, until their
    own declaration of the limit changes.
    """
    if (concurrency is None) == (rate is None):
        exit_with_message("Give either --concurrency or --rate.")
    policy: Policy = Concurrency(concurrency) if concurrency is not None else _parse_rate(rate or "", burst)
    changed = asyncio.run(run_with_client(dsn, schema, lambda app: app.set_limit(name, policy)))
    print_message(f"limit {name}: {'set' if changed else 'unchanged'}")


@limits.command("rm")
@exit_on_expected_errors
def remove_limit(name: NameArgument, *, dsn: DsnOption = None, schema: SchemaOption = SCHEMA) -> None:
    """Remove a limit.

    Existing rows that name it run without it; new ones that name it are rejected.
    """
    if not asyncio.run(run_with_client(dsn, schema, lambda app: app.remove_limit(name))):
        exit_with_message(f"There is no limit {name!r}. `gen-durable limits` lists them.", 1)
    print_message(f"limit {name}: removed")


def _parse_rate(text: str, burst: int) -> Rate:
    amount, slash, span = text.partition("/")
    if not slash or not amount.isdigit():
        exit_with_message(f"--rate {text!r} is not of the form N/DURATION. Write for example 100/m, 5/30s or 1/d.")
    return Rate(int(amount), parse_duration(span if span[:1].isdigit() else f"1{span}"), burst)


def _limits_table(states: list[LimitState]) -> Table:
    table = new_borderless_table()
    table.add_column("limit", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    table.add_column("used", justify="right")
    table.add_column("waiting", justify="right")
    table.add_column("next", justify="right")
    for state in states[:SHOWN]:
        full = state.taken >= (state.slots or state.burst or 0)
        table.add_row(
            state.key or state.name,
            _describe_policy(state),
            make_escaped_text(f"{state.taken:g} of {state.slots or state.burst}", "yellow" if full else ""),
            make_escaped_text(f"{state.waiting:,}", "yellow" if state.waiting else "dim"),
            ""
            if state.next_token is None
            else "now"
            if state.next_token <= 0
            else f"in {_format_seconds(state.next_token)}",
        )
    if len(states) > SHOWN:
        table.add_row(make_escaped_text(f"and {len(states) - SHOWN} more (--json shows all)", "dim"))
    return table


def _describe_policy(state: LimitState) -> str:
    if state.period is None:
        return f"{state.slots} at a time"
    return f"one every {_format_seconds(state.period)}, burst {state.burst}"


def _format_seconds(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"
