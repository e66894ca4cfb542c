"""Where the SQL guards something: every lock, order, fence, constraint and second look, by its place in the text.

In: the text of an SQL file. Out: sites. A site is what a mutant has to change; one that no mutant changes, and that
nobody has excused, is a guard of which nobody knows whether a test would miss it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Comments, and texts of SQL that a function writes, keep their length so that places stay what they are.
_SILENT = re.compile(r"--[^\n]*")
_WORD = re.compile(r"[();']|\b(?:limit|offset|for|on|returning|rows)\b|\$(?:text)?\$")
# Not the head of the function itself.
_CALL = (
    r"(?<!function @schema\.)\b"
    r"(?:wake_if_signal_came|count_ended_children_and_wake_parents|unblock\w*|lock_row_for_journal)\("
)
KINDS = {
    "row lock": r"\bfor (?:no key )?update\b",
    "skip locked": r"\bskip locked\b",
    "advisory lock": r"\bpg_(?:try_)?advisory_xact_lock(?:_shared)?\b",
    "lock timeout": r"\bset lock_timeout\b",
    "order": r"\border by\b",  # with its keys, where it orders locks or picks
    "fence": r"\b(?:claims|seq) = (?:i\.\w+ \+ 1|\S)",
    "lease": r"\blease_expires_at (?:is (?:not )?null|<)",
    "end": r"\bfinished_at is (?:not )?null",
    "mark": r"\bcancel_reason is (?:not )?null",
    "status": r"\b\w+\.status (?:=|in|not in) ",
    "exclusion": r" <> all \(",
    "conflict": r"\bon conflict\b[^;]*?\bdo (?:nothing|update)\b",
    "check": r"\bcheck \(",
    "unique": r"\bunique index\b|\bprimary key\b",
    "second look": _CALL,
}


@dataclass(frozen=True, slots=True)
class Site:
    """One guard: what kind it is, and from where to where its words stand."""

    kind: str
    start: int
    end: int
    line: int
    text: str


def sites(sql: str) -> Iterator[Site]:
    """Every guard in a file, kind by kind."""
    bare = _SILENT.sub(lambda comment: " " * len(comment[0]), sql)
    reads = "\nstable\n" in sql
    lines = sql.splitlines()
    for kind, pattern in KINDS.items():
        for found in re.finditer(pattern, bare):
            if (kind in ("order", "status") and reads) or (kind == "order" and _aggregated(bare, found.start())):
                continue
            number = bare.count("\n", 0, found.start()) + 1
            end = _clause(bare, found.end()) if kind == "order" else found.end()
            yield Site(kind, found.start(), end, number, lines[number - 1].strip())


def _aggregated(sql: str, start: int) -> bool:
    """Whether an ORDER BY stands inside of an aggregate: it orders an answer, not locks or picks."""
    depth = 0
    for place in range(start, -1, -1):
        depth += (sql[place] == ")") - (sql[place] == "(")
        if depth < 0:
            return sql[:place].endswith("_agg")
    return False


def _clause(sql: str, start: int) -> int:
    """Where the keys of an ORDER BY end."""
    depth = 0
    for found in _WORD.finditer(sql, start):
        depth += (found[0] == "(") - (found[0] == ")")
        if depth < 0 or (depth == 0 and found[0] not in ("(", ")")):
            return start + len(sql[start : found.start()].rstrip())
    return len(sql)
