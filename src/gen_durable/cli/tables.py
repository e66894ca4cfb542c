"""Tables with one line per row: only the last column is cut where the terminal ends. Below them, tracebacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gen_durable.cli.format import escape_control, text_or_encrypted_hint


def one_line_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, style: str = "") -> Table:
    """The first column holds numbers; the last one is text of any length, in `style`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(heads[0], justify="right", no_wrap=True)
    for head in heads[1:-1]:
        table.add_column(head, no_wrap=True)
    table.add_column(heads[-1])  # the column may shrink while its texts do not wrap, so it is the one that is cut
    for *cells, last in rows:
        text = Text(" ".join(escape_control(last).split()), style, no_wrap=True, overflow="ellipsis")
        table.add_row(*(Text(escape_control(cell)) for cell in cells), text)
    return table


def print_traceback(console: Console, head: str, traceback: str | None) -> None:
    """Print a traceback below a table, if there is one. Its lines are not cut."""
    if traceback is not None:
        text = Text(f"\n{escape_control(head)}\n", "bold") + Text(
            escape_control(text_or_encrypted_hint(traceback)), "red"
        )
        console.print(text, soft_wrap=True)
