"""A process that has imported the library, and forks for each program: an import costs more than most programs.

A request is one packet: the program as JSON, and the descriptors of its stdin, stdout and stderr. The answer is its
pid, and a later packet has its exit code. A fork runs the program as `python program.py` does, and ends as an
interpreter ends. The server ends with the process that has the other end of its socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

USUAL = ["gen_durable", "gen_durable.cli.app", "gen_durable.worker", "asyncpg", "uvloop"]
SIZE = 1 << 20  # of a packet, at most


def next_program(requests: socket.socket) -> dict[str, Any] | None:
    """Serve until the other end is closed; in a fork, return the program to run."""
    awake, wake = os.pipe()
    for end in (awake, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    usual = signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            tell_exits(requests)
        if requests not in ready:
            continue
        packet, descriptors, _, _ = socket.recv_fds(requests, SIZE, 3)
        if not packet:
            return None
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, usual)
            for number in (awake, wake, requests.detach()):
                os.close(number)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
                os.close(descriptor)
            return dict(json.loads(packet))
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(json.dumps({"pid": child}).encode())


def tell_exits(requests: socket.socket) -> None:
    """Tell the exit code of each program that has ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            requests.send(json.dumps({"exited": child, "code": os.waitstatus_to_exitcode(status)}).encode())


def run(program: dict[str, Any]) -> None:
    """Make this process look as if it had been started for the program, and run it."""
    if program["own_group"]:
        os.setpgid(0, 0)
    os.chdir(program["directory"])
    os.environ.clear()
    os.environ.update(program["environment"])
    sys.argv = program["arguments"]
    sys.path[0] = program["path"]
    if program["module"]:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    for module in USUAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy all of this
    received = next_program(socket.socket(fileno=int(sys.argv[1])))
    if received is not None:
        run(received)
