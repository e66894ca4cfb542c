"""The directory that clients name as `host`: its socket path must fit into the kernel's limit and into a URL.

Normally that is the data directory itself. If its path is too long, or has a character that a DSN interprets (a comma
splits hosts), clients connect through a symlink in a private directory under the temp directory. The server does not
know of it: it binds its socket relative to the data directory, so processes with different temp directories still share
one server.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

from gen_durable.embedded import path_ownership
from gen_durable.embedded.layout import SOCKET_NAME, Layout
from gen_durable.errors import EmbeddedUnavailable

_LIMIT = 103  # bytes of sun_path before its terminator: 107 on Linux, 103 on macOS


def socket_path(directory: Path) -> Path:
    """The socket of the server whose data (or alias of it) is `directory`."""
    return directory / SOCKET_NAME


def find_or_link_connectable_directory(layout: Layout) -> Path:
    """The directory to connect through, with its symlink. Call it again now and then: temp directories get cleaned."""
    if _can_be_socket_directory(layout.data):
        return layout.data
    alias = _find_or_create_alias_parent() / hashlib.sha256(os.fsencode(layout.data)).hexdigest()[:16]
    if not _is_symlink_to(alias, layout.data):
        fresh = alias.with_name(f"{alias.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(layout.data)
        fresh.replace(alias)
    return alias


def _can_be_socket_directory(directory: Path) -> bool:
    plain = re.fullmatch(r"[A-Za-z0-9/._-]+", str(directory)) is not None
    return plain and len(os.fsencode(socket_path(directory))) <= _LIMIT


def _is_symlink_to(alias: Path, target: Path) -> bool:
    try:
        return alias.readlink() == target
    except OSError:
        return False


def _find_or_create_alias_parent() -> Path:
    """The private directory that holds the symlinks of all servers of this user."""
    name = f"gen_durable-{os.geteuid()}"
    temp = Path(tempfile.gettempdir())
    home = (temp if _can_be_socket_directory(temp / name / ("0" * 16)) else Path("/tmp")) / name  # noqa: S108  # checked below
    # Another user may have created this name before, or could replace it, and would then decide which server clients
    # reach.
    path_ownership.resolve_safe_path(home)
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise EmbeddedUnavailable(
            f"{home} is not a directory that only you can enter. Remove it, or set TMPDIR to a directory"
            " of your own, or pass a DSN / set DATABASE_URL."
        )
    return home
