"""docs/howto/sql.md: its SQL runs as it stands in psql, its Python as it stands, and a worker ends the instances."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.support.engine import opened

from gen_durable import Await, Context, Done, Fail, Machine, Outcome, Signal, step
from gen_durable.embedded import binaries

PAGE = (Path(__file__).parents[2] / "docs/howto/sql.md").read_text()
BLOCKS = re.findall(r"```(sql|python)\n(.*?)```", PAGE, re.DOTALL)
MARK = "end of block"
payment = Signal("payment", dict[str, int])


class Checkout(Machine):
    """The machine that the page steers."""

    @step
    async def start(self, order: dict[str, Any], ctx: Context) -> Outcome[int]:
        return Await(payment, then=self.collect, state=order)

    @step
    async def collect(self, order: dict[str, Any], ctx: Context) -> Outcome[int]:
        return Done(json.loads(ctx.awaited[0].payload)["amount"]) if ctx.awaited else Fail("not paid")


class Psql:
    """One psql session, to which blocks are given one at a time, and what each has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, block: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{block}\n\\echo {MARK}\n".encode())
        lines: list[str] = []
        while (line := (await self._process.stdout.readline()).decode().rstrip("\n")) != MARK:
            assert self._process.returncode is None, lines
            lines.append(line)
        return lines


@pytest.fixture
def private_database(dsn: str) -> Iterator[str]:
    """A database of this test's own, so that the schema is called gen_durable and its ids begin at 1."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        yield urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.mark.direct
async def test_the_page_runs_as_it_stands(private_database: str) -> None:
    """Every block in its order, each when the worker has nothing to do."""
    dsn, printed = private_database, []
    environment = os.environ | {"DATABASE_URL": dsn}
    options = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", dsn]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        binaries.find_binaries().root / "bin" / "psql", *options, stdin=pipe, stdout=pipe, stderr=None
    )
    psql = Psql(process)
    async with opened(dsn, "gen_durable", migrate=True) as e, e.worker(Checkout()):

        async def is_quiet() -> bool:
            return await e.rows.count("status in ('runnable', 'executing')") == 0

        for language, block in BLOCKS:
            if language == "sql":
                printed.append(await psql.run(block))
            else:
                child = await asyncio.create_subprocess_exec(sys.executable, "-c", block, stdout=pipe, env=environment)
                out, _ = await child.communicate()
                assert child.returncode == 0
                printed.append(out.decode().splitlines())
            await e.rows.when(is_quiet)
    process.stdin.close()  # type: ignore[union-attr]
    assert await process.wait() == 0
    assert printed == [
        ["1"],
        ["1|collect|awaiting_signal", "{1}", "1"],
        ["delivered"],
        ["done|100", "done|100|"],
        [],
        ["ended", "2|cancelled"],
        ["1|start|Await"],
        ["3"],
        ["delivered"],
        ["4", ""],
    ]
