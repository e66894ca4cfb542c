"""Outcomes as entries of the history: the part of a packed line that the worker knows (append_to_history.sql)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gen_durable.store.types import Commit

LINES_PER_FULL_LINE: Final = 8
"""Of the outcomes of one claim, so many share the time and the worker of the first."""
_SEPARATOR: Final = "\n"
_CODES: Final = {
    "continue": "N",
    "next": "N",
    "retry": "R",
    "await": "A",
    "children": "S",
    "done": "D",
    "fail": "F",
    "cancel": "C",
}
_ENDS: Final = frozenset("DFC")


def entries_array_sql(number: int) -> str:
    """The expression for an array of entries that travels as one text."""
    return f"pg_catalog.string_to_array(${number}, pg_catalog.chr(10), '')"


def join_entries(commits: Sequence[Commit], now: float) -> str:
    """The entries of a flush for `entries_array_sql`; an empty text if no outcome is recorded."""
    for commit in commits:
        if commit.ran_step is not None:
            break
    else:
        return ""
    return _SEPARATOR.join(["" if c.ran_step is None else _encode_entry(c, c.ran_step, now) for c in commits])


def _encode_entry(commit: Commit, step: str, now: float) -> str:
    """Mark and seq, a time in microseconds, duration, outcome, step, and next step unless it ended.

    The time is how long ago the step began or, in a short line, how long after that of the full line. The mark of an
    outcome that no short line follows is `=`, `#` or `*` (append_to_history.sql); a `*` also says how long ago.
    """
    code, began = _CODES[commit.kind], commit.began
    rest = f"{int(commit.took * 1e6)}\t{code}\t{step}\t{commit.step or ('' if code in _ENDS else step)}"
    is_last = commit.kind != "continue" or commit.line == LINES_PER_FULL_LINE - 1
    ago = int((now - began) * 1e6)
    if commit.is_full_line:
        mark = ("=" if is_last else "-") if commit.is_first_line else ("#" if is_last else "~")
        return f"{mark}{commit.seq + 1}\t{ago}\t{rest}"
    after = int((began - commit.full_line_began) * 1e6)
    return f"*{commit.seq + 1}\t{after}\t{rest}\t{ago}" if is_last else f"+{commit.seq + 1}\t{after}\t{rest}"
