"""Text from data as it is shown: what acts or hides is an escape, everything else is as it was."""

from __future__ import annotations

import traceback
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hostile import ALL, FORGED

from gen_durable.printable_text import TextBlock, escape_lines, escape_to_one_line, format_exception_escaped

ACTING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x00\x7f\x85\x9b", "\\x00\\x7f\\x85\\x9b"),
        ("\u202e\u2066\u200b\u2028\ufeff", "\\u202e\\u2066\\u200b\\u2028\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041\U000e0100", "\\U000e0041\\U000e0100"),
        ("\u034f\u3164\u180b\ufe00", "\\u034f\\u3164\\u180b\\ufe00"),
        ("Größe, 日本語, שלום, ❤️, 🙂, a\xa0b, C:\\new", "Größe, 日本語, שלום, ❤️, 🙂, a\xa0b, C:\\new"),
        ("", ""),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert escape_to_one_line(text) == shown


@given(st.text(st.characters()))
def test_nothing_that_acts_is_left(text: str) -> None:
    shown = escape_to_one_line(text)
    assert not {unicodedata.category(character) for character in shown} & ACTING
    assert escape_to_one_line(shown) == shown
    assert shown.encode().decode() == shown  # lone surrogates could not be printed


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters="\u115f\u1160\u3164\uffa0")))
def test_printable_text_is_unchanged(text: str) -> None:
    assert escape_to_one_line(text) == text


@given(st.text(st.characters()))
def test_each_line_of_a_block_is_indented(text: str) -> None:
    lines = escape_lines(text).split("\n")
    assert len(lines) == text.count("\n") + 1
    assert all(line.startswith("  ") and escape_to_one_line(line) == line for line in lines)


def test_a_block_is_a_text() -> None:
    assert TextBlock("a\n\x1bb") == "  a\n  \\x1bb"
    assert TextBlock("a\nb", indent="") == "a\nb"


def test_an_exception() -> None:
    """As Python prints it, and no line of its message begins where a line of the program does."""
    with pytest.raises(KeyError) as caught:
        {}["no luck"]
    assert format_exception_escaped(caught.value) + "\n" == "".join(traceback.format_exception(caught.value))
    for raised in (ValueError(ALL), ExceptionGroup(ALL, [KeyError(ALL), OSError(1, ALL, ALL)])):
        raised.add_note(ALL)
        shown = format_exception_escaped(raised)
        assert "\\x1b[2J" in shown
        for line in shown.split("\n"):
            assert escape_to_one_line(line) == line
            assert not line.startswith(FORGED)
