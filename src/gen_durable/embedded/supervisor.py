"""The supervisor: the one process that starts, restarts and stops the server of a directory.

It runs while any process holds `users.lock`. It keeps no state that a successor would need: `server.lock` says whether
a server runs, so a new supervisor takes over a server that outlived a killed one.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType

from gen_durable.embedded import file_locks, postgres_account, postmaster_process
from gen_durable.embedded.binaries import Binaries, find_or_copy_runnable_binaries
from gen_durable.embedded.cluster import Cluster
from gen_durable.embedded.file_locks import FileLock
from gen_durable.embedded.layout import Layout, check_layout_ownership
from gen_durable.errors import EmbeddedUnavailable
from gen_durable.escaping_loggers import get_escaping_logger

logger = get_escaping_logger("gen_durable.embedded.supervisor")

_CHECK_INTERVAL = 0.5
_CHECK_INTERVAL_WHILE_DOWN = 0.05  # until the dead server's last backend is gone
_LINGER = 1.0  # how long the server stays without a user
_STABLE_AFTER = 5.0  # a server that ran this long is restarted at once
_LONGEST_PAUSE = 5.0
_REMOVED = "the directory was removed"
_STOPPING = (
    (signal.SIGINT, 30.0),
    (signal.SIGQUIT, 10.0),
    (signal.SIGKILL, 10.0),
)  # Postgres' fast and immediate shutdown, then a kill


class Supervisor:
    """Keeps the server running until there is no user."""

    def __init__(self, layout: Layout, binaries: Binaries, own: FileLock) -> None:
        self._layout = layout
        self._binaries = binaries
        self._own = own
        self._child: subprocess.Popen[bytes] | None = None
        self._launched = float("-inf")
        self._pause = 0.0  # before the next start; `gen_durable.backoff` is not in reach (see __main__)
        self._unused_since: float | None = None
        self._users: FileLock | None = None
        self._is_stop_requested = False

    def run(self) -> None:
        """Check until there is no user; then stop the server and release the locks, in the order new users rely on."""
        wake, signalled = os.pipe()
        for end in (wake, signalled):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the starting thread may have blocked some of them
        signal.signal(signal.SIGCHLD, _ignore_child_signal)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop_on_signal)
        while self.start_server_unless_stopping():
            if select.select(
                [wake], [], [], _CHECK_INTERVAL if self._has_server_process() else _CHECK_INTERVAL_WHILE_DOWN
            )[0]:
                os.read(wake, 4096)
        self._stop_server()
        # Release the supervisor lock first, then (with the process) the users lock: a new user that waited for the
        # latter finds the former free and starts the next supervisor at once. Guarded by test_leaving_and_arriving.
        self._own.close()

    def start_server_unless_stopping(self) -> bool:
        """Start the server if it is down. Returns False if the supervisor should stop it and exit."""
        try:
            reason = self._find_stop_reason()
            if reason is None and self._try_lock_users_out():
                reason = "there is no user any more"
        except FileNotFoundError:
            reason = _REMOVED
        if reason is not None:
            logger.info("stopping: %s", reason)
            return False
        self._record_server_exit()
        if time.monotonic() >= self._launched + self._pause:
            self._start_server_if_unlocked()
        return True

    def _find_stop_reason(self) -> str | None:
        if self._is_stop_requested:
            return "received a stop signal"
        return None if self._is_same_directory() else _REMOVED

    def _record_server_exit(self) -> None:
        """Notice that Postgres has exited, and set the pause before its next start."""
        if self._child is not None and self._child.poll() is not None:
            logger.warning("Postgres exited with status %s", self._child.returncode)
            is_stable = time.monotonic() - self._launched > _STABLE_AFTER
            self._pause = 0.0 if is_stable else min(_LONGEST_PAUSE, self._pause * 2 + 0.1)
            self._child = None

    def _has_server_process(self) -> bool:
        return self._child is not None or postmaster_process.find_postmaster_pid(self._layout) is not None

    def _try_lock_users_out(self) -> bool:
        """Lock new users out if the server had no user for a while. Returns whether it did: from then on they wait."""
        now = time.monotonic()
        if not file_locks.is_unlocked(self._layout.users_lock):
            self._unused_since = None
            return False
        if self._unused_since is None:
            self._unused_since = now
        if now - self._unused_since < _LINGER:
            return False
        self._users = file_locks.try_lock_exclusively(self._layout.users_lock)
        return self._users is not None

    def _start_server_if_unlocked(self) -> None:
        lock = file_locks.try_lock_exclusively(self._layout.server_lock)
        if lock is None:
            return
        self._launched = time.monotonic()
        try:
            self._child = self._prepare_cluster(lock).start_postmaster(lock)
        except (OSError, EmbeddedUnavailable):
            logger.exception("cannot start Postgres; retrying")
            self._pause = min(_LONGEST_PAUSE, self._pause * 2 + 0.5)
        finally:
            lock.close()

    def _prepare_cluster(self, lock: FileLock) -> Cluster:
        """The data directory, ready for a postmaster of the right account; created if there is none."""
        check_layout_ownership(self._layout)
        owner = postgres_account.find_or_create_account(self._layout)
        binaries = self._binaries if owner is None else find_or_copy_runnable_binaries(owner, self._binaries)
        cluster = Cluster(self._layout, binaries, owner)
        if not cluster.exists():
            logger.info("creating a cluster in %s", self._layout.data)
            cluster.create(lock)
        postmaster_process.remove_pid_files_of_other_processes(self._layout)
        return cluster

    def _stop_server(self) -> None:
        for number, timeout in _STOPPING:
            if self._child is not None:
                self._child.send_signal(number)
            elif self._is_same_directory():
                postmaster_process.signal_postmaster(self._layout, number)
            deadline = time.monotonic() + timeout
            while time.monotonic() < deadline:
                if self._is_server_down():
                    return
                time.sleep(0.02)
        logger.error("Postgres did not stop, not even on SIGKILL")

    def _is_server_down(self) -> bool:
        if self._child is not None and self._child.poll() is None:
            return False
        try:
            return not self._is_same_directory() or file_locks.is_unlocked(self._layout.server_lock)
        except FileNotFoundError:
            return True

    def _is_same_directory(self) -> bool:
        """Whether the directory is still the supervised one: another directory may have its name now."""
        return self._own.is_still_at_path(self._layout.supervisor_lock)

    def _request_stop_on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_stop_requested = True


def _ignore_child_signal(_number: int, _frame: FrameType | None) -> None:
    """Does nothing: without a handler the signal would not wake the loop."""


def detach_and_supervise(directory: str, root: str, inherited: int) -> None:
    """Detach and supervise `directory`. Returns when the server has stopped, or at once if there is a supervisor."""
    if os.fork() != 0:
        os._exit(0)  # the starter waits for this exit; init adopts the supervisor, so it leaves no zombie
    logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(process)d] %(name)s: %(message)s")
    layout = Layout(Path(directory))
    # The starter took the lock and passed it on. If it has forked meanwhile, the child's copy would outlive this
    # process; so the inherited lock is revoked and taken anew on a descriptor of this process only.
    FileLock(inherited).unlock_for_all_and_close()
    own = file_locks.try_lock_exclusively(layout.supervisor_lock)
    if own is not None:
        logger.info("supervising %s", layout.directory)
        Supervisor(layout, Binaries(Path(root)), own).run()
