"""The supervisor: the one process that starts, restarts and stops the server of a directory.

In: a directory and the wheel's binaries. Out: a running Postgres for as long as anybody holds `users.lock`. It keeps
no state that a successor would need: whether a server runs is read off `server.lock`, so a server that outlived a
killed supervisor is taken over without being told.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType

from gen_durable.embedded import account, locks, postmaster
from gen_durable.embedded.binaries import Binaries, runnable_by
from gen_durable.embedded.cluster import Cluster
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.locks import Lock
from gen_durable.errors import EmbeddedUnavailable

logger = logging.getLogger("gen_durable.embedded.supervisor")

_TURN = 0.5  # between two looks at the users
_TURN_WHILE_DOWN = 0.05  # between two looks at whether the dead server's last backend is gone
_LINGER = 1.0  # how long nobody must be there before the server stops
_STEADY = 5.0  # a server that lived this long may be restarted at once
_STOPPING = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))  # fast, immediate, none


class Supervisor:
    """Runs until there is no user; `turn` is one look at the world."""

    def __init__(self, place: Layout, binaries: Binaries, own: Lock) -> None:
        self._place = place
        self._binaries = binaries
        self._own = own
        self._child: subprocess.Popen[bytes] | None = None
        self._launched = float("-inf")
        self._delay = 0.0
        self._alone_since: float | None = None
        self._users: Lock | None = None
        self._asked_to_stop = False

    def run(self) -> None:
        """Look, wait, look again; then stop the server and let go, in the order that newcomers rely on."""
        wake, signalled = os.pipe()
        for end in (wake, signalled):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the thread that started us may have blocked any of them
        signal.signal(signal.SIGCHLD, _ignore)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        while self.turn():
            if select.select([wake], [], [], _TURN if self._serving() else _TURN_WHILE_DOWN)[0]:
                os.read(wake, 4096)
        self._stop_server()
        # First our own lock, then (with the process) the users': a newcomer that waited for the latter finds the former
        # free and starts the next supervisor at once. Guarded by test_leaving_and_arriving.
        self._own.close()

    def turn(self) -> bool:
        """One look. False when it is time to stop the server and go."""
        if (reason := self._reason_to_go()) is not None:
            logger.info("stopping: %s", reason)
            return False
        if self._child is not None and self._child.poll() is not None:
            logger.warning("Postgres ended with status %s", self._child.returncode)
            self._delay = 0.0 if time.monotonic() - self._launched > _STEADY else min(5.0, self._delay * 2 + 0.1)
            self._child = None
        if time.monotonic() >= self._launched + self._delay:
            self._ensure_server()
        return True

    def _reason_to_go(self) -> str | None:
        if self._asked_to_stop:
            return "asked to"
        try:
            if self._is_ours():
                return "no user is left" if self._is_deserted() else None
        except FileNotFoundError:
            pass
        return "the directory was removed"

    def _serving(self) -> bool:
        return self._child is not None or postmaster.running(self._place) is not None

    def _is_deserted(self) -> bool:
        """Whether nobody used the server for a while. If so, newcomers are kept waiting from here on."""
        now = time.monotonic()
        if not locks.is_free(self._place.users_lock):
            self._alone_since = None
            return False
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since < _LINGER:
            return False
        self._users = locks.try_exclusive(self._place.users_lock)
        return self._users is not None

    def _ensure_server(self) -> None:
        lock = locks.try_exclusive(self._place.server_lock)
        if lock is None:
            return
        self._launched = time.monotonic()
        try:
            owner = account.choose(self._place)
            binaries = self._binaries if owner is None else runnable_by(owner, self._binaries)
            cluster = Cluster(self._place, binaries, owner)
            if not cluster.exists():
                logger.info("making a cluster in %s", self._place.data)
                cluster.create(lock)
            postmaster.clear_stale(self._place)
            self._child = cluster.launch(lock)
        except (OSError, EmbeddedUnavailable):
            logger.exception("cannot start Postgres; will try again")
            self._delay = min(5.0, self._delay * 2 + 0.5)
        finally:
            lock.close()

    def _stop_server(self) -> None:
        for number, patience in _STOPPING:
            if self._child is not None:
                self._child.send_signal(number)
            elif self._is_ours() and (pid := postmaster.running(self._place)) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                if self._is_down():
                    return
                time.sleep(0.02)
        logger.error("Postgres does not stop")

    def _is_down(self) -> bool:
        if self._child is not None and self._child.poll() is None:
            return False
        try:
            return not self._is_ours() or locks.is_free(self._place.server_lock)
        except FileNotFoundError:
            return True

    def _is_ours(self) -> bool:
        """Whether the directory still is the one that we supervise: another may have taken its name."""
        return self._own.same_file(self._place.supervisor_lock)

    def _ask_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._asked_to_stop = True


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler must exist for the signal to wake the loop."""


def main(directory: str, root: str, inherited: int) -> None:
    """Detach, become the supervisor of `directory`, and return when it is done (or when there is another)."""
    if os.fork() != 0:
        os._exit(0)  # the starter waits for this; the supervisor is nobody's child and leaves no zombie behind
    logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(process)d] %(name)s: %(message)s")
    place = Layout(Path(directory))
    # The starter took the lock and handed it down. It may have forked meanwhile, and a copy in such a child
    # would outlive us; so that one is revoked, and taken anew on a descriptor that only we have.
    Lock(inherited).revoke()
    own = locks.try_exclusive(place.supervisor_lock)
    if own is not None:
        logger.info("supervising %s", place.directory)
        Supervisor(place, Binaries(Path(root)), own).run()
