"""The postmaster of a data directory, known by its `postmaster.pid`.

In: a layout. Out: the process id of the server that runs there. The file alone proves nothing: after a crash or a
reboot its number may belong to any process, or to a zombie that nobody reaps.
"""

from __future__ import annotations

import os
from pathlib import Path

from gen_durable.embedded.layout import Layout


def running(place: Layout) -> int | None:
    """The process id in `postmaster.pid`, if such a process lives and, where that can be seen, works in this data."""
    pid = _living(place)
    return pid if pid is not None and _works_in(pid, place.data) else None


def clear_stale(place: Layout) -> None:
    """Remove the pid file of a dead server. Only for the holder of `server.lock`.

    Postgres does this itself, except when the number now belongs to another process of the same user: then it would
    refuse to start for as long as that process lives. Guarded by test_a_reused_process_id_does_not_block.
    """
    pid = _living(place)
    if pid is not None and not _works_in(pid, place.data):
        (place.data / "postmaster.pid").unlink(missing_ok=True)


def _living(place: Layout) -> int | None:
    try:
        pid = int((place.data / "postmaster.pid").read_text().split("\n", 1)[0])
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
