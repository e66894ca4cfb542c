"""`flock` on files: the kernel's record of which processes live.

A lock is held until it is closed or its process dies. It belongs to the *open file description*: a child that inherits
the descriptor holds it too, and it is free when the last copy is closed. Hence `close` never unlocks, which would take
the lock from the copies as well; `unlock_for_all_and_close` does.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from gen_durable.embedded.path_ownership import open_owned_file


class FileLock:
    """One descriptor with a lock on it. It is closed on exec unless it is passed on explicitly."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def fd(self) -> int:
        return self._fd

    def is_still_at_path(self, path: Path) -> bool:
        """Whether `path` still is the locked file: False if it was deleted or replaced."""
        try:
            return os.path.samestat(os.fstat(self._fd), path.lstat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close this copy. Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def unlock_for_all_and_close(self) -> None:
        """Unlock for every process that has a copy, and close this one."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.close()


def try_lock_exclusively(path: Path) -> FileLock | None:
    """The exclusive lock on `path`, or None if there is any other lock on it."""
    return _lock_or_close(open_owned_file(path, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)


def is_unlocked(path: Path) -> bool:
    """Whether there is no lock on `path`. Holds it for an instant.

    A concurrent `wait_for_shared_lock` may have to try twice. Does not create the file: the check must not bring back a
    directory that is being deleted.
    """
    lock = _lock_or_close(open_owned_file(path, os.O_RDWR), fcntl.LOCK_EX)
    if lock is None:
        return False
    lock.close()
    return True


def wait_for_shared_lock(path: Path, timeout: float) -> FileLock | None:
    """A shared lock on `path`, or None if another process holds it exclusively for `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (lock := _lock_or_close(open_owned_file(path, os.O_RDWR | os.O_CREAT), fcntl.LOCK_SH)) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)
    return lock


def _lock_or_close(fd: int, kind: int) -> FileLock | None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return FileLock(fd)
