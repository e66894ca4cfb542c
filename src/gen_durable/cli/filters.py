"""The filter options that `ls` and `count` share: declared once, and turned into the filters of `Durable.list`."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

import typer

from gen_durable.cli.console import exit_with_message
from gen_durable.cli.shared_options import parse_time_or_age
from gen_durable.instances import STORED_STATUSES, Status
from gen_durable.listing import Filters

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """Each field is an option of the command line."""

    status: Annotated[
        list[Status] | None,
        typer.Option("--status", "-s", metavar="STATUS", help=f"One of {', '.join(STORED_STATUSES)}. May be repeated."),
    ] = None
    machine: Annotated[
        str | None, typer.Option("--machine", "-m", metavar="NAME", help="Only this machine or job.")
    ] = None
    machine_version: Annotated[
        int | None, typer.Option("--machine-version", metavar="N", help="Only this version of the machine.")
    ] = None
    step: Annotated[str | None, typer.Option("--step", metavar="NAME", help="Only instances at this step.")] = None
    queue: Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only this queue.")] = None
    partition_key: Annotated[
        str | None, typer.Option("--partition-key", metavar="KEY", help="Only this partition key.")
    ] = None
    parent: Annotated[int | None, typer.Option("--parent", metavar="ID", help="Only children of this instance.")] = None
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only instances that were inserted with this unique key.")
    ] = None
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="NAME=VALUE",
            help="Only instances whose metadata contains this. May be repeated, or be a JSON object.",
        ),
    ] = None
    due: Annotated[bool, typer.Option("--due", help="Only instances that a worker may claim now.")] = False
    blocked: Annotated[
        bool, typer.Option("--blocked", help="Only instances that wait for a partition key or a limit.")
    ] = False
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="TEXT", help="Only instances whose last error contains TEXT, in any case."),
    ] = None
    inserted_after: Annotated[
        str | None,
        typer.Option(
            "--inserted-after",
            metavar="TIME",
            help="Inserted at or after TIME: 10m, 2h, 3d (ago), or a date such as 2026-01-31T12:00.",
        ),
    ] = None
    inserted_before: Annotated[
        str | None, typer.Option("--inserted-before", metavar="TIME", help="Inserted before TIME.")
    ] = None
    updated_after: Annotated[
        str | None, typer.Option("--updated-after", metavar="TIME", help="Last changed at or after TIME.")
    ] = None
    updated_before: Annotated[
        str | None, typer.Option("--updated-before", metavar="TIME", help="Last changed before TIME.")
    ] = None
    finished_after: Annotated[
        str | None, typer.Option("--finished-after", metavar="TIME", help="Ended at or after TIME.")
    ] = None
    finished_before: Annotated[
        str | None, typer.Option("--finished-before", metavar="TIME", help="Ended before TIME.")
    ] = None

    def to_filters(self) -> Filters:
        """The filters that were given. Ends the command if a value cannot be read."""
        names = {"machine_version": "version", "key": "unique_key"}
        given: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or value is False or value == []:
                continue
            if field.name.endswith(("_after", "_before")):
                value = parse_time_or_age(value, "--" + field.name.replace("_", "-"))
            elif field.name == "metadata":
                value = _parse_metadata_options(value)
            if value != {}:
                given[names.get(field.name, field.name)] = value
        return cast(Filters, given)


def add_filter_options(command: Callable[Concatenate[FilterOptions, P], R]) -> Callable[..., R]:
    """Replace a command's first parameter by one option per field of `FilterOptions`, as typer needs them."""
    names = [field.name for field in fields(FilterOptions)]

    @functools.wraps(command)
    def wrapped(**options: Any) -> R:
        filter_options = FilterOptions(**{name: options.pop(name) for name in names})
        return cast(Callable[..., R], command)(filter_options, **options)

    _, *others = inspect.signature(command, eval_str=True).parameters.values()
    filter_options = inspect.signature(FilterOptions, eval_str=True).parameters.values()
    hints = get_type_hints(FilterOptions, include_extras=True)
    parameters = [*(option.replace(annotation=hints[option.name]) for option in filter_options), *others]
    cast(Any, wrapped).__signature__ = inspect.Signature(parameters, return_annotation=None)
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _parse_metadata_options(texts: list[str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if text.lstrip().startswith("{"):
            try:
                metadata |= json.loads(text)
            except ValueError:
                exit_with_message(f"--metadata {text!r} is not a JSON object. Quote it for the shell.")
        elif not equals or not name:
            exit_with_message(f"--metadata {text!r} is not of the form NAME=VALUE.")
        else:
            metadata[name] = _parse_metadata_value(value)
    return metadata


def _parse_metadata_value(text: str) -> object:
    """Read JSON (a number, true, false, null or a quoted text); anything else is a text as it stands."""
    try:
        return json.loads(text)
    except ValueError:
        return text
