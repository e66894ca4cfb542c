"""The fleet: worker processes, each behind a proxy, started again whatever becomes of them.

A berth is a place for one process. What is done to a process on purpose is written down here; one that ends without
that is a finding.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tools.chaos.proxy import Proxy
from tools.chaos.server import Server
from tools.chaos.worker import UNREACHABLE

DRAIN = 30.0  # how long a process that was asked to end may take: drain_timeout twice, and connections that hang
FAKETIME = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
)


@dataclass(eq=False)
class Process:
    """One worker process."""

    name: str
    process: subprocess.Popen[bytes]
    effects: Path
    expected: bool = False  # its end is our doing

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    @property
    def living(self) -> bool:
        return self.process.poll() is None

    def ready(self) -> bool:
        return self.effects.exists() and b" note Ready" in self.effects.read_bytes()[:4096]


@dataclass(eq=False)
class Berth:
    """A place for one worker process: its way to the server, and who is there now."""

    number: int
    proxy: Proxy
    now: Process | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class Fleet:
    """All worker processes of a run."""

    def __init__(self, server: Server, berths: list[Berth], home: Path, lease: float) -> None:
        self._server = server
        self._home = home
        self._lease = lease
        self._numbers = count(1)
        self.berths = berths
        self.all: list[Process] = []
        self.killed: dict[str, int] = {}  # by name, when
        self.findings: list[str] = []
        self.drains: list[float] = []
        self._watch: asyncio.Task[None] | None = None
        for directory in (self.effects, self.logs):
            directory.mkdir()

    @property
    def effects(self) -> Path:
        return self._home / "effects"

    @property
    def logs(self) -> Path:
        return self._home / "workers"

    def spawn(self, berth: Berth, skew: str | None = None) -> Process:
        """Put a new process into a berth; `skew` is what is wrong with its clock."""
        name = f"w{next(self._numbers)}"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PG")},
            "CHAOS_DSN": self._server.dsn(berth.proxy.port),
            "CHAOS_LEASE": str(self._lease),
            "CHAOS_EFFECTS": str(self.effects / name),
        }
        if skew is not None:
            environment |= {"LD_PRELOAD": faketime() or "", "FAKETIME": skew, "DONT_FAKE_MONOTONIC": "1"}
        with (self.logs / name).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tools.chaos.worker"],
                env=environment,
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        fresh = Process(name, process, self.effects / name)
        self.all.append(fresh)
        berth.now = fresh
        return fresh

    async def start(self) -> None:
        """Fill all berths, and keep them filled."""
        for berth in self.berths:
            self.spawn(berth)
        await asyncio.gather(*(self.ready(berth.now) for berth in self.berths if berth.now is not None))
        self._watch = asyncio.create_task(self._keep_filled())

    async def ready(self, process: Process, patience: float = 60) -> bool:
        """Wait until a process works; tells whether it does."""
        deadline = time.monotonic() + patience
        while not process.ready():
            if not process.living or time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def _keep_filled(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for berth in self.berths:
                process = berth.now
                if process is None or process.living or process.expected or berth.busy.locked():
                    continue
                process.expected = True
                status = process.process.returncode
                if status != UNREACHABLE:
                    self.findings.append(f"{process.name} ended by itself, with status {status}: see its log")
                self.spawn(berth)

    def kill(self, process: Process) -> None:
        """SIGKILL: no handler runs, nothing is said good-bye to."""
        process.expected = True
        if process.living:
            self.killed[process.name] = time.monotonic_ns()
            process.send(signal.SIGKILL)
        process.process.wait(30)

    async def drain(self, process: Process) -> None:
        """SIGTERM, and wait for the end: status 0, in time."""
        process.expected = True
        began = time.monotonic()
        process.send(signal.SIGTERM)
        try:
            status = await asyncio.to_thread(process.process.wait, DRAIN)
        except subprocess.TimeoutExpired:
            self.findings.append(f"{process.name} did not end within {DRAIN:.0f} s of SIGTERM: see its log")
            self.kill(process)
            return
        self.drains.append(time.monotonic() - began)
        if status not in (0, UNREACHABLE, -signal.SIGTERM) or (status != 0 and process.ready()):
            self.findings.append(f"{process.name} ended with status {status} after SIGTERM: see its log")

    async def stop(self) -> None:
        """Drain all."""
        await self._unwatch()
        await asyncio.gather(*(self.drain(process) for process in self.all if process.living))

    def destroy(self) -> None:
        """Kill what is left."""
        for process in self.all:
            if process.living:
                process.send(signal.SIGKILL)
                process.process.wait(30)

    async def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])

    def slips(self) -> list[str]:
        """Words in the logs of workers that should never be there."""
        found: list[str] = []
        for path in sorted(self.logs.iterdir()):
            text = path.read_text(errors="replace")
            for word in ("Traceback (most recent call last)", "was never retrieved", "was never awaited"):
                if word in text:
                    at = text.index(word)
                    found.append(f"{path.name}: {' '.join(text[at : at + 2000].split())[-200:]}")
                    break
        return found


def faketime() -> str | None:
    """The library that lies about the time, if it is installed."""
    return next((path for path in FAKETIME if Path(path).exists()), None)
