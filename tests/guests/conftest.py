"""The two roads that a caller's connection may take: straight to the server, and through PgBouncer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "pgbouncer"


@pytest.fixture(scope="session")
def pooled(dsn: str) -> Iterator[str]:
    """A DSN that leads to the server through PgBouncer in transaction mode."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = process.stdout.readline().strip()
        assert found, "scripts/pgbouncer did not start; its words are above"
        yield found
        process.stdin.close()


@pytest.fixture(params=["direct", "pooled"])
def road(request: pytest.FixtureRequest, dsn: str) -> str:
    """The DSN that callers connect to."""
    return dsn if request.param == "direct" else str(request.getfixturevalue("pooled"))
