"""The directory that clients connect through: the data directory, or a private symlink to it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from gen_durable.embedded import socket_directory
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.postgres_account import PostgresAccount
from gen_durable.errors import EmbeddedUnavailable

LIMIT = 103  # bytes of the path of a socket on macOS, the shorter one
NAME = f"gen_durable-{os.geteuid()}"


def length(directory: Path) -> int:
    return len(os.fsencode(socket_directory.socket_path(directory)))


def pad(parent: Path, below: str, size: int) -> Path:
    """A directory in `parent` whose name is so long that the socket in `below` it has a path of `size` bytes."""
    missing = size - length(parent / "x" / below) + 1
    assert missing > 0
    return parent / ("x" * missing)


@pytest.fixture
def temp(open_air: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short temp directory."""
    tmp_path_factory.getbasetemp()  # or pytest's own directory would be made in this one, which is deleted
    monkeypatch.setattr(tempfile, "tempdir", str(open_air))
    return open_air


@pytest.fixture
def long(tmp_path: Path) -> Layout:
    """A directory whose path is too long for a socket."""
    return Layout(tmp_path / ("x" * 150))


def test_a_path_that_just_fits_is_used_as_it_is(temp: Path) -> None:
    """One byte more and clients need a symlink."""
    fits = Layout(pad(temp, "pgdata", LIMIT))
    assert length(fits.data) == LIMIT
    assert socket_directory.find_or_link_connectable_directory(fits) == fits.data
    longer = Layout(pad(temp, "pgdata", LIMIT + 1))
    assert socket_directory.find_or_link_connectable_directory(longer) != longer.data


def test_a_symlink_is_kept_or_corrected(temp: Path, long: Layout) -> None:
    """The right one is not touched; one that points elsewhere, or was swept away, is replaced."""
    alias = socket_directory.find_or_link_connectable_directory(long)
    assert alias.parent == temp / NAME
    assert alias.parent.stat().st_mode & 0o777 == 0o700
    assert alias.readlink() == long.data
    made = alias.lstat().st_ino
    kept = alias.with_name("kept")
    os.link(alias, kept, follow_symlinks=False)  # or a new symlink could get the number of the old one
    assert socket_directory.find_or_link_connectable_directory(long) == alias
    assert alias.lstat().st_ino == made
    alias.unlink()
    alias.symlink_to(temp)
    assert socket_directory.find_or_link_connectable_directory(long) == alias
    assert alias.readlink() == long.data
    alias.unlink()
    assert socket_directory.find_or_link_connectable_directory(long).readlink() == long.data


def test_a_leftover_of_a_killed_process_is_no_obstacle(temp: Path, long: Layout) -> None:
    """A process that had the same number died before it renamed its symlink."""
    alias = socket_directory.find_or_link_connectable_directory(long)
    alias.unlink()
    alias.with_name(f"{alias.name}.{os.getpid()}").symlink_to(temp)
    assert socket_directory.find_or_link_connectable_directory(long).readlink() == long.data
    assert list(alias.parent.iterdir()) == [alias]


def test_a_temp_directory_is_used_if_its_sockets_just_fit(
    open_air: Path, long: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte more, and the symlink is in /tmp."""
    for size in (LIMIT, LIMIT + 1):
        temp = pad(open_air, f"{NAME}/{'0' * 16}", size)
        temp.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(temp))
        alias = socket_directory.find_or_link_connectable_directory(long)
        assert alias.parent.parent == (temp if size == LIMIT else Path("/tmp"))
        assert length(alias) <= LIMIT
        alias.unlink()


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o770])
def test_a_directory_that_others_may_enter_is_refused(temp: Path, long: Layout, mode: int) -> None:
    """Another account could put its own server there."""
    (temp / NAME).mkdir()
    (temp / NAME).chmod(mode)
    with pytest.raises(EmbeddedUnavailable, match=f"{temp / NAME} is not a directory that only you can enter"):
        socket_directory.find_or_link_connectable_directory(long)


def test_a_directory_of_another_account_is_refused(temp: Path, long: Layout, nobody: PostgresAccount) -> None:
    """Even if it is closed to all others: its owner can enter it."""
    (temp / NAME).mkdir(mode=0o700)
    os.chown(temp / NAME, nobody.uid, nobody.gid)
    with pytest.raises(EmbeddedUnavailable, match="only you can enter"):
        socket_directory.find_or_link_connectable_directory(long)


def test_a_temp_directory_in_which_everyone_can_replace_it_is_refused(temp: Path, long: Layout) -> None:
    """A clean directory for symlinks is worth nothing there."""
    assert socket_directory.find_or_link_connectable_directory(long).parent == temp / NAME
    temp.chmod(0o777)
    with pytest.raises(
        EmbeddedUnavailable, match=f"{temp / NAME}: everyone can replace it, because everyone can write"
    ):
        socket_directory.find_or_link_connectable_directory(long)
    temp.chmod(0o1777)
    socket_directory.find_or_link_connectable_directory(long)


@pytest.mark.parametrize("kind", ["symlink", "file", "fifo"])
def test_what_is_no_directory_is_refused(temp: Path, long: Layout, tmp_path: Path, kind: str) -> None:
    """A symlink may lead to a directory that fits."""
    match kind:
        case "symlink":
            (temp / NAME).symlink_to(tmp_path)
        case "file":
            (temp / NAME).touch(mode=0o600)
        case _:
            os.mkfifo(temp / NAME, 0o600)
    with pytest.raises(EmbeddedUnavailable, match="is not a directory that only you can enter"):
        socket_directory.find_or_link_connectable_directory(long)


def test_a_directory_of_another_user_is_refused_without_root(
    temp: Path, long: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, for a test that is not run by root: the other user is this one."""
    other = os.geteuid() + 1
    (temp / f"gen_durable-{other}").mkdir(mode=0o700)
    monkeypatch.setattr(socket_directory.path_ownership, "resolve_safe_path", lambda path: path)
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(EmbeddedUnavailable, match="only you can enter"):
        socket_directory.find_or_link_connectable_directory(long)
