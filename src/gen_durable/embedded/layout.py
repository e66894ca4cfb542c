"""The paths inside the directory of an embedded server.

Files belong to the owner of the directory, also when root creates them: the owner can continue without root.
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
        """The cluster and its socket."""
        return self.directory / "pgdata"

    @property
    def new_data_directory(self) -> Path:
        """The directory in which initdb works; a rename makes it `data`, so `data` is always complete."""
        return self.directory / "pgdata.new"

    @property
    def log(self) -> Path:
        """The log of Postgres and the supervisor."""
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
    """Create the directory if it is missing. Raises `EmbeddedUnavailable` if it cannot be used."""
    layout = Layout(directory.expanduser().resolve())
    try:
        layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ignore = open_owned(layout.directory / ".gitignore", os.O_WRONLY)
        with os.fdopen(ignore, "w") as file:
            file.write("*\n")
    except OSError as error:
        raise EmbeddedUnavailable(
            f"The directory of the embedded server, {layout.directory}, cannot be used: {error}. Run as the user that"
            " owns it, work in another directory, or pass a DSN / set DATABASE_URL."
        ) from error
    return layout


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
