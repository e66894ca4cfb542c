"""docs/reference/plans.md, and `python -m tools.plans`, which writes it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from tools.plans.explained_calls import CALLS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/plans.md"
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
EXPECTED = {
    "pick": {"instances_pick", "instances_blocked"},
    "flush": {"instances_pkey"},
    "insert": {"instances_unique"},
    "signal": {"instances_unique", "instances_pkey", "signals_inbox"},
    "heartbeat": {"instances_pkey"},
    "reap": {"instances_lease", "instances_pkey"},
    "gc": {"instances_finished", "instances_pkey", "signals_inbox", "transitions_pkey"},
}


def indexes_of_baseline() -> set[str]:
    """The indexes that migrations create, and those of primary keys."""
    text = "\n".join(path.read_text() for path in ROOT.glob("src/gen_durable/sql/migrations/*.sql"))
    named = set(re.findall(r"create (?:unique )?index (\w+)", text))
    tables = re.findall(r"create table @schema\.(\w+) \(", text)
    return named | {f"{table}_pkey" for table in tables}


def check_page(page: str) -> None:
    """Each call has its row and its section; each index of the table is in a plan of that section, and exists."""
    rows = ROW.findall(page)
    assert [(name, words) for name, words, _ in rows] == [(call.function, call.description) for call in CALLS]
    known = indexes_of_baseline()
    for name, words, cell in rows:
        indexes = set(re.findall(r"`(\w+)`", cell))
        section = page.split(f"\n## {name}: {words}\n", 1)[1].split("\n## ", 1)[0]
        assert indexes <= known
        assert EXPECTED[name] <= indexes
        assert [index for index in indexes if f"using {index} on" not in section] == []


def test_the_page_of_the_docs() -> None:
    """It was made on a large table, and no plan on it reads one from end to end."""
    page = PAGE.read_text()
    check_page(page)
    assert "1,000,000 ended rows" in page.replace("\n", " ")
    assert not re.search(r"Seq Scan on (instances|signals|transitions|activities)\b", page)
    assert max(int(n) for n in re.findall(r"actual rows=(\d+)", page)) <= 1200  # gc looks that far ahead


def test_the_command_on_a_small_table(dsn: str, tmp_path: Path) -> None:
    """It fills a schema, writes the page and drops the schema."""
    if not asyncio.run(has_auto_explain(dsn)):
        assert "GEN_DURABLE_TEST_PLANS" not in os.environ, "without auto_explain no plan is seen"
        pytest.skip("this server has no auto_explain: `make test-plans`")
    page = tmp_path / "plans.md"
    done = subprocess.run(
        [sys.executable, "-m", "tools.plans", "--terminal", "3000", "--runnable", "2000", "--page", str(page)],
        cwd=ROOT, env=os.environ | {"GEN_DURABLE_TEST_DSN": dsn}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_page(page.read_text())
    assert "3,000 ended rows" in page.read_text()


async def has_auto_explain(dsn: str) -> bool:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("load 'auto_explain'")
    except asyncpg.PostgresError:
        return False
    finally:
        await connection.close()
    return True
