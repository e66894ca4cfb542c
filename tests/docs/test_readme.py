"""The README's programs are the examples, and the examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_readme_shows_the_examples_as_they_are() -> None:
    """Every Python block of the README is a file under examples/, to the letter."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    examples = {path.read_text() for path in (ROOT / "examples").glob("*.py")}
    assert blocks
    assert set(blocks) <= examples


def test_hello_world_is_fifteen_lines() -> None:
    """The first program fits in a glance."""
    lines = [line for line in (ROOT / "examples/hello.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 15


@pytest.mark.parametrize(
    ("name", "said"),
    [("hello", "Finished(id=1, result='Hello, world!')"), ("checkout", "paid 100")],
)
def test_the_examples_run_on_the_embedded_server(name: str, said: str, tmp_path: Path) -> None:
    """Each example runs as it is in an empty directory, and says what it should."""
    environment = {k: v for k, v in os.environ.items() if k != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert done.stderr == ""
