"""`make test-long` finds every test that has a long form by its marker."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_tests_with_a_long_form_are_marked() -> None:
    unmarked = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("test_*.py"))
        if "short_or_long(" in (text := path.read_text("utf-8")) and "mark.scaled" not in text
    ]
    assert unmarked == []
