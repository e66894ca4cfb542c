"""Check that no other user of the machine has planted a path, before anything is read, opened or started there.

A path is used if its owner is the expected one, neither its group nor others can write to it, and no directory above
lets every user replace it. Files are opened without following a symlink and without waiting, so that a FIFO in place of
a file is an error at once. The owner of a directory above, and its group, are trusted.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gen_durable.errors import EmbeddedUnavailable

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symlink",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_LONGEST_CHAIN = 40  # symlinks in one path, as in the kernel
_OTHERWISE = "work in another directory, or pass a DSN / set DATABASE_URL."


def _unsafe_path_error(path: Path, fault: str, remedy: str) -> EmbeddedUnavailable:
    """The error for a path that may have been planted."""
    return EmbeddedUnavailable(f"The embedded server does not use {path}: {fault}. {remedy}")


def resolve_safe_path(path: Path) -> Path:
    """The absolute path without symlinks above its last part, which may be missing and is not checked.

    Raises `EmbeddedUnavailable` if users other than this one and root can replace a part of it. Unlike
    `Path.resolve`, does not follow a symlink that another user put into a directory such as `/tmp`.
    """
    path = path.absolute()
    pending = list(reversed(path.parts[1:]))
    found = Path(path.anchor)
    links = 0
    _check_others_cannot_replace(path, found, found.lstat())
    while pending:
        name = pending.pop()
        if name == os.pardir:
            found = found.parent
            continue
        part = found / name
        if pending and (status := _read_file_status(part)) is not None:
            _check_entry_owner(part, status, found.lstat())
            if stat.S_ISLNK(status.st_mode):
                if (links := links + 1) > _LONGEST_CHAIN:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                target = part.readlink()
                pending += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                found = Path(target.anchor) if target.is_absolute() else found
                continue
            _check_others_cannot_replace(path, part, status)
        found = part
    if (status := _read_file_status(found)) is not None and found.parent != found:
        _check_entry_owner(found, status, found.parent.lstat())
    return found


def _check_entry_owner(path: Path, status: os.stat_result, parent: os.stat_result) -> None:
    """Raise `EmbeddedUnavailable` if another user may have made this entry of a directory that everyone can write."""
    if parent.st_mode & stat.S_IWOTH and status.st_uid not in (0, os.geteuid()):
        raise _wrong_owner_error(path, status.st_uid, os.geteuid())


def _check_others_cannot_replace(path: Path, above: Path, status: os.stat_result) -> None:
    if not status.st_mode & stat.S_IWOTH:
        return
    mode = stat.S_IMODE(status.st_mode)
    if not mode & stat.S_ISVTX:
        fault = f"everyone can replace it, because everyone can write to {above} (mode {mode:04o})"
        raise _unsafe_path_error(path, fault, f"Run `chmod o-w {above}`, {_OTHERWISE}")
    if status.st_uid not in (0, os.geteuid()):
        fault = f"the user with id {status.st_uid} can replace it, because {above} belongs to that user"
        raise _unsafe_path_error(path, fault, f"Use a directory that is not shared, {_OTHERWISE}")


def _read_file_status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def check_directory_ownership(path: Path, owner: int | None) -> None:
    """Raise `EmbeddedUnavailable` unless `path` is a directory that only `owner` can write. None means any owner."""
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        is_link = stat.S_ISLNK(status.st_mode)
        remedy = "Name the directory itself with Durable(embedded_directory=...)" if is_link else "Remove it"
        raise _unsafe_path_error(path, f"it is {_file_kind_name(status)}, not a directory", f"{remedy}, {_OTHERWISE}")
    _check_only_owner_can_write(path, status, owner)


def check_file_ownership(path: Path, owner: int) -> None:
    """Raise `EmbeddedUnavailable` if `path` exists and is not a regular file of `owner` that only it writes."""
    if (status := _read_file_status(path)) is not None:
        _check_regular_file_of_owner(path, status, owner)


def open_owned_file(path: Path, flags: int, owner: int | None = None) -> int:
    """Open a regular file of `owner`, by default of this user. Creates it with mode 0600 if `flags` say so.

    Never follows a symlink and never waits. Raises `EmbeddedUnavailable` if `path` is anything else.
    """
    owner = os.geteuid() if owner is None else owner
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    except OSError:
        check_file_ownership(path, owner)  # what it is explains the error better
        raise
    try:
        _check_regular_file_of_owner(path, os.fstat(fd), owner)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_regular_file_of_owner(path: Path, status: os.stat_result, owner: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _unsafe_path_error(
            path, f"it is {_file_kind_name(status)}, not a regular file", f"Remove it, {_OTHERWISE}"
        )
    _check_only_owner_can_write(path, status, owner)


def _check_only_owner_can_write(path: Path, status: os.stat_result, owner: int | None) -> None:
    if owner is not None and status.st_uid != owner:
        raise _wrong_owner_error(path, status.st_uid, owner)
    if status.st_mode & _WRITABLE_BY_OTHERS:
        fault = f"its group or others can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
        raise _unsafe_path_error(path, fault, f"Run `chmod go-w {path}` if you trust its content, {_OTHERWISE}")


def _wrong_owner_error(path: Path, found: int, expected: int) -> EmbeddedUnavailable:
    fault = f"it belongs to the user with id {found}, not to the user with id {expected}, and may have been planted"
    return _unsafe_path_error(path, fault, f"Run as the user that owns it, {_OTHERWISE}")


def _file_kind_name(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
