"""Text from data as a terminal or a log can show it: characters that act or hide become escapes such as `\\x1b`.

Data are rows of the database, names, keys, errors, tracebacks, messages of the server, file names and arguments. The
command line and the loggers (`escaping_loggers.py`) use this module for all of it.
"""

from __future__ import annotations

import traceback
import unicodedata
from typing import Final, cast

INDENT: Final = "  "
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Invisible characters that Unicode counts as letters and marks, so that `str.isprintable` is true for them. Without the
# variation selectors of text and emoji (U+FE0E, U+FE0F), which ordinary text has.
_INVISIBLE: Final = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0),
            *(*range(0x180B, 0x1810), *range(0xFE00, 0xFE0E), *range(0xE0100, 0xE01F0)),
        ),
    )
)


def escape_to_one_line(text: str) -> str:
    """One line: everything that is not visible is an escape, also line breaks. Printable text is returned unchanged.

    Escaped are control characters (C0, C1, DEL), format characters (bidi overrides and isolates, zero width),
    line and paragraph separators, lone surrogates, and code points that are unassigned or for private use.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_character(character) if _should_escape(character) else character for character in text)


def escape_lines(text: str, indent: str = INDENT) -> str:
    """A block of text: the line breaks are kept, and each line begins with `indent`, so that none passes for a line of
    the program itself.
    """
    return "\n".join(indent + escape_to_one_line(line) for line in text.split("\n"))


class TextBlock(str):
    """A block of text that `escape_lines` has made printable. Loggers and tables keep its line breaks."""

    __slots__ = ()

    def __new__(cls, text: str, indent: str = INDENT) -> TextBlock:
        return super().__new__(cls, escape_lines(text, indent))


def format_exception_escaped(error: BaseException) -> str:
    """An exception as Python prints it, but with its notes and the second and later lines of its message indented."""
    described = traceback.TracebackException.from_exception(error)
    _escape_lines_added_to_exceptions(described)
    return "\n".join(_escape_traceback_part(part.removesuffix("\n")) for part in described.format())


def _escape_lines_added_to_exceptions(described: traceback.TracebackException) -> None:
    """Escape and indent the `__notes__` of an exception and of those that led to it, in place."""
    added: object = getattr(described, "__notes__", None)
    if isinstance(added, list):  # Python prints each line of a note as a line of its own
        described.__notes__ = [escape_lines(str(line)) for line in cast("list[object]", added)]
    for other in (described.__cause__, described.__context__, *(getattr(described, "exceptions", None) or ())):
        if other is not None:
            _escape_lines_added_to_exceptions(other)


def _escape_traceback_part(part: str) -> str:
    first, *others = part.split("\n")
    indented = (line if line.startswith(" ") or not line else INDENT + line for line in others)
    return "\n".join(escape_to_one_line(line) for line in (first, *indented))


def _should_escape(character: str) -> bool:
    if character.isprintable():
        return character in _INVISIBLE
    return unicodedata.category(character) != "Zs"  # a space, such as the no-break space


def _escape_character(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return _SHORT.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
