"""The plugin's own fixtures, with the doctor's look at every schema in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.schemas import Schemas


@pytest.fixture(scope="session")
def gen_durable_dsn(dsn: str) -> str:
    """The server of all our tests: one embedded server is enough. The plugin's own choice is seen in test_plugin."""
    return dsn


@pytest.fixture
def gen_durable_schema(schemas: Schemas, gen_durable_schema: str) -> Iterator[str]:
    """The plugin's schema. Whatever the harness did to it, no invariant of the engine may be broken."""
    yield gen_durable_schema
    found = schemas.diagnose(gen_durable_schema)
    assert not found, f"the doctor found: {found}"
