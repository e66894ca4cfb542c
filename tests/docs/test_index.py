"""docs/README.md leads to every page of docs/, and the README of the repository leads to docs/README.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs/README.md"
DECISIONS = ROOT / "docs/adr/README.md"


def linked_pages(page: Path) -> set[Path]:
    """The pages of the repository that a page links."""
    links = re.findall(r"\]\(([^)\s#]+\.md)(?:#[^)]*)?\)", page.read_text("utf-8"))
    return {(page.parent / link).resolve() for link in links if "://" not in link}


def test_the_readme_links_the_index() -> None:
    assert INDEX in linked_pages(ROOT / "README.md")


def test_the_index_links_every_page() -> None:
    """Each page has its own line; the decisions are on a page of their own."""
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent != DECISIONS.parent} - {INDEX}
    assert sorted(pages - linked_pages(INDEX)) == []
    assert DECISIONS in linked_pages(INDEX)


def test_the_index_of_decisions_links_every_decision() -> None:
    assert sorted({*DECISIONS.parent.glob("*.md")} - {DECISIONS} - linked_pages(DECISIONS)) == []


def test_each_page_is_described_by_a_line() -> None:
    """A line of the index is a link and a few words."""
    lines = [line for line in INDEX.read_text("utf-8").splitlines() if line.startswith("- ")]
    assert [line for line in lines if not re.fullmatch(r"- \[[^\]]+\]\([^)]+\): .+\.", line)] == []
    assert len(lines) > 20


def test_each_question_has_an_answer() -> None:
    """The questions of the index are answered by a link."""
    rows = re.findall(r"^\| (.*\?) \| (.*) \|$", INDEX.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 19
    assert [question for question, answer in rows if "](" not in answer] == []
