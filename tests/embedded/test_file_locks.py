"""Locks on files: who holds them, and that none of them and no descriptor is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from tests.support.embedded import Clock, open_files

from gen_durable.embedded import file_locks
from gen_durable.embedded.file_locks import FileLock
from gen_durable.errors import EmbeddedUnavailable


def take(path: Path) -> FileLock:
    lock = file_locks.try_lock_exclusively(path)
    assert lock is not None
    return lock


def test_a_lock_knows_whether_its_file_was_deleted_or_replaced(tmp_path: Path) -> None:
    """Another file of the same name is another lock."""
    path = tmp_path / "lock"
    lock = take(path)
    assert lock.is_still_at_path(path)
    path.unlink()
    assert lock.is_still_at_path(path) is False
    path.touch()
    assert lock.is_still_at_path(path) is False
    lock.close()


def test_a_revoked_lock_is_free_though_a_copy_is_open(tmp_path: Path) -> None:
    """A child that inherited the descriptor keeps nothing; this process keeps no descriptor."""
    lock = take(tmp_path / "lock")
    copy = os.dup(lock.fd)
    lock.unlock_for_all_and_close()
    assert file_locks.is_unlocked(tmp_path / "lock")
    os.close(copy)
    assert open_files(tmp_path) == []


def test_a_closed_lock_stays_with_its_copy(tmp_path: Path) -> None:
    """`close` gives up one copy only, and a second one changes nothing."""
    lock = take(tmp_path / "lock")
    copy = FileLock(os.dup(lock.fd))
    lock.close()
    lock.close()
    assert not file_locks.is_unlocked(tmp_path / "lock")
    copy.close()
    assert file_locks.is_unlocked(tmp_path / "lock")


def test_a_lock_on_the_first_descriptor_is_closed(tmp_path: Path) -> None:
    """A process that was started without a standard input gets the descriptor 0 for its lock."""
    kept = os.dup(0)
    try:
        lock = take(tmp_path / "lock")
        os.dup2(lock.fd, 0)
        lock.close()
        FileLock(0).close()
        assert file_locks.is_unlocked(tmp_path / "lock")
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_asking_for_a_lock_leaves_nothing_open(tmp_path: Path) -> None:
    """Whether the lock is free or not: a process that waits asks fifty times a second."""
    path = tmp_path / "lock"
    path.touch()
    assert file_locks.is_unlocked(path)
    assert file_locks.is_unlocked(path)
    lock = take(path)
    assert not file_locks.is_unlocked(path)
    assert file_locks.try_lock_exclusively(path) is None
    assert file_locks.wait_for_shared_lock(path, 0) is None
    assert open_files(tmp_path) == ["lock"]
    lock.close()


def test_waiting_for_a_lock_ends_after_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries up to the deadline and once at it, with short pauses."""
    clock = Clock()
    monkeypatch.setattr(file_locks, "time", clock)
    lock = take(tmp_path / "lock")
    assert file_locks.wait_for_shared_lock(tmp_path / "lock", 1.0) is None
    assert clock.now == 101.5
    assert len(clock.slept) == 3
    assert max(clock.slept) < 0.1
    lock.close()
    shared = file_locks.wait_for_shared_lock(tmp_path / "lock", 1.0)
    assert shared is not None
    shared.close()


def test_a_file_system_without_locks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's answer is neither "locked" nor "free"."""

    def refuse(_fd: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available"):
        file_locks.try_lock_exclusively(tmp_path / "lock")
    assert open_files(tmp_path) == []


@pytest.mark.timeout(20)
def test_a_lock_that_is_no_regular_file_is_an_error(tmp_path: Path) -> None:
    """Nothing is waited for, nothing is created elsewhere, and nothing stays open."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("fifo", "link"):
        for take_or_ask in (
            file_locks.try_lock_exclusively,
            file_locks.is_unlocked,
            lambda path: file_locks.wait_for_shared_lock(path, 5),
        ):
            with pytest.raises(EmbeddedUnavailable, match="not a regular file"):
                take_or_ask(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
    assert open_files(tmp_path) == []


def test_a_symlink_to_the_locked_file_is_another_file(tmp_path: Path) -> None:
    """The directory was moved, and a symlink leads to it."""
    lock = take(tmp_path / "lock")
    (tmp_path / "lock").rename(tmp_path / "moved")
    (tmp_path / "lock").symlink_to("moved")
    assert lock.is_still_at_path(tmp_path / "lock") is False
    lock.close()
