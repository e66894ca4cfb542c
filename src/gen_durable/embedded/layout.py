"""What lies where in the directory of an embedded server.

In: the directory. Out: a `Layout` of its paths, the directory made and found usable. Files are created so that their
owner is the owner of the directory, also when root creates them: who owns the directory can go on without root.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from gen_durable.errors import EmbeddedUnavailable


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one embedded server."""

    directory: Path

    @property
    def data(self) -> Path:
        """The cluster, and its socket."""
        return self.directory / "pgdata"

    @property
    def unfinished(self) -> Path:
        """Where initdb works; becomes `data` by a rename, so `data` is always whole."""
        return self.directory / "pgdata.new"

    @property
    def log(self) -> Path:
        """What Postgres and the supervisor say."""
        return self.directory / "server.log"

    @property
    def users_lock(self) -> Path:
        return self.directory / "users.lock"

    @property
    def supervisor_lock(self) -> Path:
        return self.directory / "supervisor.lock"

    @property
    def server_lock(self) -> Path:
        return self.directory / "server.lock"

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log, for an error message."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as log:
                return "".join(deque(log, maxlen=lines)).strip() or "(the log is empty)"
        except OSError as error:
            return f"(no log: {error})"


def prepare(directory: Path) -> Layout:
    """Make the directory where it is missing, and see that it can be used."""
    place = Layout(directory.expanduser().resolve())
    try:
        place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = open_owned(place.directory / ".gitignore", os.O_WRONLY)
        with os.fdopen(ignore, "w") as file:
            file.write("*\n")
    except OSError as error:
        raise EmbeddedUnavailable(
            f"The directory of the embedded server, {place.directory}, cannot be used: {error}. Run as the user that"
            " owns it, work in another directory, or pass a DSN / set DATABASE_URL."
        ) from error
    return place


def open_owned(path: Path, flags: int) -> int:
    """Open `path`, creating it for the owner of its directory. Never follows a symlink: root may be the caller."""
    flags |= os.O_CREAT | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags, 0o600)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd
