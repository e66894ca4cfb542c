"""A run: one worker process, random batches of programs, and what must be true of all of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gen_durable import Durable, Failed, Finished, Handle, Start
from gen_durable.core.services import services_of
from gen_durable.errors import TooLarge
from gen_durable.validation import MAX_BATCH_BYTES, MAX_ERROR, MAX_METADATA, MAX_PAYLOAD
from tools.bench.resource_usage import memory
from tools.bench.server import Server
from tools.fuzz_sizes.machines import Fuzz, Heartbeat, Heartbeats, Leaf, Result, State, leaf, part
from tools.fuzz_sizes.program import Program, draw_batch, draw_metadata, total_bytes
from tools.fuzz_sizes.values import Value

LATEST = 1.0  # seconds that a heartbeat may be late
MOST_MEMORY = 1000.0  # MB of the worker process
UNDER_WAY = 100_000_000  # bytes of the programs that run at once
END_TIMEOUT = 120.0
EVERY = 10.0  # seconds from one line of progress to the next


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    seed: int
    seconds: float
    slots: int
    under_way: int = UNDER_WAY
    latest: float = LATEST


@dataclass
class Figures:
    """What a run has seen."""

    ended: Counter[str] = field(default_factory=Counter[str])
    bytes: int = 0
    refused: int = 0
    heartbeats: int = 0
    latest: float = 0.0  # of the heartbeats
    late_at: float = 0.0  # seconds after the beginning
    memory: float = 0.0  # the most, in MB
    late_timer: float = 0.0  # the latest timer of an idle process
    slow_commit: float = 0.0  # the slowest commit of a few bytes
    problems: list[str] = field(default_factory=list[str])

    def verdict(self, latest: float) -> list[str]:
        """What is wrong with the run, if a heartbeat may be `latest` seconds late."""
        found = list(self.problems)
        if self.latest > latest:
            found.append(f"a heartbeat was {self.latest:.2f} s late, {self.late_at:.0f} s after the beginning")
        if self.memory > MOST_MEMORY:
            found.append(f"the worker took {self.memory:,.0f} MB of memory, more than {MOST_MEMORY:,.0f}")
        if not self.heartbeats:
            found.append("no heartbeat ran")
        return found


class Run:
    """One run against a server."""

    def __init__(self, options: Options, server: Server, say: Callable[[str], None]) -> None:
        self._options = options
        self._server = server
        self._say = say
        self._rng = random.Random(options.seed)
        self._began = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._changed = asyncio.Event()
        self.figures = Figures()

    async def go(self) -> Figures:
        async with self._server.app() as app, self._worker(app), self._progress():
            await app.insert(Heartbeats.beat, Heartbeat(), unique_key="heartbeats")
            self._began = time.monotonic()
            while time.monotonic() - self._began < self._options.seconds:
                await self._insert_batch(app)
                if self._rng.random() < 0.1:
                    await self._insert_too_large(app)
                while self._under_way > self._options.under_way:
                    self._changed.clear()
                    await self._changed.wait()
            await self._finish(app)
        return self.figures

    async def _insert_batch(self, app: Durable) -> None:
        rng = self._rng
        batch = draw_batch(rng, self._options.under_way)
        self._under_way += total_bytes(batch)
        starts = [Start(Fuzz.run, State(program), metadata=draw_metadata(rng)) for program in batch]
        handles = await app.insert_many(starts)
        for program, handle in zip(batch, handles, strict=True):
            assert handle is not None
            self._spawn(self._follow(app, program, handle))
        await asyncio.sleep(rng.choice((0.0, 0.05, 0.3)))

    async def _follow(self, app: Durable, program: Program, handle: Handle[Any]) -> None:
        """Send an instance its signals, and compare its end."""
        try:
            for value in program.signals:
                await handle.signal(part, value.build())
            ending = await handle.wait()
            match ending:
                case Finished(result=Result(checksum, filler)):
                    problem = program.error_size or checksum != program.checksum or not program.result.matches(filler)
                case Failed(error=error):
                    expected = f"{program.checksum} " + "e" * program.error_size
                    problem = not program.error_size or error[: MAX_ERROR // 2] != expected[: MAX_ERROR // 2]
                case _:
                    problem = True
            if problem:
                said = ending.error[:300] if isinstance(ending, Failed) else ending
                self.figures.problems.append(f"instance {handle.id} ended as {said}; its program: {program}"[:1000])
            self.figures.ended[type(ending).__name__] += 1
            self.figures.bytes += program.bytes
        finally:
            self._under_way -= program.bytes
            self._changed.set()

    async def _insert_too_large(self, app: Durable) -> None:
        """Calls beyond a bound are refused by an error of ours, and leave nothing behind."""
        large = Start(leaf, Leaf(Value("text", 1), "x" * 900_000))
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: app.insert(leaf, Leaf(Value("text", 1), "x" * MAX_PAYLOAD)),
            lambda: app.insert(leaf, Leaf(Value("text", 1), [1e300] * (MAX_PAYLOAD // 100))),
            lambda: app.handle(1, Fuzz.run).signal(part, cast(Any, "x" * MAX_PAYLOAD)),
            lambda: app.insert(leaf, Leaf(Value("text", 1), 0), metadata={"x": "x" * MAX_METADATA}),
            lambda: app.insert_many([large] * (MAX_BATCH_BYTES // 900_000 + 1)),
        ]
        try:
            await self._rng.choice(calls)()
        except TooLarge:
            self.figures.refused += 1
        else:
            self.figures.problems.append("a call beyond a bound was not refused")

    async def _finish(self, app: Durable) -> None:
        try:
            async with asyncio.timeout(END_TIMEOUT):
                while self._tasks:
                    await asyncio.wait(self._tasks)
                await self._wait_for_spawned(app)
        except TimeoutError:
            self.figures.problems.append(f"{len(self._tasks)} instances have not ended after {END_TIMEOUT:.0f} s")
            for task in self._tasks:
                task.cancel()
        bad = await self._count(app, "status in ('failed', 'cancelled') and fsm = 'leaf'")
        if bad:
            self.figures.problems.append(f"{bad} children or spawned instances ended badly")
        await app.cancel("heartbeats")

    async def _wait_for_spawned(self, app: Durable) -> None:
        while await self._count(app, "finished_at is null and fsm <> 'Heartbeats'"):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.2)

    async def _count(self, app: Durable, condition: str) -> int:
        schema = services_of(app).statements.schema.name
        return int(await self._server.admin.fetchval(f'select count(*) from "{schema}".instances where {condition}'))

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.figures.problems.append(f"the run failed with {type(error).__name__}: {error}"[:500])

    @asynccontextmanager
    async def _worker(self, app: Durable) -> AsyncGenerator[None]:
        """The worker process, and the idle one that measures the machine."""
        log = await asyncio.to_thread(_new_log)
        environment = {
            **os.environ,
            "FUZZ_DSN": self._server.dsn,
            "FUZZ_SCHEMA": services_of(app).statements.schema.name,
            "FUZZ_SLOTS": str(self._options.slots),
        }
        worker = await _start("worker", environment, log)
        probe = await _start("probe", environment, log)
        assert worker.stdout is not None
        assert probe.stdout is not None
        reading = [asyncio.create_task(self._read(process.stdout)) for process in (worker, probe) if process.stdout]
        watching = asyncio.create_task(self._watch_memory(worker.pid))
        try:
            yield
        finally:
            watching.cancel()
            probe.kill()
            if worker.returncode is None:
                worker.send_signal(signal.SIGTERM)
            if await worker.wait() != 0:
                self.figures.problems.append(f"the worker ended with status {worker.returncode}")
            await probe.wait()
            await asyncio.wait(reading)
            if self.figures.verdict(self._options.latest):
                self._say(f"Log of the worker: {log}")
            else:
                await asyncio.to_thread(log.unlink)

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        """Read the lines of the worker and of the probe."""
        figures = self.figures
        while line := await stdout.readline():
            match line.decode().split():
                case ["late", late]:
                    figures.heartbeats += 1
                    if float(late) > figures.latest:
                        figures.latest, figures.late_at = float(late), time.monotonic() - self._began
                case ["machine", timer, commit]:
                    figures.late_timer = max(figures.late_timer, float(timer))
                    figures.slow_commit = max(figures.slow_commit, float(commit))
                case _:
                    pass

    async def _watch_memory(self, pid: int) -> None:
        while True:
            with suppress(OSError, KeyError):
                self.figures.memory = memory(pid)[1]
            await asyncio.sleep(0.2)

    @asynccontextmanager
    async def _progress(self) -> AsyncGenerator[None]:
        async def show() -> None:
            while True:
                await asyncio.sleep(EVERY)
                self._say(f"{time.monotonic() - self._began:5.0f} s  {describe(self.figures)}")

        task = asyncio.create_task(show())
        try:
            yield
        finally:
            task.cancel()


def _new_log() -> Path:
    file, name = tempfile.mkstemp(prefix="gd-fuzz-", suffix=".log")
    os.close(file)
    return Path(name)


async def _start(module: str, environment: dict[str, str], log: Path) -> asyncio.subprocess.Process:
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"tools.fuzz_sizes.{module}"),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
        )
    finally:
        os.close(file)


def describe(figures: Figures) -> str:
    return (
        f"{figures.ended.total():,} instances ended ({figures.ended['Failed']:,} failed as they should),"
        f" {figures.bytes / 1e6:,.0f} MB of payloads, {figures.refused} calls refused;"
        f" heartbeats: {figures.heartbeats:,}, latest {figures.latest:.2f} s; worker: {figures.memory:,.0f} MB at most;"
        f" the machine: timers {figures.late_timer:.2f} s late, a commit takes {figures.slow_commit:.2f} s at most"
    )
