"""`gen-durable ls` and `gen-durable count`: list and count instances."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import typer
from rich.table import Table

from gen_durable.cli.client_runner import run_with_client
from gen_durable.cli.console import (
    exit_on_expected_errors,
    make_escaped_text,
    new_result_console,
    print_json,
    print_line,
    print_message,
)
from gen_durable.cli.filters import FilterOptions, add_filter_options
from gen_durable.cli.formatters import describe_wait_worker_or_error, format_relative_time, instance_json_fields
from gen_durable.cli.shared_options import SCHEMA, CodecOption, DsnOption, SchemaOption
from gen_durable.cli.tables import collapse_whitespace, new_borderless_table
from gen_durable.client import Durable
from gen_durable.instances import Instance, Status
from gen_durable.listing import MAX_PAGE, PAGE, Count, Filters, Page

FEW = 1000
COLOURS = {Status.FAILED: "red", Status.CANCELLED: "yellow", Status.EXECUTING: "green", Status.DONE: "dim"}


@exit_on_expected_errors
@add_filter_options
def ls(
    filter_options: FilterOptions,
    *,
    limit: int = typer.Option(
        PAGE, "--limit", "-n", metavar="N", min=1, max=100_000, help="The most instances to list."
    ),
    after: str | None = typer.Option(
        None, "--after", metavar="CURSOR", help="Continue after the cursor that an earlier list has printed."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, with the cursor of the next page."),
    codec: CodecOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """List instances, newest first.

    An instance is listed if it matches all filters. States and results are
    not shown; use `gen-durable show ID --state`.

    gen-durable ls -s failed --finished-after 2h
    gen-durable ls -m Checkout --metadata tenant=acme
    """
    filters = filter_options.to_filters()
    page = asyncio.run(
        run_with_client(dsn, schema, lambda app: _read_instances(app, filters, limit, after), codec=codec)
    )
    if as_json:
        instances = [instance_json_fields(instance, payloads=False) for instance in page]
        print_json({"instances": instances, "cursor": page.cursor})
        return
    if page.instances:
        new_result_console().print(_instances_table(page.instances))
    else:
        print_message("no instance matches")
    if page.cursor is not None:
        print_message(f"there may be more: --after {page.cursor}")


@exit_on_expected_errors
@add_filter_options
def count(
    filter_options: FilterOptions,
    *,
    as_json: bool = typer.Option(False, "--json", help="Print JSON: the number, and whether it is exact."),
    dsn: DsnOption = None,
    schema: SchemaOption = SCHEMA,
) -> None:
    """Count instances, with the filters of `ls`.

    A count that would take long is estimated and printed as "about N". A zero
    is always exact.
    """
    filters = filter_options.to_filters()
    found = asyncio.run(run_with_client(dsn, schema, lambda app: _count_instances(app, filters)))
    if as_json:
        print_json({"value": found.value, "exact": found.exact}, indent=None)
    else:
        print_line(f"{found.value}" if found.exact else f"about {found.value}")


async def _count_instances(app: Durable, filters: Filters) -> Count:
    """Count instances. A small estimate may stand for none: search for one, through the whole table as `ls` does."""
    found = await app.count(**filters)
    if found.exact or found.value > FEW:
        return found
    one = await _read_instances(app, filters, 1, None)
    return Count(max(found.value, 1), exact=False) if one.instances else Count(0, exact=True)


async def _read_instances(app: Durable, filters: Filters, limit: int, after: str | None) -> Page:
    """Read pages until `limit` instances are found: a page may be short and still have a successor."""
    instances: list[Instance] = []
    cursor = after
    while True:
        page = await app.list(limit=min(MAX_PAGE, limit - len(instances)), after=cursor, **filters)
        instances += page
        cursor = page.cursor
        if cursor is None or len(instances) >= limit:
            return Page(tuple(instances), cursor)


def _instances_table(instances: tuple[Instance, ...]) -> Table:
    now = datetime.now(UTC)
    table = new_borderless_table()
    for name in ("id", "machine", "step", "status", "queue"):
        table.add_column(name, no_wrap=True, justify="right" if name == "id" else "left")
    table.add_column("inserted", no_wrap=True, justify="right")
    table.add_column("changed", no_wrap=True, justify="right")
    table.add_column("note")  # the only column that may be cut, as in cli.tables
    for instance in instances:
        table.add_row(
            str(instance.id),
            instance.machine,
            instance.step,
            make_escaped_text(instance.status.value, COLOURS.get(instance.status, "")),
            instance.queue,
            format_relative_time(instance.inserted_at, now),
            format_relative_time(instance.updated_at, now),
            make_escaped_text(collapse_whitespace(describe_wait_worker_or_error(instance, now)), is_cut=True),
        )
    return table
