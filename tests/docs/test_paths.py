"""ARCHITECTURE.md names functions that exist in its paths, and lists all indexes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/gen_durable"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def definitions(path: Path) -> set[str]:
    """The functions, classes and methods that a module defines."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{part.name}"
                for part in node.body
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_each_hop_exists() -> None:
    """Each "`name` (`file`)" is a definition of that module, or an SQL function with its file."""
    hops = re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.(?:py|sql))`\)", PAGE)
    assert len(hops) > 40
    missing: list[str] = []
    for name, file in hops:
        path = PACKAGE / file
        if not path.exists() or (path.suffix == ".py" and name not in definitions(path)):
            missing.append(f"{name} ({file})")
        if path.suffix == ".sql" and f"function @schema.{name}(" not in path.read_text():
            missing.append(f"{name} ({file})")
    assert missing == []


def test_all_indexes_are_listed() -> None:
    """The table of indexes has the indexes of the migrations, and no others."""
    optional = [PACKAGE / "sql/metadata_index.sql", PACKAGE / "sql/live_index.sql"]
    sql = "\n".join(path.read_text() for path in [*PACKAGE.glob("sql/migrations/*.sql"), *optional])
    created = set(re.findall(r"create (?:unique )?index (?:concurrently )?(?:if not exists )?(\w+)", sql))
    section = PAGE.split("\n## Indexes\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `(\w+)", section, re.MULTILINE)) == created
