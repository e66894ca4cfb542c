"""Processes that do the work: one fresh interpreter per run, so that no run inherits anything from another.

The parent's side is `Child`; the other side is `python -m tools.bench.process_main`. They talk in lines of JSON. All
clocks are time.monotonic(), which is one for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gen_durable import Durable
from gen_durable.core.services import services_of
from tools.bench.resource_usage import Reading, Updates
from tools.bench.server import Server

LIMIT = 300.0


class BenchError(Exception):
    """A run failed or did not end its instances."""


class Child:
    """A process that runs a role: `module:function` of this package, with arguments."""

    def __init__(self, process: asyncio.subprocess.Process, role: str) -> None:
        self._process = process
        self._role = role
        self.pid = process.pid

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT):
            line = await self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self._role} ended early, with status {await self._process.wait()}")
        message: dict[str, Any] = json.loads(line)
        return message

    def send(self, word: str) -> None:
        """`go` or `stop`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    async def result(self) -> dict[str, Any]:
        """The return value of the role; earlier messages are skipped."""
        while "result" not in (message := await self.receive()):
            pass
        found: dict[str, Any] = message["result"]
        return found


@asynccontextmanager
async def start_role(app: Durable, role: str, **arguments: object) -> AsyncIterator[Child]:
    """Start a process; it is connected and waits for `go`."""
    # In the environment: other users can read a command line, and a DSN may hold a password.
    target = {
        "BENCH_DSN": services_of(app).connection_target.dsn,
        "BENCH_SCHEMA": services_of(app).statements.schema.name,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.bench.process_main", role, json.dumps(arguments)),
        env=os.environ | target,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**26,
    )
    try:
        child = Child(process, role)
        if "ready" not in (message := await child.receive()):
            raise BenchError(f"{role} sent {message} before it was ready")
        yield child
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(30):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run."""

    count: int
    seconds: float
    worker_cpu: float
    server: Reading
    updates: Updates
    memory: float
    peak: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


async def run_until(server: Server, app: Durable, roles: list[tuple[str, dict[str, object]]], count: int) -> Run:
    """Let processes work until they have ended `count` instances together.

    The roles report how many they have ended, and when the last one was; the server is not polled.
    """
    async with AsyncExitStack() as stack:
        children = [await stack.enter_async_context(start_role(app, role, **arguments)) for role, arguments in roles]
        latest: list[dict[str, float]] = [{"count": 0, "at": 0.0, "cpu": 0.0} for _ in children]
        full = asyncio.Event()

        async def follow(number: int) -> None:
            while True:
                message = await children[number].receive()
                if "count" in message:
                    latest[number] = message
                    if sum(report["count"] for report in latest) >= count:
                        full.set()
                if "result" in message:
                    latest[number] |= message["result"]
                    return

        before = await server.read()
        began = time.monotonic()
        for child in children:
            child.send("go")
        followers = [asyncio.create_task(follow(number)) for number in range(len(children))]
        waiting = asyncio.create_task(full.wait())
        everyone: asyncio.Future[Any] = asyncio.gather(*followers)
        try:
            # A failing process ends the wait, too.
            await asyncio.wait((waiting, everyone), return_when=asyncio.FIRST_COMPLETED)
            spent = await server.read() - before
            for child in children:
                child.send("stop")
            await everyone
        finally:
            for task in (waiting, *followers):
                task.cancel()
        # It may be more than `count`: rows of an obstacle may run meanwhile.
        if (ended := sum(report["count"] for report in latest)) < count:
            raise BenchError(f"{roles[0][0]} ended {ended:.0f} instances of {count}")
    return Run(
        count=count,
        seconds=max(report["at"] for report in latest) - began,
        worker_cpu=sum(report["cpu"] for report in latest),
        server=spent,
        updates=await server.updates(app),
        memory=max(report["memory"] for report in latest),
        peak=max(report["peak"] for report in latest),
    )
