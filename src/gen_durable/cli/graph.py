"""`gen-durable graph`: the steps of a machine and the edges between them, read from its code."""

from __future__ import annotations

from typing import Annotated

import typer

from gen_durable.cli.console import exit_on_expected_errors, print_message, print_multi_line_text
from gen_durable.cli.object_importer import import_object
from gen_durable.errors import ConfigError
from gen_durable.graph import graph as read_graph
from gen_durable.jobs import Job
from gen_durable.machines import Machine, MachineSpec


@exit_on_expected_errors
def graph(
    target: Annotated[str, typer.Argument(metavar="MODULE:MACHINE", help="For example shop.checkout:Checkout")],
    *,
    mermaid: bool = typer.Option(False, "--mermaid", help="Print the source of a Mermaid state diagram."),
) -> None:
    """Show the steps of a machine and the edges between them.

    The graph is read from the code: no step runs, and no database is needed.
    """
    found = read_graph(_require_machine_or_job(import_object(target), target))
    print_multi_line_text(found.mermaid() if mermaid else found.text())
    for problem in found.problems():
        print_message(f"warning: {problem}")


def _require_machine_or_job(found: object, target: str) -> type[Machine] | Machine | MachineSpec:
    if found is Machine:
        raise ConfigError(f"{target} is the class Machine itself. Name a subclass of it, or a @job.")
    if isinstance(found, Machine):
        return found
    if isinstance(found, type):
        if issubclass(found, Machine):
            return found
        raise ConfigError(f"{target} is a class, but not a Machine. Name a subclass of Machine, or a @job.")
    if isinstance(found, Job):
        return found.__gen_durable_step__.machine
    raise ConfigError(f"{target} is a {type(found).__name__}. Name a subclass of Machine, or a @job.")
