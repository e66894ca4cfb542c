"""A share in the running server: a lock on `users.lock`, and a thread that replaces a killed supervisor.

The share is taken before anything else, so that the server cannot stop while the process joins it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import assert_never

from gen_durable.embedded import file_locks, server_probe, socket_directory
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.file_locks import FileLock
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.server_probe import ServerState
from gen_durable.embedded.supervisor_starter import start_supervisor_if_missing
from gen_durable.errors import EmbeddedUnavailable
from gen_durable.escaping_loggers import get_escaping_logger

logger = get_escaping_logger("gen_durable.embedded")

_START_TIMEOUT = 30.0  # seconds in which the server is neither ready nor starting
_GUARD_INTERVAL = 1.0


class SupervisorRestarter:
    """Starts a supervisor once a second if there is none: users cannot notice otherwise that it was killed."""

    def __init__(self, layout: Layout, binaries: Binaries) -> None:
        self._layout = layout
        self._binaries = binaries
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._restore_until_stopped, name="gen_durable-embedded-guard", daemon=True
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

    def _restore_until_stopped(self) -> None:
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
        _start_and_wait_until_ready(layout, binaries)
    except BaseException:
        share.close()
        raise
    guard = SupervisorRestarter(layout, binaries)
    guard.start()
    return ServerShare(share, guard)


def _start_and_wait_until_ready(layout: Layout, binaries: Binaries) -> None:
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
