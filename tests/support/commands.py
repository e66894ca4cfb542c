"""The command line as people use it: real processes, in a directory of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.forks import ForkServer

COMMAND = [sys.executable, "-m", "gen_durable.cli"]
ROOT = Path(__file__).parents[2]
PATIENCE = 30.0


def environment(**more: str) -> dict[str, str]:
    """Ours, without what would change what is tested."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "CI", "FORCE_COLOR")}
    return kept | {"COLUMNS": "200", "NO_COLOR": "1"} | more


class CommandServer:
    """Runs commands in forks of one process (command_server.py), one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.command_server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, directory: Path, arguments: Sequence[str], environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder) / name for name in ("stdout", "stderr")]
            command = {
                "arguments": arguments,
                "directory": str(directory),
                "environment": environment,
                "outputs": [str(path) for path in outputs],
            }
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            said, complained = (path.read_text() for path in outputs)
        return subprocess.CompletedProcess(["gen-durable", *arguments], code, said, complained)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def command_server() -> Iterator[CommandServer]:
    """One process for the commands of all tests."""
    server = CommandServer()
    yield server
    server.close()


def run_command(directory: Path, arguments: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a process of its own from the interpreter's start."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=directory,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.fixture
def run(tmp_path: Path, command_server: CommandServer) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command to its end: in a fork, unless it has to begin with the start of an interpreter."""

    def run_it(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        if "demo" in arguments or "PYTHONPATH" in more or "GEN_DURABLE_TEST_POOLED" in os.environ:
            return run_command(tmp_path, arguments, **more)
        return command_server.run(tmp_path, arguments, environment(**more))

    return run_it


class Running:
    """A command that goes on, and the lines that it has written to stderr."""

    def __init__(self, forks: ForkServer, directory: Path, arguments: tuple[str, ...], more: dict[str, str]) -> None:
        ours, its = os.pipe()
        self._stderr = os.fdopen(ours)
        self.process = forks.start(
            ["gen_durable.cli", *arguments],
            environment(**more),
            outputs=(1, its),
            directory=directory,
            is_module=True,
            own_group=True,  # as a shell does it
        )
        os.close(its)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stderr:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()

    def expect(self, pattern: str, times: int = 1) -> list[re.Match[str]]:
        """Wait until so many lines match, and return the matches."""
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while True:
                found = [match for line in self.lines if (match := re.search(pattern, line))]
                if len(found) >= times:
                    return found
                assert self._news.wait(deadline - time.monotonic()), f"{pattern!r} not in {self.lines}"

    async def heard(self, pattern: str, times: int = 1) -> list[re.Match[str]]:
        """The same, while the event loop goes on: a client's notifications are sent by it."""
        return await asyncio.to_thread(self.expect, pattern, times)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """What a terminal does: SIGINT for the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive(), "a process that it started is still there"
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        self._stderr.close()


@pytest.fixture
def start(tmp_path: Path, fork_server: ForkServer) -> Iterator[Callable[..., Running]]:
    """Start a command; whatever still runs in the end is killed."""
    all_of_them: list[Running] = []

    def start_it(*arguments: str, **more: str) -> Running:
        running = Running(fork_server, tmp_path, arguments, more)
        all_of_them.append(running)
        return running

    yield start_it
    for running in all_of_them:
        running.close()
