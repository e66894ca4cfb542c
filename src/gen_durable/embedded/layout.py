"""The paths inside the directory of an embedded server.

The directory and the files beside the data belong to the user of the process, root included: `create_and_check_layout`
and `check_layout_ownership` refuse a directory of another user. The data belong to the account that runs Postgres.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from gen_durable.embedded import path_ownership
from gen_durable.errors import EmbeddedUnavailable

PORT = 5432
"""Only a part of the socket's name. The DSN states it, so that PGPORT in the environment cannot change it."""

SOCKET_NAME = f".s.PGSQL.{PORT}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one embedded server."""

    directory: Path

    @property
    def data(self) -> Path:
        """The cluster and its socket."""
        return self.directory / "pgdata"

    @property
    def initdb_directory(self) -> Path:
        """The directory in which initdb works; a rename makes it `data`, so `data` is always complete."""
        return self.directory / "pgdata.new"

    @property
    def pid_files(self) -> tuple[Path, Path]:
        """The files with which Postgres locks its data and its socket. The first line is the postmaster's pid."""
        return self.data / "postmaster.pid", self.data / f"{SOCKET_NAME}.lock"

    @property
    def log(self) -> Path:
        """The log of Postgres and the supervisor."""
        return self.directory / "server.log"

    @property
    def old_log(self) -> Path:
        """The log before the last one, which had grown too large."""
        return self.directory / "server.log.1"

    @property
    def gitignore_file(self) -> Path:
        """Hides the directory from git."""
        return self.directory / ".gitignore"

    @property
    def users_lock(self) -> Path:
        return self.directory / "users.lock"

    @property
    def supervisor_lock(self) -> Path:
        return self.directory / "supervisor.lock"

    @property
    def server_lock(self) -> Path:
        return self.directory / "server.lock"

    def read_log_tail(self, lines: int = 20) -> str:
        """The last lines of the log, for an error message."""
        try:
            fd = path_ownership.open_owned_file(self.log, os.O_RDONLY)
            with os.fdopen(fd, encoding="utf-8", errors="replace") as log:
                return "".join(deque(log, maxlen=lines)).strip() or "(the log is empty)"
        except (OSError, EmbeddedUnavailable) as error:
            return f"(no log: {error})"


def create_and_check_layout(directory: Path) -> Layout:
    """Create the directory if it is missing, and check its owner. Raises `EmbeddedUnavailable` if it cannot be used."""
    try:
        layout = Layout(path_ownership.resolve_safe_path(directory.expanduser()))
        _make_private_directory_and_parents(layout.directory)
        check_layout_ownership(layout)
        with os.fdopen(path_ownership.open_owned_file(layout.gitignore_file, os.O_WRONLY | os.O_CREAT), "w") as file:
            file.write("*\n")
    except OSError as error:
        raise EmbeddedUnavailable(
            f"The directory of the embedded server, {directory.absolute()}, cannot be used: {error}. Run as the user"
            " that owns it, work in another directory, or pass a DSN / set DATABASE_URL."
        ) from error
    return layout


def check_layout_ownership(layout: Layout) -> None:
    """Raise `EmbeddedUnavailable` if another user may have planted the directory or anything in it.

    Repeat it before each use: a directory that was deleted in `/tmp` can be planted afterwards. Raises
    `FileNotFoundError` if there is no directory.
    """
    path_ownership.resolve_safe_path(layout.directory)
    user = os.geteuid()
    path_ownership.check_directory_ownership(layout.directory, user)
    for file in (
        layout.users_lock,
        layout.supervisor_lock,
        layout.server_lock,
        layout.log,
        layout.old_log,
        layout.gitignore_file,
    ):
        path_ownership.check_file_ownership(file, user)
    for data in (layout.initdb_directory, layout.data):
        with contextlib.suppress(FileNotFoundError):
            # Root has made the data, for any account: only root can write to the directory above.
            path_ownership.check_directory_ownership(data, user if user != 0 else None)
    with contextlib.suppress(FileNotFoundError):
        account = layout.data.lstat().st_uid
        for file in (layout.data / "PG_VERSION", *layout.pid_files):
            path_ownership.check_file_ownership(file, account)


def _make_private_directory_and_parents(directory: Path) -> None:
    """Create the directory for its owner only, and the missing ones above it writable by their owner only."""
    missing = [parent for parent in directory.parents if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)  # `check` says what is there instead
