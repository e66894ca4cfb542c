"""The postmaster of a data directory, known by its lock files.

In: a layout. Out: the process id of the server that runs there. The files alone prove nothing: after a crash or a
reboot their number may belong to any process, or to a zombie that the first process of a container never reaps.
"""

from __future__ import annotations

import os
from pathlib import Path

from gen_durable.embedded.address import socket_in
from gen_durable.embedded.layout import Layout


def running(place: Layout) -> int | None:
    """The process id in `postmaster.pid`, if such a process lives and, where that can be seen, works in this data."""
    pid = _living(_pid_file(place))
    return pid if pid is not None and _works_in(pid, place.data) else None


def clear_stale(place: Layout) -> None:
    """Remove the lock files of a dead server. Only for the holder of `server.lock`.

    Postgres does this itself, except when the number now belongs to another process of the same user: then it would
    refuse to start for as long as that process lives. Guarded by test_a_reused_process_id_does_not_block.
    """
    socket = socket_in(place.data)
    for file in (_pid_file(place), socket.with_name(f"{socket.name}.lock")):
        pid = _living(file)
        if pid is not None and not _works_in(pid, place.data):
            file.unlink(missing_ok=True)


def _pid_file(place: Layout) -> Path:
    return place.data / "postmaster.pid"


def _living(file: Path) -> int | None:
    try:
        pid = int(file.read_text().split("\n", 1)[0])
        os.kill(pid, 0)
    except (FileNotFoundError, ValueError, ProcessLookupError, PermissionError):
        return None
    return pid


def _works_in(pid: int, data: Path) -> bool:
    if not Path("/proc/self/cwd").exists():
        return True
    try:
        return Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False
