"""Start, suspend, kill and stop the demo's worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from gen_durable.cli.demo.event_log import EVENT_LOG, PACE

COMMAND: Final = [sys.executable, "-m", "gen_durable.cli", "worker", "gen_durable.cli.demo.worker_program:make_worker"]
STOP_TIMEOUT: Final = 10.0


class ProcessState(StrEnum):
    """The state of a worker process, as the demo shows it."""

    STARTING = "starting"
    WORKING = "working"
    KILLED = "killed"
    STOPPED = "stopped"


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One worker process."""

    number: int
    process: asyncio.subprocess.Process
    replaces: WorkerProcess | None = None
    state: ProcessState = ProcessState.STARTING
    name: str = ""
    steps: int = 0
    running_steps: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        return f"worker {self.number}"


class WorkerProcesses:
    """Starts, suspends, kills and stops worker processes."""

    def __init__(self, dsn: str, event_log: Path, log: Path, pace: float) -> None:
        self._environment = os.environ | {"DATABASE_URL": dsn, EVENT_LOG: str(event_log), PACE: str(pace)}
        self._log = log
        self.workers: list[WorkerProcess] = []

    async def start_one(self, replaces: WorkerProcess | None = None) -> WorkerProcess:
        """Start one more process. It is working once it has made its first pick."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                "--supervised",  # it drains when the demo dies, which holds the other end of its stdin
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C reaches the demo only, which stops the workers
            )
        worker = WorkerProcess(len(self.workers) + 1, process, replaces)
        self.workers.append(worker)
        return worker

    def find_by_pid(self, pid: int) -> WorkerProcess:
        """The worker with a process id."""
        return next(worker for worker in self.workers if worker.pid == pid)

    def suspend(self, worker: WorkerProcess) -> None:
        """SIGSTOP a process, so that it stays in the middle of its steps."""
        worker.process.send_signal(signal.SIGSTOP)

    def resume(self, worker: WorkerProcess) -> None:
        worker.process.send_signal(signal.SIGCONT)

    async def kill(self, worker: WorkerProcess) -> None:
        """SIGKILL a process: it can release nothing."""
        worker.process.send_signal(signal.SIGKILL)
        await worker.process.wait()
        worker.state = ProcessState.KILLED
        worker.running_steps.clear()

    async def stop_all(self) -> bool:
        """Stop all processes. Returns whether each drained and exited with 0."""
        running = [worker for worker in self.workers if worker.process.returncode is None]
        for worker in running:
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)
        codes = await asyncio.gather(*(self._wait_for_exit_or_kill(worker) for worker in running))
        return all(code == 0 for code in codes)

    async def _wait_for_exit_or_kill(self, worker: WorkerProcess) -> int:
        try:
            code = await asyncio.wait_for(worker.process.wait(), STOP_TIMEOUT)
        except TimeoutError:
            worker.process.kill()
            code = await worker.process.wait()
        worker.state = ProcessState.STOPPED
        return code
