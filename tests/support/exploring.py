"""The explorer, ready to use on a schema of its own."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import asyncpg
import pytest
from tests.support.breakpoints import BREAKPOINT, Cure, instrumented
from tests.support.explorer import Explorer, Sample

from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.store.statements import StatementBuilder

Exploring: TypeAlias = Callable[..., AbstractAsyncContextManager[Explorer]]


@pytest.fixture(scope="module")
def ground(dsn: str) -> Iterator[str]:
    """A schema for all explorations of a module: each puts its own functions and rows there."""
    name = f"t_{uuid.uuid4().hex[:12]}"

    async def run(sql: str | None) -> None:
        link = PersistentConnection(ConnectionTarget(dsn))
        if sql is None:
            await migrate(link, Schema(name))
        else:
            await link.run_script(Schema(name).render(sql))
        await link.close()

    asyncio.run(run(None))
    yield name
    asyncio.run(run("drop schema @schema cascade"))


@pytest.fixture(scope="module")
def installed(ground: str) -> dict[str, str]:
    """The functions that an exploration has left in `ground`, by their head: the next replaces those that differ."""
    return {}


@pytest.fixture
def exploring(dsn: str, ground: str, installed: dict[str, str]) -> Exploring:
    """Explorers of the functions as shipped, or without some of their cures; `also` is SQL to install besides.

    In the `quiet` functions nothing stops: what a test knows not to matter.
    """

    @asynccontextmanager
    async def explorer(
        *without: Cure, also: str = "", quiet: Collection[str] = (), sessions: int = 2
    ) -> AsyncIterator[Explorer]:
        connections = [await asyncpg.connect(dsn) for _ in range(1 + sessions)]
        try:
            made = Explorer(ground, connections)
            functions = instrumented(made.schema, *without, quiet=quiet)
            changed = [text for head, text in functions.items() if installed.get(head) != text]
            await made.install("\n".join([BREAKPOINT, *changed, also]))
            installed.update(functions)
            yield made
        finally:
            for connection in connections:
                connection.terminate()

    return explorer


@pytest.fixture
def sample() -> Sample:
    """How many schedules are run where there are too many, and the seed that chooses them."""
    seed = os.environ.get("INTERLEAVING_SEED")
    return Sample(int(seed) if seed else 1, int(os.environ.get("INTERLEAVING_SAMPLES", "25")))


@pytest.fixture
def calls(ground: str) -> StatementBuilder:
    """The engine's calls on this schema."""
    return StatementBuilder(Schema(ground))
