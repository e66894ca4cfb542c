"""The pytest plugin: a server, a schema for each test, and harnesses on it.

Every pytest run of an environment with the library loads this module, so it imports nothing of it before a fixture is
used.

The fixtures are plain functions. They work with `async def` tests under pytest-asyncio and anyio, and with plain tests
that call `asyncio.run`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from gen_durable.testing.harness import HarnessFactory

T = TypeVar("T")
DSN_VARIABLE = "GEN_DURABLE_TEST_DSN"


@pytest.fixture(scope="session")
def gen_durable_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Postgres server for tests: GEN_DURABLE_TEST_DSN, else the embedded one, started for this run.

    Override this fixture to use another server.
    """
    given = os.environ.get(DSN_VARIABLE)
    if given:
        yield given
        return
    from gen_durable.embedded import release, start
    from gen_durable.errors import EmbeddedUnavailable

    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # one server for all processes of the run
    try:
        server = start(root / "gen_durable")
    except EmbeddedUnavailable as error:
        pytest.fail(f"{error} (tests use the server in {DSN_VARIABLE}, if set)", pytrace=False)
    yield server.dsn
    release(server)


@pytest.fixture
def gen_durable_schema(gen_durable_dsn: str) -> Iterator[str]:
    """The name of a fresh, migrated schema, dropped after the test: `Durable(gen_durable_dsn, schema=...)`."""
    from gen_durable.testing.throw_away_schemas import create_throw_away_schema, drop_throw_away_schema

    name = _run_in_thread(lambda: create_throw_away_schema(gen_durable_dsn))
    yield name
    _run_in_thread(lambda: drop_throw_away_schema(gen_durable_dsn, name))


@pytest.fixture
def durable_harness(gen_durable_dsn: str, gen_durable_schema: str) -> HarnessFactory:
    """A factory of harnesses: `async with durable_harness(machines=[Checkout(stripe)], jobs=[greet]) as harness:`."""
    from gen_durable.testing.harness import HarnessFactory

    return HarnessFactory(gen_durable_dsn, gen_durable_schema)


def _run_in_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a thread: this thread may have a running loop, or one that an async plugin has set."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run_coroutine() -> None:
        try:
            results.append(asyncio.run(make()))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run_coroutine, name="gen_durable fixture")
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return results[0]
