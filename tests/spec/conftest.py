"""An engine for each conformance test, and a worker process that can be killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.spec.doomed import Doomed
from tests.spec.support import Engine, opened

Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[Engine]]
Dooming: TypeAlias = Callable[[], AbstractAsyncContextManager[Doomed]]


@pytest.fixture
def engine(dsn: str, schema: str) -> Opening:
    """`async with engine() as e:` opens a client on this test's schema."""
    return lambda: opened(dsn, schema)


@pytest.fixture
def doomed(dsn: str, schema: str, tmp_path: Path) -> Dooming:
    """`async with doomed() as d:` starts a worker in a process of its own, there to be killed."""

    @asynccontextmanager
    async def process() -> AsyncIterator[Doomed]:
        journal = tmp_path / "journal"
        program = str(Path(__file__).with_name("doomed.py"))
        child = await asyncio.create_subprocess_exec(
            sys.executable, program, dsn, schema, str(journal), stdout=asyncio.subprocess.PIPE
        )
        try:
            yield Doomed(child, journal)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()

    return process
