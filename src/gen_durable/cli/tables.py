"""Tables on a terminal: one line to a row, and only the last column gives way where the terminal ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from gen_durable.cli.options import plain


def lines(heads: Sequence[str], rows: Iterable[Sequence[str]], *, style: str = "") -> Table:
    """The first column holds numbers; the last one is text of any length, in this style."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    made.add_column(heads[0], justify="right", no_wrap=True)
    for head in heads[1:-1]:
        made.add_column(head, no_wrap=True)
    made.add_column(heads[-1])  # this one may wrap, its texts do not: so it is the one that is cut
    for *cells, last in rows:
        text = Text(" ".join(plain(last).split()), style, no_wrap=True, overflow="ellipsis")
        made.add_row(*(Text(plain(cell)) for cell in cells), text)
    return made


def span(seconds: float) -> str:
    """How long something took."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
