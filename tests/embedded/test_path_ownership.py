"""What another user of the machine can plant: a path is used only if no other user can have put it there.

The owner that is expected is an argument, and the user of this process is `os.geteuid`: so that these tests need not be
run as root to meet a path of another user.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.embedded import open_files

from gen_durable.embedded import path_ownership
from gen_durable.embedded.postgres_account import PostgresAccount
from gen_durable.errors import EmbeddedUnavailable

READ, WRITE, BOTH = os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_RDWR | os.O_CREAT


def other_user() -> int:
    return os.geteuid() + 4711


def make_directory(path: Path, mode: int) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755, 0o2755])
def test_a_directory_that_only_its_owner_writes_is_used(tmp_path: Path, mode: int) -> None:
    """Others may read its names."""
    path = make_directory(tmp_path / "own", mode)
    path_ownership.check_directory_ownership(path, os.geteuid())
    path_ownership.check_directory_ownership(path, None)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o770, 0o1777])
def test_a_directory_that_others_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Whether its owner is known or not. The sticky bit does not help: files can be created in it."""
    path = make_directory(tmp_path / "open", mode)
    for owner in (os.geteuid(), None):
        with pytest.raises(EmbeddedUnavailable, match=f"can write to it .mode {mode:04o}.. Run `chmod go-w {path}`"):
            path_ownership.check_directory_ownership(path, owner)


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """The message names both users and the ways out."""
    user, other = os.geteuid(), other_user()
    fault = f"{tmp_path}: it belongs to the user with id {user}, not to the user with id {other}, and may have been"
    with pytest.raises(EmbeddedUnavailable, match=f"{fault} planted. Run as the user that owns it, .*DATABASE_URL"):
        path_ownership.check_directory_ownership(tmp_path, other)


def test_a_symlink_is_no_directory(tmp_path: Path) -> None:
    """Not even to a directory of the same user: the message says to name that one."""
    make_directory(tmp_path / "own", 0o700)
    (tmp_path / "link").symlink_to("own")
    with pytest.raises(
        EmbeddedUnavailable, match=r"it is a symlink, not a directory. Name .*embedded_directory=\.\.\.\)"
    ):
        path_ownership.check_directory_ownership(tmp_path / "link", os.geteuid())


def make_fifo(path: Path) -> str:
    os.mkfifo(path)
    return "a FIFO"


def make_socket(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    return "a socket"


def make_folder(path: Path) -> str:
    path.mkdir()
    return "a directory"


def make_symlink(path: Path) -> str:
    path.with_name("target").write_text("secret")
    path.symlink_to("target")
    return "a symlink"


def make_dangling_symlink(path: Path) -> str:
    path.symlink_to("missing")
    return "a symlink"


def make_device(path: Path) -> str:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        path.symlink_to("/dev/null")
        return "a symlink"
    return "a device"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("flags", [READ, WRITE, BOTH])
@pytest.mark.parametrize(
    "make", [make_fifo, make_socket, make_folder, make_symlink, make_dangling_symlink, make_device]
)
def test_only_regular_files_are_opened(open_air: Path, make: Callable[[Path], str], flags: int) -> None:
    """Anything else is an error at once, and leaves no descriptor and no file behind."""
    path = open_air / "file"
    kind = make(path)
    before = sorted(open_air.iterdir())
    with pytest.raises(EmbeddedUnavailable, match=f"{path}: it is {kind}, not a regular file. Remove it, "):
        path_ownership.open_owned_file(path, flags)
    with pytest.raises(EmbeddedUnavailable, match="not a regular file"):
        path_ownership.check_file_ownership(path, os.geteuid())
    assert sorted(open_air.iterdir()) == before
    assert open_files(open_air) == []


def test_a_device_is_not_opened() -> None:
    """Also without the right to make one."""
    with pytest.raises(EmbeddedUnavailable, match="/dev/null: it is a device, not a regular file"):
        path_ownership.open_owned_file(Path("/dev/null"), os.O_RDONLY)


@pytest.mark.parametrize("flags", [READ, WRITE, BOTH])
def test_a_file_of_another_user_is_not_opened(tmp_path: Path, flags: int) -> None:
    """Nor one that others can write to."""
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(EmbeddedUnavailable, match=f"{path}: it belongs to the user with id {os.geteuid()}, not to"):
        path_ownership.open_owned_file(path, flags, owner=other_user())
    path.chmod(0o620)
    with pytest.raises(EmbeddedUnavailable, match=f"Run `chmod go-w {path}`"):
        path_ownership.open_owned_file(path, flags)
    assert open_files(tmp_path) == []


def test_a_file_that_is_created_is_for_its_owner_only(tmp_path: Path) -> None:
    """It blocks as any other one; a missing file is created only on request."""
    fd = path_ownership.open_owned_file(tmp_path / "new", BOTH)
    assert os.get_blocking(fd)
    os.close(fd)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError):
        path_ownership.open_owned_file(tmp_path / "missing", READ)
    path_ownership.check_file_ownership(tmp_path / "missing", other_user())


