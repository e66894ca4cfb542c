"""The snippets of the how-to pages run as they stand, and a broken one is noticed."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from tests.support.pages import DOCS, run_page, snippets

PAGES = ["machines", "children", "partitions", "jobs", "versions"]


@pytest.mark.parametrize("name", PAGES)
async def test_all_snippets_of_a_page_run(name: str, dsn: str, schema: str) -> None:
    page = DOCS / "howto" / f"{name}.md"
    assert len(snippets(page)) > 2
    await run_page(page, dsn, schema)


@pytest.mark.parametrize(
    ("broken", "error"),
    [("assert len(await app.list()) == 1", AssertionError), ("unknown_name", NameError), ("return 1", SyntaxError)],
)
async def test_a_broken_snippet_fails_at_its_line(
    broken: str, error: type[Exception], tmp_path: Path, dsn: str, schema: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```python\nx = 1\n```\n\nMore.\n\n```python\nassert x == 1\n{broken}\n```\n")
    with pytest.raises(error) as raised:
        await run_page(page, dsn, schema)
    if error is SyntaxError:
        assert raised.value.lineno == 11
    else:
        assert [f.lineno for f in traceback.extract_tb(raised.tb) if f.filename == str(page)] == [11]


def test_an_indented_block_is_not_overlooked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("- item\n\n  ```python\n  1 / 0\n  ```\n")
    with pytest.raises(AssertionError, match="does not begin its line"):
        snippets(page)
