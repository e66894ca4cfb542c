"""The two roads that a caller's connection may take: straight to the server, and through PgBouncer."""

from __future__ import annotations

import pytest
from tests.support.processes import proxied

__all__ = ["proxied", "road"]


@pytest.fixture(params=["direct", "pooled"])
def road(request: pytest.FixtureRequest, dsn: str) -> str:
    """The DSN that callers connect to."""
    return dsn if request.param == "direct" else str(request.getfixturevalue("pooled"))
