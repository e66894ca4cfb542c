"""The short form of `make hostile`: hostile logins of every role beside a normal load, for some seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.roles import logins
from tools.hostile.grants import restrict_partition_keys
from tools.hostile.run import FACTOR, Run


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found | {"load": found["client2"], "owner": dsn}


@pytest.mark.slow
async def test_nothing_of_others_is_read_changed_or_stopped(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Exactly; and the load is not slower than documented by more than the noise of a busy machine."""
    await restrict_partition_keys(dsn, schema, dsns)
    figures = await Run(schema, dsns).go(6, 1, 1, ())
    assert figures.verdict(FACTOR * 4) == []
    assert len(figures.attacked) > 5
