"""Find the postmaster of a data directory by its lock files, and send signals to it.

The files alone prove nothing: after a crash or a reboot their pid may belong to any process, or to a zombie that the
first process of a container never reaps.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from gen_durable.embedded.environment import make_postgres_environment
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.path_ownership import open_owned_file
from gen_durable.errors import EmbeddedUnavailable

_LONGEST_PID_LINE = 32


def find_postmaster_pid(layout: Layout) -> int | None:
    """The pid in `postmaster.pid`, or None if that process is dead or (where /proc shows it) works elsewhere."""
    pid = _read_live_pid(layout, layout.pid_files[0])
    return pid if pid is not None and _has_working_directory(pid, layout.data) else None


def signal_postmaster(layout: Layout, number: signal.Signals) -> None:
    """Send a signal to the running postmaster, if there is one, with the rights of the owner of the data.

    The account that runs Postgres can write any pid into the file: root must not signal other processes for it.
    """
    pid = find_postmaster_pid(layout)
    if pid is None:
        return
    owner = layout.data.lstat()
    is_other = owner.st_uid != os.geteuid()
    subprocess.run(  # noqa: S603  # two numbers
        ["/bin/sh", "-c", 'kill -"$1" "$2"', "sh", str(int(number)), str(pid)],
        env=make_postgres_environment(),
        cwd="/",
        stderr=subprocess.DEVNULL,  # the process is gone, or is not the account's
        user=owner.st_uid if is_other else None,
        group=owner.st_gid if is_other else None,
        extra_groups=[] if is_other else None,
        check=False,
    )


def remove_pid_files_of_other_processes(layout: Layout) -> None:
    """Remove lock files whose pid belongs to another process by now. Only for the holder of `server.lock`.

    Postgres does this itself, except if the pid now belongs to another process of the same user: it then refuses to
    start while that process lives. Guarded by test_a_reused_process_id_does_not_block.
    """
    for file in layout.pid_files:
        pid = _read_live_pid(layout, file)
        if pid is not None and not _has_working_directory(pid, layout.data):
            file.unlink(missing_ok=True)


def _read_live_pid(layout: Layout, file: Path) -> int | None:
    try:
        fd = open_owned_file(file, os.O_RDONLY, owner=layout.data.lstat().st_uid)
        with os.fdopen(fd, "rb") as content:
            pid = int(content.read(_LONGEST_PID_LINE).split(b"\n", 1)[0])
        if pid <= 0:
            return None  # a process group to `kill`, and every process for -1
        os.kill(pid, 0)
    except (FileNotFoundError, ValueError, OverflowError, ProcessLookupError, PermissionError, EmbeddedUnavailable):
        return None
    return pid


def _has_working_directory(pid: int, data: Path) -> bool:
    if not Path("/proc/self/cwd").exists():
        return True
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False
