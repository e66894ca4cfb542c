"""The worker processes of the demo: real processes, that can really be killed."""

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

from gen_durable.cli.demo.event_log import NOTES, PACE

COMMAND: Final = [sys.executable, "-m", "gen_durable.cli", "worker", "gen_durable.cli.demo.program:worker"]
PATIENCE: Final = 10.0


class State(StrEnum):
    """What a worker process is doing, as shown."""

    STARTING = "starting"
    WORKING = "working"
    KILLED = "killed"
    STOPPED = "stopped"


@dataclass(slots=True, eq=False)
class Member:
    """One worker process."""

    number: int
    process: asyncio.subprocess.Process
    instead_of: Member | None = None
    state: State = State.STARTING
    name: str = ""
    steps: int = 0
    doing: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        return f"worker {self.number}"


class Crew:
    """Starts, freezes, kills and stops worker processes."""

    def __init__(self, dsn: str, notes: Path, log: Path, pace: float) -> None:
        self._environment = os.environ | {"DATABASE_URL": dsn, NOTES: str(notes), PACE: str(pace)}
        self._log = log
        self.members: list[Member] = []

    async def hire(self, instead_of: Member | None = None) -> Member:
        """Start one more. It is working when it has made its first pick."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                "--supervised",  # it drains when we are gone: we hold the other end of its stdin
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for us; we tell the workers
            )
        member = Member(len(self.members) + 1, process, instead_of)
        self.members.append(member)
        return member

    def of(self, pid: int) -> Member:
        """The member with a process id."""
        return next(member for member in self.members if member.pid == pid)

    def freeze(self, member: Member) -> None:
        """Hold a process still: whatever it is doing, it is in the middle of it now."""
        member.process.send_signal(signal.SIGSTOP)

    def thaw(self, member: Member) -> None:
        member.process.send_signal(signal.SIGCONT)

    async def kill(self, member: Member) -> None:
        """SIGKILL: nothing of the process gets to say goodbye."""
        member.process.send_signal(signal.SIGKILL)
        await member.process.wait()
        member.state = State.KILLED
        member.doing.clear()

    async def dismiss(self) -> bool:
        """Stop all; tells whether every one of them drained and ended with 0."""
        living = [member for member in self.members if member.process.returncode is None]
        for member in living:
            with contextlib.suppress(ProcessLookupError):
                member.process.send_signal(signal.SIGTERM)
        codes = await asyncio.gather(*(self._gone(member) for member in living))
        return all(code == 0 for code in codes)

    async def _gone(self, member: Member) -> int:
        try:
            code = await asyncio.wait_for(member.process.wait(), PATIENCE)
        except TimeoutError:
            member.process.kill()
            code = await member.process.wait()
        member.state = State.STOPPED
        return code
