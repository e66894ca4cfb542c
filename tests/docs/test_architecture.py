"""ARCHITECTURE.md draws the tree that the repository has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gen_durable"


def drawn() -> set[str]:
    """The paths of the drawing: two spaces deeper is inside, a folder ends in a slash."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(r"^```\w*\nsrc/gen_durable/[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None, "ARCHITECTURE.md has no block that begins with src/gen_durable/"
    folders: list[str] = []
    found = set()
    for line in block[1].splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        del folders[depth:]
        path = "".join(folders) + name
        found.add(path)
        if name.endswith("/"):
            folders.append(name)
    return found


def test_the_tree() -> None:
    """Every module and every folder is drawn, and nothing else; a folder stands for its `__init__` and `__main__`."""
    modules = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}
    queries = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.sql")}
    folders = {f"{parent}/" for path in modules | queries for parent in path.parents if parent.name}
    files = {str(path) for path in modules if not path.stem.startswith("__")} | {"__init__.py"}
    assert drawn() == files | folders
