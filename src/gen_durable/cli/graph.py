"""`gen-durable graph`: which step of a machine can lead where, read from its code."""

from __future__ import annotations

from typing import Annotated

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
    if found is Machine:
        raise ConfigError(f"{target} is the class Machine itself: name a subclass of it, or a @job")
    if isinstance(found, Machine):
        return found
    if isinstance(found, type):
        if issubclass(found, Machine):
            return found
        raise ConfigError(f"{target} is a class, but not a Machine: name a subclass of Machine, or a @job")
    if isinstance(found, Job):
        return found.__gen_durable_step__.machine
    raise ConfigError(f"{target} is a {type(found).__name__}: name a subclass of Machine, or a @job")
