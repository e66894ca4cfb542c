"""The explorer, ready to use on a schema of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import asyncpg
import pytest

from gen_durable.store.calls import Calls
from gen_durable.store.schema import Schema
from tests.interleavings.breakpoints import Cure, instrumented
from tests.interleavings.explorer import Explorer

Exploring: TypeAlias = Callable[..., AbstractAsyncContextManager[Explorer]]


@pytest.fixture
def exploring(dsn: str, schema: str) -> Exploring:
    """Explorers of the functions as shipped, or without some of their cures; `also` is SQL to install besides."""

    @asynccontextmanager
    async def explorer(*without: Cure, also: str = "", in_scans: bool = False) -> AsyncIterator[Explorer]:
        connections = [await asyncpg.connect(dsn) for _ in range(3)]
        try:
            made = Explorer(schema, connections)
            await made.install(instrumented(made.schema, *without, in_scans=in_scans) + also)
            yield made
        finally:
            for connection in connections:
                connection.terminate()

    return explorer


@pytest.fixture
def calls(schema: str) -> Calls:
    """The engine's calls on this schema."""
    return Calls(Schema(schema))
