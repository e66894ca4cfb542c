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


def test_the_tutorial_quotes_the_checkout() -> None:
    """Every Python block of the tutorial is a part of examples/checkout.py, to the letter."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tutorial/first-machine.md").read_text(), re.DOTALL)
    example = (ROOT / "examples/checkout.py").read_text()
    assert blocks
    assert [block for block in blocks if block not in example] == []


def test_hello_world_is_fifteen_lines() -> None:
    """The first program fits in a glance."""
    lines = [line for line in (ROOT / "examples/hello.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 15


@pytest.mark.parametrize(
    ("name", "said"),
    [("hello", "Hello, world!"), ("checkout", "paid 100")],
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


COUNT = """
import asyncio
from gen_durable import Durable

async def main() -> None:
    async with Durable() as app:
        print([(one.machine, one.result) async for one in app.list_all(payloads=True)])

asyncio.run(main())
"""


def test_the_checkout_charges_once_however_often_it_runs(tmp_path: Path) -> None:
    """A second run on the same database gets the first instance and its result, and ships nothing."""
    environment = {k: v for k, v in os.environ.items() if k != "DATABASE_URL"}
    said = [
        subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
            check=True,
        ).stdout
        for command in ([str(ROOT / "examples/checkout.py")], [str(ROOT / "examples/checkout.py")], ["-c", COUNT])
    ]  # fmt: skip
    assert said[0] == "shipping ['box with tea', 'box with cup']\npaid 100\n"
    assert said[1] == "order 42 has ended before\npaid 100\n"
    assert said[2].count("'Checkout', 100") == 1
    assert said[2].count("'Pack'") == 2


def test_every_public_name_has_its_line_in_the_docs() -> None:
    """A name that can be imported from `gen_durable` is explained in docs/reference/api.md."""
    import gen_durable

    text = (ROOT / "docs/reference/api.md").read_text()
    assert [name for name in gen_durable.__all__ if f"`{name}`" not in text] == []


def test_every_option_of_a_worker_has_its_line_in_the_docs() -> None:
    """Each option, with its default, is explained in docs/howto/operate.md."""
    from dataclasses import fields

    from gen_durable.worker_options import WorkerOptions

    text = (ROOT / "docs/howto/operate.md").read_text()
    assert [f.name for f in fields(WorkerOptions) if f"`{f.name}`" not in text] == []
