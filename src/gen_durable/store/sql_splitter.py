"""Split the text of an SQL file into its statements, so that `migrate` can send them one at a time.

Pure. It knows what hides a semicolon in Postgres: quoted strings and identifiers, dollar quotes, line comments and
nested block comments. It does not know `begin atomic` bodies and rules with several actions; our files have none.
"""

from __future__ import annotations

import re
from typing import Final

# An unterminated quote or comment extends to the end of the text: the server reports it.
_TOKEN: Final = re.compile(
    r"""
      (?P<line_comment> --[^\n]* )
    | (?P<block_comment> /\* )
    | [eE]' [^'\\]* (?: (?: \\. | '' ) [^'\\]* )* (?: ' | \Z )   # escape string
    | ' [^']* (?: '' [^']* )* (?: ' | \Z )
    | " [^"]* (?: "" [^"]* )* (?: " | \Z )
    | \$ (?P<tag> (?: [^\W\d]\w* )? ) \$ .*? (?: \$(?P=tag)\$ | \Z )
    | (?P<end> ; )
    | (?P<space> \s+ )
    | [\w$]+ | .
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


def split_sql_statements(text: str) -> list[str]:
    """The statements of a text, each with the comments before it and its semicolon. Joined, they are the text.

    What follows the last semicolon is a statement of its own, unless it is only space and comments.
    """
    statements: list[str] = []
    start = position = 0
    has_code = False
    while (token := _TOKEN.match(text, position)) is not None:
        position = token.end()
        match token.lastgroup:
            case "block_comment":
                position = _end_of_comment(text, position)
            case "end":
                statements.append(text[start:position])
                start, has_code = position, False
            case "line_comment" | "space":
                pass
            case _:
                has_code = True
    rest = text[start:]
    if statements and not has_code:
        statements[-1] += rest
    elif rest:
        statements.append(rest)
    return statements


def _end_of_comment(text: str, position: int) -> int:
    """The position after the block comment whose opening ends at `position`; comments nest."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(text, position)
        if edge is None:
            return len(text)
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position
