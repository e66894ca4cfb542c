"""The server that is broken: a cluster of its own, reached by TCP, thrown away in the end.

By default the Postgres of the wheel, which needs nothing installed; another one by the directory of its installation.
Where mounting is permitted its data lie on a tmpfs of their own, whose size can be taken down to what is in use: a full
disk. Nothing here outlives the kernel, so fsync proves nothing on either: processes die in these runs, machines do not.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg

from gen_durable.embedded import binaries, postgres_account
from gen_durable.embedded.layout import Layout

SETTINGS = {
    "autovacuum_naptime": "10s",
    "fsync": "on",
    "jit": "off",
    "listen_addresses": "127.0.0.1",
    "log_checkpoints": "off",
    "max_connections": "300",
    "max_wal_size": "256MB",
    "min_wal_size": "80MB",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    "unix_socket_directories": "",
    "wal_recycle": "off",  # a new segment needs new space: a full disk is met by the log too
}
# What a connection of ours may meet while things are being broken.
TROUBLE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
ROOM = 8 * 2**30  # of the tmpfs while its disk is not full; only what is written is taken from memory
INSTALLED = Path("/usr/lib/postgresql")


class Server:
    """One cluster. All that is done to it is done to processes that this object has started."""

    def __init__(self, home: Path, version: str | None) -> None:
        self.data = home / "data"
        self.log = home / "server.log"
        self.user = postgres_account.find_or_create_account(Layout(home))
        found = binaries.find_binaries() if version is None else binaries.Binaries(INSTALLED / version)
        if not found.postgres.exists():
            raise FileNotFoundError(f"{found.postgres} is missing: install postgresql-{version}, or leave PG out")
        self.binaries = found if self.user is None else binaries.find_or_copy_runnable_binaries(self.user, found)
        self.port = _free_port()
        self.password = secrets.token_hex(16)
        self.mounted = False
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()  # one thing is done to it at a time

    def create(self, *, mount: bool) -> None:
        """Make the cluster; with `mount` on a disk that can be full, if that is permitted."""
        self.data.mkdir(mode=0o700)
        if mount:
            done = _run("mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(self.data))
            self.mounted = done.returncode == 0
        if self.user is not None:
            for path in (self.data.parent, self.data):
                os.chown(path, self.user.uid, self.user.gid)
        self.data.chmod(0o700)
        words = self.data.parent / "password"
        words.write_text(self.password)
        words.chmod(0o644)  # below a directory that only its owner enters
        # The password is not hashed: hundreds of connections are made in a storm, and none of them leaves the machine.
        made = self._popen(
            self.binaries.initdb,
            *("-U", "postgres", "--pwfile", str(words), "--auth=password", "--encoding=UTF8", "--locale=C"),
        )
        if made.wait() != 0:
            raise ChildProcessError(f"initdb failed; its words are in {self.log}")

    def destroy(self) -> None:
        """Kill it and take the disk away."""
        self.kill()
        if self.mounted:
            _run("umount", "-l", str(self.data))
            self.mounted = False

    @contextmanager
    def _logged(self) -> Generator[int]:
        file = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            yield file
        finally:
            os.close(file)

    def _popen(self, program: Path, *arguments: str) -> subprocess.Popen[bytes]:
        user = self.user
        with self._logged() as log:
            return subprocess.Popen(
                [program, "-D", str(self.data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C"},
                start_new_session=True,
                user=None if user is None else user.uid,
                group=None if user is None else user.gid,
                extra_groups=None if user is None else [],
            )

    @property
    def turn(self) -> asyncio.Lock:
        """Held by the fault that acts on the server."""
        return self._turn

    def dsn(self, port: int | None = None) -> str:
        """The DSN of the server, or of a proxy in front of it."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{port or self.port}/postgres"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, patience: float = 90) -> None:
        """Start it and wait until it answers; again, if it does not come up."""
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            if not self.running:
                self.kill()
                self.starts += 1
                settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
                self._process = self._popen(self.binaries.postgres, "-c", f"port={self.port}", *settings)
            try:
                connection = await self.connect(timeout=3)
            except TROUBLE as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise TimeoutError(f"the server does not come up ({error}); see {self.log}") from error
                await asyncio.sleep(0.05)
            else:
                await connection.close()
                return

    async def connect(self, timeout: float = 10) -> asyncpg.Connection[Any]:
        """A connection past all proxies."""
        return await asyncpg.connect(self.dsn(), timeout=timeout, command_timeout=60)

    async def stop(self, how: signal.Signals) -> None:
        """SIGINT: fast shutdown. SIGQUIT: immediate. Waits for its end."""
        if self._process is not None and self.running:
            self._process.send_signal(how)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 60)
        self.kill()

    def processes(self) -> list[int]:
        """The postmaster and its children."""
        if self._process is None or not self.running:
            return []
        pid = self._process.pid
        with suppress(OSError):
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return [pid]

    def kill(self) -> None:
        """SIGKILL to the postmaster and all its children: what survives it would keep the data to itself."""
        several = self.processes()
        for pid in several:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)
            self._process = None

    def send(self, number: signal.Signals) -> None:
        """A signal to all of its processes: SIGSTOP, SIGCONT."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def fill(self, left: int) -> None:
        """Fill the disk up to `bytes` free bytes."""
        for tries_left in reversed(range(50)):
            stat = os.statvfs(self.data)
            used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
            try:
                self._resize(used + left)
            except OSError:
                # Somebody has written meanwhile: it is never made smaller than what is in it.
                if not tries_left:
                    raise
            else:
                return

    def empty(self) -> None:
        """Make room on its disk again."""
        self._resize(ROOM)

    def _resize(self, size: int) -> None:
        if (done := _run("mount", "-o", f"remount,size={size}", str(self.data))).returncode != 0:
            raise OSError(f"the disk cannot be made {size} bytes large: {done.stderr.decode().strip()}")


def _run(*command: str) -> subprocess.CompletedProcess[bytes]:
    if shutil.which(command[0]) is None:
        return subprocess.CompletedProcess(command, 127, b"", b"no such command")
    return subprocess.run(command, capture_output=True, check=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
