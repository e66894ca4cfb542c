"""What makes a process a user of the server.

In: a layout and the binaries. Out: a `Membership`: a share of `users.lock`, taken before anything else so that the
server cannot stop under us, a server that answered, and a guard that replaces a killed supervisor.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import assert_never

from gen_durable.embedded import address, locks, probe
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.layout import Layout, open_owned
from gen_durable.embedded.locks import Lock
from gen_durable.embedded.probe import Answer
from gen_durable.errors import EmbeddedUnavailable

logger = logging.getLogger("gen_durable.embedded")

_PATIENCE = 30.0  # seconds without a sign of life from the server
_GUARD_TURN = 1.0
_LOG_LIMIT = 8 * 1024 * 1024


class Guard:
    """Sees once a second that there is a supervisor. Users have no other way to learn that it was killed."""

    def __init__(self, place: Layout, binaries: Binaries) -> None:
        self._place = place
        self._binaries = binaries
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gen_durable-embedded-guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def turn(self) -> None:
        """One look."""
        address.publish(self._place)
        ensure_supervisor(self._place, self._binaries)

    def _loop(self) -> None:
        while not self._stopped.wait(_GUARD_TURN):
            try:
                self.turn()
            except (OSError, EmbeddedUnavailable) as error:
                if not self._place.directory.exists():
                    return  # deleted under us: nothing is left to guard
                logger.warning("the embedded server's supervisor cannot be checked: %s", error)
            except RuntimeError:
                return  # no process can be started any more: the interpreter is on its way out


class Membership:
    """The hold of one `start` on the server."""

    def __init__(self, share: Lock, guard: Guard) -> None:
        self._share = share
        self._guard = guard
        self._pid = os.getpid()

    def leave(self) -> None:
        """Let go. In a forked child only the child's copy goes: the guard is a thread of the parent."""
        if os.getpid() == self._pid:
            self._guard.stop()
        self._share.close()


def join(place: Layout, binaries: Binaries) -> Membership:
    """Become a user of the server; return when it answers."""
    share = locks.shared(place.users_lock, _PATIENCE)
    if share is None:
        raise EmbeddedUnavailable(
            f"The embedded server in {place.directory} is stopping and does not end. Its log says:\n{place.log_tail()}"
        )
    try:
        _await_server(place, binaries)
    except BaseException:
        share.close()
        raise
    guard = Guard(place, binaries)
    guard.start()
    return Membership(share, guard)


def ensure_supervisor(place: Layout, binaries: Binaries) -> None:
    """Start a supervisor if there is none. The lock that says so is handed down to it, so there is never a second."""
    lock = locks.try_exclusive(place.supervisor_lock)
    if lock is None:
        return
    try:
        _spawn(place, binaries, lock)
    except BaseException:
        lock.revoke()
        raise
    lock.close()


def _spawn(place: Layout, binaries: Binaries, lock: Lock) -> None:
    if place.log.exists() and place.log.stat().st_size > _LOG_LIMIT:
        place.log.replace(place.log.with_suffix(".log.1"))
    log = open_owned(place.log, os.O_WRONLY | os.O_APPEND)
    try:
        # -S and -P: no site packages and no directory of the script on the path; it needs the standard
        # library only.
        program = [sys.executable, "-S", "-P", str(Path(__file__).with_name("__main__.py"))]
        done = subprocess.run(  # noqa: S603  # our own program
            [*program, str(place.directory), str(binaries.root), str(lock.fd)],
            cwd="/",
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
            f"The supervisor of the embedded server in {place.directory} did not start (status {done.returncode})."
            f" Its log says:\n{place.log_tail()}"
        )


def _await_server(place: Layout, binaries: Binaries) -> None:
    socket = address.socket_in(address.publish(place))
    look_again = float("-inf")
    give_up = time.monotonic() + _PATIENCE
    while True:
        now = time.monotonic()
        if now >= look_again:
            ensure_supervisor(place, binaries)
            look_again = now + _GUARD_TURN
        answer = probe.ask(socket)
        match answer:
            case Answer.READY:
                return
            case Answer.STARTING:
                give_up = now + _PATIENCE  # recovery after a crash takes as long as it takes
            case Answer.SILENT:
                if now > give_up:
                    raise EmbeddedUnavailable(
                        f"The embedded server in {place.directory} did not come up within {_PATIENCE:.0f} seconds."
                        f" Its log says:\n{place.log_tail()}"
                    )
            case _:
                assert_never(answer)
        time.sleep(0.02)