def test_a_directory_above_that_everyone_writes_is_refused(tmp_path: Path) -> None:
    """Also far above, and also if there is nothing in it yet. With the sticky bit it is used."""
    above = make_directory(tmp_path / "open", 0o777)
    path = above / "project" / ".gen_durable"
    fault = (
        f"{path}: everyone can replace it, because everyone can write to {above} .mode 0777.. Run `chmod o-w {above}`"
    )
    with pytest.raises(EmbeddedUnavailable, match=fault):
        path_ownership.resolve_safe_path(path)
    (above / "project").mkdir()
    with pytest.raises(EmbeddedUnavailable, match=fault):
        path_ownership.resolve_safe_path(path)
    for mode in (0o1777, 0o775):
        above.chmod(mode)
        assert path_ownership.resolve_safe_path(path) == path


def test_a_shared_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner can replace what is in it, whatever the sticky bit says."""
    owner = other_user()
    status = os.stat_result((stat.S_IFDIR | 0o1777, 1, 1, 1, owner, owner, 0, 0, 0, 0))
    with pytest.raises(
        EmbeddedUnavailable, match=f"the user with id {owner} can replace it, because {tmp_path} belongs"
    ):
        path_ownership._check_others_cannot_replace(tmp_path / "x", tmp_path, status)
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    path_ownership._check_others_cannot_replace(tmp_path / "x", tmp_path, status)


def test_an_entry_of_a_shared_directory_is_refused_if_another_user_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory or a symlink in /tmp may have been planted; in a directory of its own it may not."""
    shared, closed = make_directory(tmp_path / "shared", 0o1777).stat(), tmp_path.stat()
    entry = tmp_path / "shared" / "entry"
    owner = other_user()
    found = os.stat_result((stat.S_IFLNK | 0o777, 1, 1, 1, owner, owner, 0, 0, 0, 0))
    with pytest.raises(EmbeddedUnavailable, match=f"{entry}: it belongs to the user with id {owner}, not to"):
        path_ownership._check_entry_owner(entry, found, shared)
    path_ownership._check_entry_owner(entry, found, closed)
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    path_ownership._check_entry_owner(entry, found, shared)


@pytest.mark.parametrize("name", ["link", "directory"])
def test_a_path_through_an_entry_of_another_user_is_refused(tmp_path: Path, nobody: PostgresAccount, name: str) -> None:
    """As root: real owners."""
    shared = make_directory(tmp_path / "shared", 0o1777)
    make_directory(tmp_path / "target", 0o700)
    (shared / "link").symlink_to(tmp_path / "target")
    (shared / "directory").mkdir()
    assert path_ownership.resolve_safe_path(shared / name / "x").name == "x"
    os.chown(shared / name, nobody.uid, nobody.gid, follow_symlinks=False)
    for path in (shared / name / "x", shared / name):
        with pytest.raises(EmbeddedUnavailable, match=f"{shared / name}: it belongs to the user with id {nobody.uid}"):
            path_ownership.resolve_safe_path(path)
    os.chown(shared / name, 0, 0, follow_symlinks=False)
    os.chown(shared, nobody.uid, nobody.gid)
    with pytest.raises(EmbeddedUnavailable, match=f"the user with id {nobody.uid} can replace it, because {shared}"):
        path_ownership.resolve_safe_path(shared / name / "x")


def test_a_path_is_resolved_up_to_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does it, `..` after a symlink included; missing parts stay as they are."""
    tmp_path = tmp_path.resolve()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "a" / "relative").symlink_to("../absolute")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    expected = {
        "a/x": "a/x",
        "absolute/x": "a/b/x",
        "a/relative/x": "a/b/x",
        "a/relative/../x": "a/x",
        "missing/../a/../y/z": "y/z",
        "absolute": "absolute",
        ".": ".",
        "a/b/..": "a",
    }
    assert {path: path_ownership.resolve_safe_path(Path(path)) for path in expected} == {
        path: tmp_path / result for path, result in expected.items()
    }
    with pytest.raises(OSError, match="loop") as caught:
        path_ownership.resolve_safe_path(Path("loop/x"))
    assert caught.value.errno == errno.ELOOP


def test_a_symlink_into_a_directory_that_everyone_writes_is_refused(tmp_path: Path) -> None:
    """Its target is checked as if it had been named."""
    above = make_directory(tmp_path / "open", 0o777)
    (above / "b").mkdir()
    (tmp_path / "link").symlink_to(above / "b")
    with pytest.raises(EmbeddedUnavailable, match=f"everyone can write to {above}"):
        path_ownership.resolve_safe_path(tmp_path / "link" / "x")
