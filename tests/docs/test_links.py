"""Links between the pages of the documentation lead somewhere, and its lines fit in 100 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md"), *ROOT.glob("tools/**/*.md"))
    if ".venvs" not in path.parts
)
CODE = re.compile(r"```.*?```", re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file of the repository and, after `#`, one of its headings."""
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_fit(page: Path) -> None:
    """Prose wraps at 100 columns; tables, code and lines that are one link may be longer."""
    lines = CODE.sub("", page.read_text()).splitlines()
    assert [line for line in lines if len(line) > 100 and not line.startswith(("|", "    "))] == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "LEDGER.md", "SECURITY.md"])
def test_quoted_tests_exist(name: str) -> None:
    """Each path below tests/ that a page quotes is a file or folder of the repository."""
    quoted = re.findall(r"\btests/[\w/.]*\w", (ROOT / name).read_text())
    assert [path for path in quoted if not (ROOT / path).exists()] == []
