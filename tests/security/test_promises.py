"""The pages that promise something name the tests that hold it, and these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("SECURITY.md", "docs/howto/roles.md", "docs/howto/encrypt.md")


def test_every_named_test_exists() -> None:
    for page in PAGES:
        named = re.findall(r"tests/[\w/]+\.py", (ROOT / page).read_text())
        assert named, page
        assert [name for name in named if not (ROOT / name).is_file()] == [], page


def test_every_threat_names_a_test() -> None:
    """The last column of the table of threats."""
    text = (ROOT / "SECURITY.md").read_text().split("## Threats and defences")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 8
    assert [row for row in rows if not re.search(r"tests/[\w/]+\.py", row.split("|")[-2])] == []
