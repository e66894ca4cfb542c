"""`gen-durable show`: all that is known of one instance."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gen_durable.cli.asking import IdArgument, KeyOption, ask, fields, note, plain, since, target
from gen_durable.cli.console import plainly
from gen_durable.cli.database import SCHEMA, DsnOption, SchemaOption
from gen_durable.client import Durable
from gen_durable.instances import Instance
from gen_durable.listing import Count


@plainly
def show(
    instance: IdArgument = None,
    *,
    key: KeyOption = None,
    state: bool = typer.Option(False, "--state", help="Show the state and the result too; they may hold secrets."),
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Show one instance: where it is, what it waits for, what went wrong. The state only with --state.

    gen-durable show 42
    gen-durable show --key order:42 --state

    Exit code 1: there is no such instance.
    """
    one, children = asyncio.run(ask(dsn, schema, lambda app: _look(app, target(instance, key))))
    if as_json:
        told = fields(one, payloads=state) | {"children": {"value": children.value, "exact": children.exact}}
        typer.echo(json.dumps(told, indent=2))
    else:
        Console().print(_facts(one, children, state=state))


async def _look(app: Durable, which: int | str) -> tuple[Instance, Count]:
    one = await app.get(which)
    return one, await app.count(parent=one.id)


def _facts(one: Instance, children: Count, *, state: bool) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in _lines(one, children, datetime.now(UTC)):
        if value:
            made.add_row(name, Text(plain(value)))
    if state:
        made.add_row("state", Text(plain(json.dumps(one.state, indent=2, ensure_ascii=False))))
        if one.raw_result is not None:
            made.add_row("result", Text(plain(json.dumps(one.result, indent=2, ensure_ascii=False))))
    elif one.raw_result is not None:
        made.add_row("state, result", Text("there are; --state shows them", "dim"))
    else:
        made.add_row("state", Text("there is one; --state shows it", "dim"))
    return made


def _lines(one: Instance, children: Count, now: datetime) -> list[tuple[str, str]]:
    waits = "" if one.status.terminal else note(one) if note(one) != one.last_error else ""
    numbers = {"attempt": one.attempt, "crashes": one.crashes}
    return [
        ("id", str(one.id)),
        ("machine", f"{one.machine}, version {one.version}"),
        ("step", one.step),
        ("status", one.status.value + (f", {waits}" if waits else "")),
        ("", ", ".join(f"{name} {n}" for name, n in numbers.items() if n)),
        ("error", one.last_error or ""),
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


def _when(then: datetime | None, now: datetime) -> str:
    return "" if then is None else f"{then.astimezone():%Y-%m-%d %H:%M:%S %z} ({since(then, now)})"
