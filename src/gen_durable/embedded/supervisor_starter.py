"""Starts the supervisor of an embedded server, as a detached process.

The starter holds `supervisor.lock` and passes it on, so two starters never start two supervisors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gen_durable.embedded import file_locks
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.environment import make_supervisor_environment
from gen_durable.embedded.file_locks import FileLock
from gen_durable.embedded.layout import Layout, check_layout_ownership
from gen_durable.embedded.path_ownership import open_owned_file
from gen_durable.errors import EmbeddedUnavailable

_LOG_LIMIT = 8 * 1024 * 1024


def start_supervisor_if_missing(layout: Layout, binaries: Binaries) -> None:
    """Start a supervisor if there is none. It inherits the lock, so there is never a second one."""
    check_layout_ownership(layout)
    lock = file_locks.try_lock_exclusively(layout.supervisor_lock)
    if lock is None:
        return
    try:
        _rotate_large_log(layout)
        _start_supervisor_process(layout, binaries, lock)
    except BaseException:
        lock.unlock_for_all_and_close()
        raise
    lock.close()


def _rotate_large_log(layout: Layout) -> None:
    if layout.log.exists() and layout.log.stat().st_size > _LOG_LIMIT:
        layout.log.replace(layout.old_log)


def _start_supervisor_process(layout: Layout, binaries: Binaries, lock: FileLock) -> None:
    """Returns when the supervisor has detached itself, or raises `EmbeddedUnavailable`."""
    log = open_owned_file(layout.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        # -S and -P: no site packages and no directory of the script on the path; it needs the standard
        # library only.
        program = [sys.executable, "-S", "-P", str(Path(__file__).with_name("__main__.py"))]
        done = subprocess.run(  # noqa: S603  # fixed arguments
            [*program, str(layout.directory), str(binaries.root), str(lock.fd)],
            cwd="/",
            env=make_supervisor_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock.fd],
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(log)
    if done.returncode != 0:
        raise EmbeddedUnavailable(
            f"The supervisor of the embedded server in {layout.directory} did not start (status {done.returncode})."
            f" Its log says:\n{layout.read_log_tail()}"
        )
