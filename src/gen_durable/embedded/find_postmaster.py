"""Find the postmaster of a data directory by its lock files.

The files alone prove nothing: after a crash or a reboot their pid may belong to any process, or to a zombie that the
first process of a container never reaps.
"""

from __future__ import annotations

import os
from pathlib import Path

from gen_durable.embedded.address import socket_in
from gen_durable.embedded.layout import Layout


def find_running_pid(layout: Layout) -> int | None:
    """The pid in `postmaster.pid`, or None if that process is dead or (where /proc shows it) works elsewhere."""
    pid = _read_live_pid(_pid_file(layout))
    return pid if pid is not None and _is_working_directory(pid, layout.data) else None


def remove_stale_files(layout: Layout) -> None:
    """Remove the lock files of a dead server. Only for the holder of `server.lock`.

    Postgres does this itself, except if the pid now belongs to another process of the same user: it then refuses to
    start while that process lives. Guarded by test_a_reused_process_id_does_not_block.
    """
    socket = socket_in(layout.data)
    for file in (_pid_file(layout), socket.with_name(f"{socket.name}.lock")):
        pid = _read_live_pid(file)
        if pid is not None and not _is_working_directory(pid, layout.data):
            file.unlink(missing_ok=True)


def _pid_file(layout: Layout) -> Path:
    return layout.data / "postmaster.pid"


def _read_live_pid(file: Path) -> int | None:
    try:
        pid = int(file.read_text().split("\n", 1)[0])
        os.kill(pid, 0)
    except (FileNotFoundError, ValueError, ProcessLookupError, PermissionError):
        return None
    return pid


def _is_working_directory(pid: int, data: Path) -> bool:
    if not Path("/proc/self/cwd").exists():
        return True
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False
