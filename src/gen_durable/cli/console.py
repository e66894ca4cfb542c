"""How commands print: results on stdout, messages and errors on stderr, one line per error.

Exit codes of all commands: 0 success; 1 the command ran and found or met a problem; 2 the command could not run.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import IO, Final, NoReturn, ParamSpec, TypeVar, cast

import typer
from rich.console import Console

from gen_durable.errors import GenDurableError
from gen_durable.pg.faults import SqlError

P = ParamSpec("P")
R = TypeVar("R")

UNCUT: Final = 1_000_000  # columns: no line is cut


def new_console() -> Console:
    """A console on stdout: as wide as the terminal or COLUMNS; in a pipe nothing is cut. NO_COLOR means plain text."""
    console = Console(color_system=None if is_plain() else "auto")
    if console.is_terminal or os.environ.get("COLUMNS"):
        return console
    return Console(color_system=None, width=UNCUT, file=cast("IO[str]", _TrimmedOutput(sys.stdout)))


def is_plain() -> bool:
    """Whether NO_COLOR is set. Then nothing is bold or dim either: logs and screen readers take text only."""
    return bool(os.environ.get("NO_COLOR"))


class _TrimmedOutput:
    """Removes the spaces with which tables fill their lines: without a terminal, a line may be a megabyte long."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(re.sub(" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        self._file.flush()


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
