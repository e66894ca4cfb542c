"""`gen-durable ls` and `gen-durable count`: which instances there are, and how many."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gen_durable.cli.console import fail, plainly, say
from gen_durable.cli.database import SCHEMA, DsnOption, SchemaOption
from gen_durable.cli.options import CodecOption, ask, fields, moment, note, plain, since
from gen_durable.client import Durable
from gen_durable.instances import Instance, Status
from gen_durable.listing import MAX_PAGE, PAGE, Filters, Page

COLOURS = {Status.FAILED: "red", Status.CANCELLED: "yellow", Status.EXECUTING: "green", Status.DONE: "dim"}
_AGO = "10m, 2h, 3d ago, or a date."

StatusOption = Annotated[list[Status] | None, typer.Option("--status", "-s", help="In this status; may be repeated.")]
MachineOption = Annotated[str | None, typer.Option("--machine", "-m", help="Of this machine or job.")]
VersionOption = Annotated[int | None, typer.Option("--machine-version", help="Of this version of the machine.")]
StepOption = Annotated[str | None, typer.Option("--step", help="At this step.")]
QueueOption = Annotated[str | None, typer.Option("--queue", "-q", help="In this queue.")]
PartitionOption = Annotated[str | None, typer.Option("--partition-key", help="With this partition key.")]
ParentOption = Annotated[int | None, typer.Option("--parent", metavar="ID", help="Children of this instance.")]
HolderOption = Annotated[str | None, typer.Option("--key", help="Who holds this unique key now.")]
MetadataOption = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="NAME=VALUE", help="With this in its metadata; a JSON object does too."),
]
InsertedAfter = Annotated[str | None, typer.Option("--inserted-after", metavar="WHEN", help=f"From then on: {_AGO}")]
InsertedBefore = Annotated[str | None, typer.Option("--inserted-before", metavar="WHEN", help="Before then.")]
UpdatedAfter = Annotated[str | None, typer.Option("--updated-after", metavar="WHEN", help="Changed since then.")]
UpdatedBefore = Annotated[str | None, typer.Option("--updated-before", metavar="WHEN", help="Not changed since.")]
FinishedAfter = Annotated[str | None, typer.Option("--finished-after", metavar="WHEN", help="Ended since then.")]
FinishedBefore = Annotated[str | None, typer.Option("--finished-before", metavar="WHEN", help="Ended before then.")]


@plainly
def ls(
    *,
    status: StatusOption = None,
    machine: MachineOption = None,
    machine_version: VersionOption = None,
    step: StepOption = None,
    queue: QueueOption = None,
    partition_key: PartitionOption = None,
    parent: ParentOption = None,
    key: HolderOption = None,
    metadata: MetadataOption = None,
    inserted_after: InsertedAfter = None,
    inserted_before: InsertedBefore = None,
    updated_after: UpdatedAfter = None,
    updated_before: UpdatedBefore = None,
    finished_after: FinishedAfter = None,
    finished_before: FinishedBefore = None,
    limit: int = typer.Option(PAGE, "--limit", "-n", min=1, max=100_000, help="At most so many."),
    after: str | None = typer.Option(None, "--after", metavar="CURSOR", help="Go on where a former list ended."),
    as_json: bool = typer.Option(False, "--json", help="Print them as JSON, with the cursor to go on with."),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """List instances, newest first. All filters that are given must fit.

    gen-durable ls -s failed --finished-after 2h
    gen-durable ls -m Checkout --metadata tenant=acme

    States and results are not shown: `gen-durable show ID --state` does.
    """
    filters = _filters(locals())
    page = asyncio.run(ask(dsn, schema, lambda app: _gather(app, filters, limit, after), codec=codec))
    if as_json:
        told = [fields(one, payloads=False) for one in page]
        typer.echo(json.dumps({"instances": told, "cursor": page.cursor}, indent=2))
        return
    if page.instances:
        Console().print(table(page.instances))
    else:
        say("no instance fits")
    if page.cursor is not None:
        say(f"there may be more: --after {page.cursor}")


@plainly
def count(
    *,
    status: StatusOption = None,
    machine: MachineOption = None,
    machine_version: VersionOption = None,
    step: StepOption = None,
    queue: QueueOption = None,
    partition_key: PartitionOption = None,
    parent: ParentOption = None,
    key: HolderOption = None,
    metadata: MetadataOption = None,
    inserted_after: InsertedAfter = None,
    inserted_before: InsertedBefore = None,
    updated_after: UpdatedAfter = None,
    updated_before: UpdatedBefore = None,
    finished_after: FinishedAfter = None,
    finished_before: FinishedBefore = None,
    as_json: bool = typer.Option(False, "--json", help="Print the number, and whether it is exact, as JSON."),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Count instances, by the filters of `ls`. Quick on any table: what would take long is estimated, and says so."""
    filters = _filters(locals())
    found = asyncio.run(ask(dsn, schema, lambda app: app.count(**filters)))
    if as_json:
        typer.echo(json.dumps({"value": found.value, "exact": found.exact}))
    else:
        typer.echo(f"{found.value}" if found.exact else f"about {found.value}")


async def _gather(app: Durable, filters: Filters, limit: int, after: str | None) -> Page:
    """As many as are wanted, through pages that were cut."""
    found: list[Instance] = []
    cursor = after
    while True:
        page = await app.list(limit=min(MAX_PAGE, limit - len(found)), after=cursor, **filters)
        found += page
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return Page(tuple(found), cursor)


def _filters(options: dict[str, Any]) -> Filters:
    """The options of a command as filters; what was not given is left out."""
    names = {"machine_version": "version", "key": "unique_key"}
    given = {names.get(name, name): value for name, value in options.items() if value is not None}
    filters: dict[str, Any] = {name: given[name] for name in Filters.__annotations__ if name in given}
    for name, text in tuple(filters.items()):
        if name.endswith(("_after", "_before")):
            filters[name] = moment(text, "--" + name.replace("_", "-"))
    if not filters.get("status"):
        filters.pop("status", None)
    if "metadata" in filters:
        filters["metadata"] = _metadata(filters["metadata"])
        if not filters["metadata"]:
            del filters["metadata"]
    return cast(Filters, filters)


def _metadata(texts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if text.lstrip().startswith("{"):
            try:
                found |= json.loads(text)
            except ValueError:
                fail(f"--metadata {text!r} is not a JSON object")
        elif not equals or not name:
            fail(f"--metadata {text!r} is not of the form NAME=VALUE")
        else:
            found[name] = _value(value)
    return found


def _value(text: str) -> object:
    """A number, true, false or null as JSON means it; anything else is a text. Quotes make a text of a number."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def table(instances: tuple[Instance, ...]) -> Table:
    """Instances, one to a line."""
    now = datetime.now(UTC)
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("id", "machine", "step", "status", "queue"):
        made.add_column(name, no_wrap=True, justify="right" if name == "id" else "left")
    made.add_column("inserted", no_wrap=True, justify="right")
    made.add_column("changed", no_wrap=True, justify="right")
    made.add_column("note")  # as in cli.tables: the one that is cut
    for one in instances:
        made.add_row(
            str(one.id),
            Text(one.machine),
            Text(one.step),
            Text(one.status.value, COLOURS.get(one.status, "")),
            Text(one.queue),
            since(one.inserted_at, now),
            since(one.updated_at, now),
            Text(plain(" ".join(note(one).split())), no_wrap=True, overflow="ellipsis"),
        )
    return made
