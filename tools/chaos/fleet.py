"""The fleet: worker processes, each behind a proxy, restarted whenever they end.

A slot has one process at a time. Faults mark the processes they end as expected; any other exit is a finding.
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
    expected: bool = False  # a fault ended it

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def was_poisoned(self) -> bool:
        """Whether the last thing that it did was to kill itself."""
        return b" note Poison " in self.effects.read_bytes()[-100:]

    def ready(self) -> bool:
        return self.effects.exists() and b" note Ready" in self.effects.read_bytes()[:4096]


@dataclass(eq=False)
class Slot:
    """A slot for one worker process: its proxy to the server, and its current process."""

    number: int
    proxy: Proxy
    now: Process | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class Fleet:
    """All worker processes of a run."""

    def __init__(self, server: Server, slots: list[Slot], home: Path, lease: float) -> None:
        self._server = server
        self._home = home
        self._lease = lease
        self._numbers = count(1)
        self.slots = slots
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

    def spawn(self, slot: Slot, skew: str | None = None) -> Process:
        """Start a new process in a slot; `skew` is the error of its clock."""
        name = f"w{next(self._numbers)}"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PG")},
            "CHAOS_DSN": self._server.dsn(slot.proxy.port),
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
        slot.now = fresh
        return fresh

    async def start(self) -> None:
        """Fill all slots, and keep them filled."""
        for slot in self.slots:
            self.spawn(slot)
        await asyncio.gather(*(self.ready(slot.now) for slot in self.slots if slot.now is not None))
        self._watch = asyncio.create_task(self._keep_filled())

    async def ready(self, process: Process, timeout: float = 60) -> bool:
        """Wait until a process works. Returns whether it does."""
        deadline = time.monotonic() + timeout
        while not process.ready():
            if not process.is_alive or time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def _keep_filled(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for slot in self.slots:
                process = slot.now
                if process is None or process.is_alive or process.expected or slot.busy.locked():
                    continue
                process.expected = True
                status = process.process.returncode
                if status == -signal.SIGKILL and process.was_poisoned():
                    self.killed[process.name] = time.monotonic_ns()
                elif status != UNREACHABLE:
                    self.findings.append(f"{process.name} ended by itself, with status {status}: see its log")
                self.spawn(slot)

    def kill(self, process: Process) -> None:
        """SIGKILL: no handler runs."""
        process.expected = True
        if process.is_alive:
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
        if status == -signal.SIGKILL and process.was_poisoned():
            self.killed[process.name] = time.monotonic_ns()
            return
        self.drains.append(time.monotonic() - began)
        if status not in (0, UNREACHABLE, -signal.SIGTERM) or (status != 0 and process.ready()):
            self.findings.append(f"{process.name} ended with status {status} after SIGTERM: see its log")

    async def stop(self) -> None:
        """Drain all."""
        await self._unwatch()
        await asyncio.gather(*(self.drain(process) for process in self.all if process.is_alive))

    def destroy(self) -> None:
        """Kill the remaining processes."""
        for process in self.all:
            if process.is_alive:
                process.send(signal.SIGKILL)
                process.process.wait(30)

    async def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])

    def log_errors(self) -> list[str]:
        """Tracebacks and warnings in the logs of workers."""
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
