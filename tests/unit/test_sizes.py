"""Files and functions stay short enough to read in one go."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import gen_durable

SOURCE = Path(gen_durable.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
QUERIES = sorted(SOURCE.rglob("*.sql"))
FILE, FUNCTION, BODY = 400, 50, 150
REASON = re.compile(r"^-- Long because:? \S", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_no_file_is_long() -> None:
    """At most 400 lines, Python or SQL."""
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in [*MODULES, *QUERIES]}
    assert {name: n for name, n in lengths.items() if n > FILE} == {}


def test_no_function_is_long() -> None:
    """At most 50 lines, from the name to the end, without decorators."""
    found = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                name = f"{name_of(path)}:{node.name}"
                if length > FUNCTION:
                    found[name] = length
    assert found == {}


def test_no_sql_body_is_long_without_a_reason() -> None:
    """At most 150 lines between the dollar quotes, or a line `-- Long because: ...` in the header of the file."""
    found = {}
    for path in QUERIES:
        text = path.read_text()
        longest = max((body.count("\n") for body in re.findall(r"\$\$(.*?)\$\$", text, re.DOTALL)), default=0)
        if longest > BODY and not REASON.search(text):
            found[name_of(path)] = longest
    assert found == {}
