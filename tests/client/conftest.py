"""An engine for each test, and worker processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import pytest
from tests.worker.support import Engine, Process, opened, process

Opening: TypeAlias = Callable[..., AbstractAsyncContextManager[Engine]]
Spawning: TypeAlias = Callable[..., AbstractAsyncContextManager[Process]]


@pytest.fixture
def engine(dsn: str, schema: str) -> Opening:
    """`async with engine() as e:` opens a client on this test's schema."""

    def opening(**options: Any) -> AbstractAsyncContextManager[Engine]:
        return opened(dsn, schema, **options)

    return opening


@pytest.fixture
def spawn(dsn: str, schema: str) -> Spawning:
    """`async with spawn("slots=2") as p:` starts a worker in a process of its own."""

    def spawning(*arguments: str) -> AbstractAsyncContextManager[Process]:
        return process(dsn, schema, *arguments)

    return spawning
