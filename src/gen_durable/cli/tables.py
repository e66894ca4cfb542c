"""Tables with one line per row: only the last column is cut where the terminal ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gen_durable.cli.console import make_escaped_text


def new_borderless_table(*, has_head: bool = True) -> Table:
    """An empty table without lines. Its cells are data: strings, or texts that `make_escaped_text` has made."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=has_head)


def make_one_line_per_row_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, style: str = "") -> Table:
    """The first column holds numbers; the last one is text of any length, in `style`."""
    table = new_borderless_table()
    table.add_column(heads[0], justify="right", no_wrap=True)
    for head in heads[1:-1]:
        table.add_column(head, no_wrap=True)
    table.add_column(heads[-1])  # the column may shrink while its texts do not wrap, so it is the one that is cut
    for *cells, last in rows:
        table.add_row(*cells, make_escaped_text(collapse_whitespace(last), style, is_cut=True))
    return table


def collapse_whitespace(text: str) -> str:
    """The text with single spaces for its line breaks, tabs and spaces: a long error in one line of a table."""
    return re.sub("[ \t\n]+", " ", text).strip(" ")


def join_lines_into_cell(lines: Iterable[Text]) -> Text:
    """One cell with several lines."""
    return Text("\n").join(lines)


def print_table_after_gap(console: Console, table: Table) -> None:
    """Print a table, two lines below what comes before it."""
    console.print()
    console.print()
    console.print(table)
