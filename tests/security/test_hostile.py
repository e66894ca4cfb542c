"""The short form of `make hostile`: hostile logins of every role beside a normal load, for some seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.roles import logins
from tools.hostile.run import FACTOR, Run

# Known and documented (SECURITY.md): any login can hold locks with our numbers, and partition keys are shared by all.
NOT_DEFENDED = ("advisory locks", "insert, partition of others")


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found | {"load": found["client2"]}


@pytest.mark.slow
async def test_nothing_of_others_is_read_changed_or_stopped(schema: str, dsns: dict[str, str]) -> None:
    """Exactly; and the load is not slower than documented by more than the noise of a busy machine."""
    figures = await Run(schema, dsns).go(6, 1, 1, NOT_DEFENDED)
    assert figures.verdict(FACTOR * 4) == []
    assert len(figures.attacked) > 5
