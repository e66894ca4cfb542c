"""The directory that clients name as `host`.

In: a layout. Out: a directory whose socket path fits into the kernel's limit and into a URL. Normally that is the
data directory itself. A path that is too long, or that has a character which a DSN would read as its own (a comma
splits hosts), is published as a symlink in a directory of ours under the temp directory. The server does not know: it
binds its socket relative to the data directory, so processes with different temp directories still share one server.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

from gen_durable.embedded.layout import Layout
from gen_durable.errors import EmbeddedUnavailable

PORT = 5432
"""Only a part of the socket's name. The DSN states it, else PGPORT in the environment would."""

_LIMIT = 103  # bytes of sun_path before its terminator: 107 on Linux, 103 on macOS


def socket_in(directory: Path) -> Path:
    """The socket of the server whose data (or alias of it) is `directory`."""
    return directory / f".s.PGSQL.{PORT}"


def publish(place: Layout) -> Path:
    """The directory to connect through, made if it has to be. Cheap to repeat: temp directories are swept."""
    if _fits(place.data):
        return place.data
    alias = _home() / hashlib.sha256(os.fsencode(place.data)).hexdigest()[:16]
    if not _points_to(alias, place.data):
        fresh = alias.with_name(f"{alias.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(place.data)
        fresh.replace(alias)
    return alias


def _fits(directory: Path) -> bool:
    plain = re.fullmatch(r"[A-Za-z0-9/._-]+", str(directory)) is not None
    return plain and len(os.fsencode(socket_in(directory))) <= _LIMIT


def _points_to(alias: Path, target: Path) -> bool:
    try:
        return alias.readlink() == target
    except OSError:
        return False


def _home() -> Path:
    name = f"gen_durable-{os.geteuid()}"
    temp = Path(tempfile.gettempdir())
    home = (temp if _fits(temp / name / ("0" * 16)) else Path("/tmp")) / name  # noqa: S108  # checked below
    home.mkdir(mode=0o700, exist_ok=True)
    # Anybody may have made this name before us and would then decide which server we talk to.
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise EmbeddedUnavailable(
            f"{home} must be a directory that only you can enter, and is not. Remove it, or set TMPDIR to a directory"
            " of your own, or pass a DSN / set DATABASE_URL."
        )
    return home
