"""The data directory and the server that runs in it.

In: a layout, the binaries, and the held `server.lock`. Out: a made cluster, a started postmaster. The programs
inherit the lock's descriptor, initdb too: while anything that writes below the directory lives, the lock is taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gen_durable.embedded.account import Account
from gen_durable.embedded.address import PORT
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.locks import Lock

# Written into postgresql.conf once, by initdb: whoever wants other values edits them there.
_DEFAULTS = {
    "cluster_name": "gen_durable",
    "fsync": "on",
    "full_page_writes": "on",
    "jit": "off",
    "log_checkpoints": "off",
    "log_timezone": "UTC",
    "max_connections": "200",
    "max_wal_size": "1GB",
    "min_wal_size": "160MB",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    "timezone": "UTC",
}

# Given on the command line at every start: the room's promises, not the owner's taste.
_FIXED = {
    "listen_addresses": "",
    "logging_collector": "off",
    "port": str(PORT),
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """One data directory, and how its programs are run."""

    place: Layout
    binaries: Binaries
    account: Account | None

    def exists(self) -> bool:
        return (self.place.data / "PG_VERSION").exists()

    def create(self, lock: Lock) -> None:
        """Make the cluster. A killed attempt leaves only `unfinished`, which the next one throws away."""
        fresh = self.place.unfinished
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(fresh, self.account.uid, self.account.gid)
        settings = [part for name, value in _DEFAULTS.items() for part in ("--set", f"{name}={value}")]
        locale = ["--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        access = ["--username=postgres", "--auth=trust"]
        status = self._run([self.binaries.initdb, *access, *locale, "--no-instructions", *settings], fresh, lock).wait()
        if status != 0:
            raise ChildProcessError(f"initdb ended with status {status}")
        fresh.rename(self.place.data)

    def launch(self, lock: Lock) -> subprocess.Popen[bytes]:
        """Start the postmaster. It takes the lock over: the caller closes its own copy."""
        settings = [part for name, value in _FIXED.items() for part in ("-c", f"{name}={value}")]
        return self._run([self.binaries.postgres, *settings], self.place.data, lock)

    def _run(self, command: list[Path | str], data: Path, lock: Lock) -> subprocess.Popen[bytes]:
        # The account may be unable to walk down to the data, but the kernel leads /proc/self/cwd straight
        # there; the change of directory happens before the change of user. Guarded by
        # test_root_below_a_closed_directory.
        through_cwd = self.account is not None and sys.platform == "linux"
        return subprocess.Popen(  # noqa: S603  # programs of the wheel, arguments of ours
            [*command, "-D", "/proc/self/cwd" if through_cwd else data],
            cwd=data,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=[lock.fd],
            start_new_session=True,
            umask=0o077,
            user=self.account.uid if self.account is not None else None,
            group=self.account.gid if self.account is not None else None,
            extra_groups=[] if self.account is not None else None,
        )


def _environment() -> dict[str, str]:
    """Ours without what would configure Postgres behind our back."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG", "TZ"))}
    return {**kept, "LC_ALL": "C"}
