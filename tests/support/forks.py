"""Programs in forks of one process (fork_server.py), as `subprocess.Popen` has them in processes of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tests.support.fork_server import SIZE

ROOT = Path(__file__).parents[2]
SLICE = 0.05  # seconds; another thread may have read the packet that this one waits for


class ForkedProgram:
    """A program that runs, or has ended. Its methods are those of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int, arguments: Sequence[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._arguments = arguments

    def poll(self) -> int | None:
        if self.returncode is None:
            self._server.receive(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(list(self._arguments), timeout or 0)
            self._server.receive(SLICE)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


RunningProgram: TypeAlias = ForkedProgram | subprocess.Popen[str]


class ForkServer:
    """The server, and the programs that it has started."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.RLock()
        self._programs: dict[int, ForkedProgram] = {}
        self._newest = 0
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(its.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        outputs: tuple[int, int] = (1, 2),
        directory: Path | None = None,
        is_module: bool = False,
        own_group: bool = False,
    ) -> RunningProgram:
        """Run `python *arguments`, or `python -m *arguments`, with an empty stdin."""
        where = directory or Path.cwd()
        if "GEN_DURABLE_TEST_POOLED" in environment:  # read when an interpreter starts
            return subprocess.Popen(
                [sys.executable, *(["-m"] if is_module else []), *arguments],
                cwd=where,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                text=True,
                process_group=0 if own_group else None,
            )
        packet = {
            "arguments": list(arguments),
            "path": str(where if is_module else Path(arguments[0]).parent),
            "module": is_module,
            "directory": str(where),
            "environment": dict(environment),
            "own_group": own_group,
        }
        with self._lock, Path(os.devnull).open() as nothing:
            self._newest = 0
            socket.send_fds(self._socket, [json.dumps(packet).encode()], [nothing.fileno(), *outputs])
            while not self._newest:
                self.receive(SLICE)
            started = self._programs[self._newest] = ForkedProgram(self, self._newest, arguments)
            return started

    def receive(self, seconds: float) -> None:
        """Note what the server tells within this time."""
        select.select([self._socket], [], [], seconds)
        with self._lock:
            while True:
                try:
                    packet = self._socket.recv(SIZE, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return
                if not packet:
                    raise RuntimeError(f"the server of programs ended with {self._process.wait()}")
                told = json.loads(packet)
                if "pid" in told:
                    self._newest = told["pid"]
                    return
                self._programs.pop(told["exited"]).returncode = told["code"]

    def close(self) -> None:
        self._socket.close()
        self._process.wait(10)
