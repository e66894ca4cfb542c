"""How commands print: results on stdout, messages and errors on stderr, one line per error.

Exit codes of all commands: 0 success; 1 the command ran and found or met a problem; 2 the command could not run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import typer

from gen_durable.errors import GenDurableError
from gen_durable.pg.faults import SqlError

P = ParamSpec("P")
R = TypeVar("R")


def print_message(line: str) -> None:
    """Print a line to stderr, apart from the command's result."""
    typer.echo(line, err=True)


def fail(message: str, code: int = 2) -> NoReturn:
    """End the command with one line and an exit code."""
    print_message(f"gen-durable: {message}")
    raise typer.Exit(code)


def report_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print errors of gen_durable and of the database as one line: they say what to do, a traceback adds nothing."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GenDurableError as error:
            fail(str(error))
        except SqlError as error:
            fail(f"the database rejected the command: {error}")

    return wrapped
