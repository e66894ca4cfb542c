"""The fixtures of the pytest plugin on the server of all tests, with schemas that are lent again (schemas.py).

How the plugin itself starts a server, and makes and drops its schemas, is seen in tests/testing/test_plugin.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.schemas import Schemas

from gen_durable.testing.throw_away_schemas import create_throw_away_schema


@pytest.fixture(scope="session")
def gen_durable_dsn(dsn: str) -> str:
    """The server of all our tests: one embedded server is enough."""
    return dsn


@pytest.fixture(scope="session")
def throw_away_schemas(dsn: str) -> Iterator[Schemas]:
    """The schemas of this process that have the mark of the plugin."""
    made = Schemas(dsn, create_throw_away_schema)
    yield made
    made.close()


@pytest.fixture
def gen_durable_schema(throw_away_schemas: Schemas) -> Iterator[str]:
    """A schema as the plugin makes it. Whatever the harness did to it, no invariant of the engine may be broken."""
    name = throw_away_schemas.take()
    yield name
    found = throw_away_schemas.diagnose(name)
    throw_away_schemas.give_back(name)
    assert not found, f"the doctor found: {found}"
