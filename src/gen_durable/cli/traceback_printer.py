"""Prints the stored traceback of an error below a table."""

from __future__ import annotations

from rich.console import Console

from gen_durable.cli.console import make_escaped_text
from gen_durable.cli.formatters import text_or_encrypted_hint
from gen_durable.cli.tables import join_lines_into_cell
from gen_durable.printable_text import TextBlock


def print_traceback(console: Console, head: str, traceback: str | None) -> None:
    """Print a traceback below a table, if there is one. Its lines are indented, and not cut."""
    if traceback is not None:
        block = make_escaped_text(TextBlock(text_or_encrypted_hint(traceback)), "bold red")
        console.print()
        console.print(join_lines_into_cell([make_escaped_text(head, "bold"), block]), soft_wrap=True)
