"""`make prose` reads prose, not code, counts its tics and names their lines."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    """The script, imported as a module."""
    spec = importlib.util.spec_from_file_location("gen_durable_prose", ROOT / "scripts/prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PYTHON = '''"""Reads rows.

The caller is told by whoever
"""

QUERY = "nobody reads strings"  # nobody: a tic


def f() -> None:
    """Return None: nothing."""
'''


def test_python_is_read_by_comments_and_docstrings(prose: ModuleType) -> None:
    """Strings that are code do not count; each finding has its line."""
    report = prose.check("python", prose.python_lines("f.py", PYTHON))
    found = [(finding.line.number, finding.tics) for finding in report.findings]
    assert sorted(found) == [(3, ("tell/told", "who/somebody")), (6, ("who/somebody",)), (10, ("None: ...",))]


def test_sql_is_read_by_comments(prose: ModuleType) -> None:
    """Only the text behind `--` counts."""
    report = prose.check("sql", prose.sql_lines("f.sql", "-- What is kept\nselect nobody; -- is to be read\n"))
    assert [(finding.line.number, finding.tics) for finding in report.findings] == [(2, ("is to be",))]
    assert report.words == 7


def test_markdown_is_read_without_fenced_code(prose: ModuleType) -> None:
    """Code blocks do not count, and keep the numbers of the lines after them."""
    text = "# Title\n\n```python\nnobody\n```\n\nHere. What is kept stays.\nWhat was lost is to be found.\n"
    report = prose.check("docs", prose.markdown_lines("f.md", text))
    found = [(finding.line.number, finding.tics) for finding in report.findings]
    assert found == [(7, ("headless what",)), (8, ("headless what", "is to be"))]


def test_the_rate_is_per_thousand_words(prose: ModuleType) -> None:
    """One tic in two hundred words is five in a thousand."""
    report = prose.check("docs", prose.markdown_lines("f.md", "nobody " + "word " * 199))
    assert report.total == pytest.approx(5.0)
