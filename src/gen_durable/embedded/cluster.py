"""Create the data directory and start the postmaster in it.

The programs inherit the descriptor of `server.lock`, initdb too: while any process that writes below the directory
lives, the lock is held.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.environment import make_postgres_environment
from gen_durable.embedded.file_locks import FileLock
from gen_durable.embedded.layout import PORT, Layout
from gen_durable.embedded.postgres_account import PostgresAccount

# Written into postgresql.conf once, by initdb. Edit them there for other values.
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

# Given on the command line at every start: this package relies on them.
_FIXED = {
    "listen_addresses": "",
    "logging_collector": "off",
    "port": str(PORT),
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """One data directory, its binaries, and the account that runs them."""

    layout: Layout
    binaries: Binaries
    account: PostgresAccount | None

    def exists(self) -> bool:
        return (self.layout.data / "PG_VERSION").exists()

    def create(self, lock: FileLock) -> None:
        """Create the cluster. A killed attempt leaves only `initdb_directory`, which the next one deletes."""
        fresh = self.layout.initdb_directory
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(fresh, self.account.uid, self.account.gid, follow_symlinks=False)
        settings = [part for name, value in _DEFAULTS.items() for part in ("--set", f"{name}={value}")]
        locale = ["--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        access = ["--username=postgres", "--auth=trust"]
        status = self._start_program(
            [self.binaries.initdb, *access, *locale, "--no-instructions", *settings], fresh, lock
        ).wait()
        if status != 0:
            raise ChildProcessError(f"initdb ended with status {status}")
        fresh.rename(self.layout.data)

    def start_postmaster(self, lock: FileLock) -> subprocess.Popen[bytes]:
        """Start the postmaster, which inherits the lock: the caller closes its own copy."""
        settings = [part for name, value in _FIXED.items() for part in ("-c", f"{name}={value}")]
        return self._start_program([self.binaries.postgres, *settings], self.layout.data, lock)

    def _start_program(self, command: list[Path | str], data: Path, lock: FileLock) -> subprocess.Popen[bytes]:
        # The account may lack permission for a parent directory, but the kernel resolves /proc/self/cwd without
        # walking the path; the change of directory happens before the change of user. Guarded by
        # test_root_below_a_closed_directory.
        through_cwd = self.account is not None and sys.platform == "linux"
        return subprocess.Popen(  # noqa: S603  # programs of the wheel, fixed arguments
            [*command, "-D", "/proc/self/cwd" if through_cwd else data],
            cwd=data,
            env=make_postgres_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=[lock.fd],
            start_new_session=True,
            umask=0o077,
            user=self.account.uid if self.account is not None else None,
            group=self.account.gid if self.account is not None else None,
            extra_groups=[] if self.account is not None else None,
        )
