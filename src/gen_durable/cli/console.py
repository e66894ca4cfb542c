"""How commands print: results on stdout, messages and errors on stderr, one line per error.

Exit codes of all commands: 0 success; 1 the command ran and found or met a problem; 2 the command could not run.

All output goes through this module, `tables.py` and `traceback_printer.py`, which print text as data: characters that a
terminal would act on or hide become escapes, markup is not interpreted, and no text becomes a link.
`tests/security/test_terminals.py` proves that no other module of the command line writes by itself.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import IO, Any, Final, NoReturn, ParamSpec, TypeVar, cast

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typer.core import TyperGroup

from gen_durable.errors import EmbeddedUnavailable, GenDurableError
from gen_durable.pg.error_classifier import SqlError, detail_and_hint_of, message_of
from gen_durable.printable_text import TextBlock, escape_lines, escape_to_one_line, format_exception_escaped

P = ParamSpec("P")
R = TypeVar("R")

UNCUT: Final = 1_000_000  # columns: no line is cut


class EscapingConsole(Console):
    """A console that prints strings as data: one line each, escaped, and without markup or emoji codes.

    A `Text` that holds a character to escape is escaped as well, when it is printed. Make one with `make_escaped_text`,
    which does it before the text is laid out.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        options |= {"markup": False, "emoji": False}
        return super().render_str(escape_to_one_line(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_lines(segment.text, ""), segment.style)


def make_escaped_text(text: str, style: str = "", *, is_cut: bool = False) -> Text:
    """Text from data in a style. One line, unless it is a `TextBlock`. If `is_cut`, it ends where the terminal ends."""
    shown = text if isinstance(text, TextBlock) else escape_to_one_line(text)
    return Text(shown, style, no_wrap=True, overflow="ellipsis") if is_cut else Text(shown, style)


def new_result_console() -> EscapingConsole:
    """A console on stdout for results: as wide as the terminal or COLUMNS; in a pipe nothing is cut."""
    console = new_width_limited_console()
    if console.is_terminal or os.environ.get("COLUMNS"):
        return console
    return EscapingConsole(color_system=None, width=UNCUT, file=cast("IO[str]", _TrailingSpaceRemover(sys.stdout)))


def new_width_limited_console() -> EscapingConsole:
    """A console on stdout as wide as the terminal or COLUMNS, else of 80 columns. NO_COLOR means plain text."""
    return EscapingConsole(color_system=None if is_color_disabled() else "auto")


def is_color_disabled() -> bool:
    """Whether NO_COLOR is set. Then nothing is bold or dim either: logs and screen readers take text only."""
    return bool(os.environ.get("NO_COLOR"))


class _TrailingSpaceRemover:
    """Removes the spaces with which tables fill their lines: without a terminal, a line may be a megabyte long."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(re.sub(" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        self._file.flush()


def print_line(line: str) -> None:
    """Print a line to stdout."""
    typer.echo(escape_to_one_line(line))


def print_multi_line_text(text: str) -> None:
    """Print text of the library's own to stdout, whose line breaks are meant: a graph, a script."""
    typer.echo(escape_lines(text, ""))


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print JSON to stdout."""
    typer.echo(json.dumps(value, indent=indent, ensure_ascii=True))  # all but printable ASCII is escaped, also DEL


def print_message(line: str) -> None:
    """Print a line to stderr, apart from the command's result."""
    typer.echo(escape_to_one_line(line), err=True)


def print_unexpected_error(error: Exception) -> None:
    """Print an error that no command expects, with its traceback, to stderr."""
    typer.echo(format_exception_escaped(error), err=True)


def prompt_for_answer(question: str) -> str:
    """Ask on the terminal, and return the answer."""
    return str(typer.prompt(escape_to_one_line(question), err=True))


def exit_with_message(message: str, code: int = 2) -> NoReturn:
    """End the command with one line and an exit code."""
    print_message(f"gen-durable: {message}")
    raise typer.Exit(code)


def exit_with_error(error: GenDurableError, code: int = 2) -> NoReturn:
    """End the command with the message of an error. A server that does not start is shown with the end of its log."""
    message, _, server_log = (
        str(error).partition("\n") if isinstance(error, EmbeddedUnavailable) else (str(error), "", "")
    )
    print_message(f"gen-durable: {message}")
    if server_log:
        typer.echo(escape_lines(server_log), err=True)
    raise typer.Exit(code)


def exit_on_expected_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print errors of gen_durable and of the database as one line: they say what to do, a traceback adds nothing."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except GenDurableError as error:
            exit_with_error(error)
        except SqlError as error:
            detail, hint = detail_and_hint_of(error)
            print_message(f"gen-durable: the database rejected the command: {message_of(error)}")
            for label, text in (("DETAIL", detail), ("HINT", hint)):
                if text:
                    print_message(f"{label}:  {text}")
            raise typer.Exit(2) from error

    return wrapped


class EscapingCommandGroup(TyperGroup):
    """The commands, with usage errors that quote arguments as data."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _escape_messages_of_usage_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _escape_messages_of_usage_errors():
            return super().invoke(ctx)


@contextmanager
def _escape_messages_of_usage_errors() -> Generator[None]:
    try:
        yield
    except Exception as error:
        # Typer has a click of its own or imports the public one, depending on its version.
        describe = getattr(error, "format_message", None)
        if callable(describe) and type(error).__name__ != "NoArgsIsHelpError":
            message = escape_to_one_line(str(describe()))
            cast(Any, error).format_message = lambda: message
        raise
