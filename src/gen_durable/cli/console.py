"""How commands speak: results on stdout, words about them on stderr, one line for what went wrong.

Exit codes of all commands: 0 it went well; 1 it was done and something is wrong; 2 it could not be done.
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


def say(line: str) -> None:
    """Words for the person at the terminal, apart from the command's result."""
    typer.echo(line, err=True)


def fail(message: str, code: int = 2) -> NoReturn:
    """End the command with one line."""
    say(f"gen-durable: {message}")
    raise typer.Exit(code)


def plainly(command: Callable[P, R]) -> Callable[P, R]:
    """Turn errors of our tree into one line: they say what happened and what to do, a traceback adds nothing."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GenDurableError as error:
            fail(str(error))
        except SqlError as error:
            fail(f"the database refused: {error}")

    return wrapped
