"""An engine for each test, and worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import psycopg
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


@pytest.fixture
def private_dsn(dsn: str, schema: str) -> Iterator[str]:
    """The server under a role of this test's own, so that its sessions can be told from those of other tests."""
    role = f"{schema}_role"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {role} superuser login password 'private'")
        parts = urlsplit(dsn)
        place = parts.netloc.rsplit("@", 1)[-1]
        yield urlunsplit(parts._replace(netloc=f"{role}:private@{place}"))
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [role])
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")


@pytest.fixture
def private(private_dsn: str, schema: str) -> Opening:
    """`engine` on `private_dsn`."""

    def opening(**options: Any) -> AbstractAsyncContextManager[Engine]:
        return opened(private_dsn, schema, **options)

    return opening
