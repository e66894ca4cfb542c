"""The pages that promise something name the tests that hold it, and these tests exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("SECURITY.md", "docs/howto/roles.md", "docs/howto/encrypt.md")
TABLES = {
    ("SECURITY.md", "## Threats and defences"): 15,
    ("SECURITY.md", "## Threat model"): 15,
    ("SECURITY.md", "### What a login with a role can still do"): 7,
    ("docs/howto/roles.md", "## Tests of this page"): 25,
    ("docs/howto/encrypt.md", "## Tests of this page"): 15,
}
"""The tables whose last column names tests, and how many rows each has at least."""
NO_PROMISE = "no promise"
"""In place of a test, in a row about what is not prevented."""
FILE = re.compile(r"tests/[\w/]+\.py")
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def text_of(page: str) -> str:
    """A page; names that were wrapped at a line's end stay whole."""
    return (ROOT / page).read_text()


def section(page: str, heading: str) -> str:
    after = text_of(page).split(f"\n{heading}\n")[1]
    return re.split(r"\n#{2,3} ", after)[0]


def rows(page: str, heading: str) -> list[str]:
    return [line for line in section(page, heading).splitlines() if line.startswith("|")][2:]


@functools.cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@pytest.mark.parametrize("page", PAGES)
def test_every_named_test_exists(page: str) -> None:
    """The file, and the function if one is named."""
    text = text_of(page)
    assert FILE.findall(text)
    assert [name for name in FILE.findall(text) if not (ROOT / name).is_file()] == []
    assert [f"{file}::{name}" for file, name in TEST.findall(text) if name not in functions(file)] == []


@pytest.mark.parametrize(("page", "heading"), TABLES)
def test_every_row_names_a_test(page: str, heading: str) -> None:
    """The last column of each row; only rows about what is not prevented may say so instead."""
    found = rows(page, heading)
    assert len(found) >= TABLES[page, heading]
    cells = [row.split("|")[-2].strip() for row in found]
    assert [row for row, cell in zip(found, cells, strict=True) if not FILE.search(cell) and cell != NO_PROMISE] == []
    assert cells.count(NO_PROMISE) <= 2


@pytest.mark.parametrize(("page", "heading"), [place for place in TABLES if place[1] != "## Threats and defences"])
def test_every_row_names_a_function(page: str, heading: str) -> None:
    """`file::test`, because a file holds many promises."""
    cells = [row.split("|")[-2].strip() for row in rows(page, heading)]
    assert [cell for cell in cells if cell != NO_PROMISE and len(FILE.findall(cell)) != len(TEST.findall(cell))] == []


@pytest.mark.parametrize("heading", ["### Handle tokens", "## Where data is kept", "## Supply chain"])
def test_every_section_names_tests(heading: str) -> None:
    assert len(TEST.findall(section("SECURITY.md", heading))) >= 3
