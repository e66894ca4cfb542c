"""`gen-durable graph`: which step of a machine can lead where, read from its code."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from gen_durable.cli.console import plainly, say
from gen_durable.cli.load import load
from gen_durable.errors import ConfigError
from gen_durable.graph import graph as read
from gen_durable.jobs import Job
from gen_durable.machines import Machine, MachineSpec


@plainly
def graph(
    target: Annotated[str, typer.Argument(metavar="MODULE:MACHINE", help="For example shop.checkout:Checkout")],
    *,
    mermaid: bool = typer.Option(False, "--mermaid", help="As the source of a Mermaid state diagram."),
) -> None:
    """Show the steps of a machine and the edges between them. Nothing is run and no database is asked."""
    found = read(_machine(load(target), target))
    typer.echo(found.mermaid() if mermaid else found.text())
    for problem in found.problems():
        say(f"doubt: {problem}")


def _machine(found: object, target: str) -> type[Machine] | Machine | MachineSpec:
    if isinstance(found, Machine) or (isinstance(found, type) and issubclass(found, Machine) and found is not Machine):
        return found
    if isinstance(found, Job):
        return cast("Job[Any, Any]", found).__gen_durable_step__.machine
    what = "the class Machine itself" if found is Machine else f"a {type(found).__name__}"
    raise ConfigError(f"{target} is {what}: name a subclass of Machine, or a @job")
