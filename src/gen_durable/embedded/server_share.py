"""A share in the running server: a lock on `users.lock`, and a thread that replaces a killed supervisor.

The share is taken before anything else, so that the server cannot stop while the process joins it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import assert_never

from gen_durable.embedded import file_locks, server_probe, socket_directory
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.environment import make_supervisor_environment
from gen_durable.embedded.file_locks import FileLock
from gen_durable.embedded.layout import Layout, check_layout_ownership
from gen_durable.embedded.path_ownership import open_owned_file
from gen_durable.embedded.server_probe import ServerState
from gen_durable.errors import EmbeddedUnavailable
from gen_durable.escaping_loggers import get_escaping_logger

logger = get_escaping_logger("gen_durable.embedded")

_START_TIMEOUT = 30.0  # seconds in which the server is neither ready nor starting
_GUARD_INTERVAL = 1.0
_LOG_LIMIT = 8 * 1024 * 1024


class SupervisorRestarter:
    """Checks once a second that there is a supervisor: users cannot notice otherwise that it was killed."""

    def __init__(self, layout: Layout, binaries: Binaries) -> None:
        self._layout = layout
        self._binaries = binaries
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._check_until_stopped, name="gen_durable-embedded-guard", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def restore_supervisor_and_socket_link(self) -> None:
        """Start a supervisor if there is none, and restore the symlink to the socket."""
        socket_directory.find_or_link_connectable_directory(self._layout)
        start_supervisor_if_missing(self._layout, self._binaries)

    def _check_until_stopped(self) -> None:
        while not self._stopped.wait(_GUARD_INTERVAL):
            try:
                self.restore_supervisor_and_socket_link()
            except (OSError, EmbeddedUnavailable) as error:
                if not self._layout.directory.exists():
                    return  # the directory was deleted
                logger.warning("cannot check the supervisor of the embedded server: %s", error)
            except RuntimeError:
                return  # the interpreter is shutting down and starts no process any more


class ServerShare:
    """One call of `start`: keeps the server running until `release`."""

    def __init__(self, share: FileLock, guard: SupervisorRestarter) -> None:
        self._share = share
        self._guard = guard
        self._pid = os.getpid()

    def release(self) -> None:
        """Stop using the server. A forked child closes only its own copy: the guard is a thread of the parent."""
        if os.getpid() == self._pid:
            self._guard.stop()
        self._share.close()


def join_server(layout: Layout, binaries: Binaries) -> ServerShare:
    """Become a user of the server. Returns when it accepts connections."""
    share = file_locks.wait_for_shared_lock(layout.users_lock, _START_TIMEOUT)
    if share is None:
        raise EmbeddedUnavailable(
            f"The embedded server in {layout.directory} does not finish stopping. Its log says:\n"
            f"{layout.read_log_tail()}"
        )
    try:
        _wait_until_server_ready(layout, binaries)
    except BaseException:
        share.close()
        raise
    guard = SupervisorRestarter(layout, binaries)
    guard.start()
    return ServerShare(share, guard)


def start_supervisor_if_missing(layout: Layout, binaries: Binaries) -> None:
    """Start a supervisor if there is none. It inherits the lock, so there is never a second one."""
    check_layout_ownership(layout)
    lock = file_locks.try_lock_exclusively(layout.supervisor_lock)
    if lock is None:
        return
    try:
        _start_supervisor_process(layout, binaries, lock)
    except BaseException:
        lock.unlock_for_all()
        raise
    lock.close()


def _start_supervisor_process(layout: Layout, binaries: Binaries, lock: FileLock) -> None:
    if layout.log.exists() and layout.log.stat().st_size > _LOG_LIMIT:
        layout.log.replace(layout.old_log)
    log = open_owned_file(layout.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        # -S and -P: no site packages and no directory of the script on the path; it needs the standard
        # library only.
        program = [sys.executable, "-S", "-P", str(Path(__file__).with_name("__main__.py"))]
        done = subprocess.run(  # noqa: S603  # fixed arguments
            [*program, str(layout.directory), str(binaries.root), str(lock.fd)],
            cwd="/",
            env=make_supervisor_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock.fd],
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(log)
    if done.returncode != 0:
        raise EmbeddedUnavailable(
            f"The supervisor of the embedded server in {layout.directory} did not start (status {done.returncode})."
            f" Its log says:\n{layout.read_log_tail()}"
        )


def _wait_until_server_ready(layout: Layout, binaries: Binaries) -> None:
    socket = socket_directory.socket_path(socket_directory.find_or_link_connectable_directory(layout))
    next_check = float("-inf")
    give_up = time.monotonic() + _START_TIMEOUT
    while True:
        now = time.monotonic()
        if now >= next_check:
            start_supervisor_if_missing(layout, binaries)
            next_check = now + _GUARD_INTERVAL
        state = server_probe.probe_server_state(socket)
        match state:
            case ServerState.READY:
                return
            case ServerState.STARTING:
                give_up = now + _START_TIMEOUT  # recovery after a crash may take any time
            case ServerState.DOWN:
                if now > give_up:
                    raise EmbeddedUnavailable(
                        f"The embedded server in {layout.directory} did not start within {_START_TIMEOUT:.0f} seconds."
                        f" Its log says:\n{layout.read_log_tail()}"
                    )
            case _:
                assert_never(state)
        time.sleep(0.02)
