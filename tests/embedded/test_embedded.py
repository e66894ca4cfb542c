"""The life of the embedded server, with real processes and real kills.

Every test has a directory of its own. `data_directory.user()` is another process that uses the server; the test
process itself is a user where it calls `embedded.start`. Nothing waits by sleeping: `until` polls, up to a deadline.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest

from gen_durable import embedded
from gen_durable.embedded import binaries
from gen_durable.errors import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.embedded import EmbeddedDirectory


def test_starts_and_answers_every_driver(
    data_directory: EmbeddedDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The DSN works as it stands, whatever PG* variables are about, and the log says where the data is."""
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    with caplog.at_level("INFO", "gen_durable.embedded"), embedded.start(data_directory.directory) as server:
        assert caplog.messages == [f"embedded Postgres, data in {data_directory.directory}"] == [server.data_location]
        assert data_directory.query(server.dsn, "select 1") == [(1,)]

        async def ask() -> object:
            connection = await asyncpg.connect(server.dsn)
            try:
                return await connection.fetchval("select 2")
            finally:
                await connection.close()

        assert asyncio.run(ask()) == 2
        psql = binaries.find_binaries().root / "bin" / "psql"
        said = subprocess.run([psql, server.dsn, "-Atc", "select 3"], check=True, capture_output=True, text=True)
        assert said.stdout.strip() == "3"


def test_settings(data_directory: EmbeddedDirectory) -> None:
    """Durable, unreachable from outside, UTF-8 and UTC."""
    wanted = {
        "TimeZone": "UTC",
        "fsync": "on",
        "full_page_writes": "on",
        "jit": "off",
        "listen_addresses": "",
        "max_connections": "200",
        "server_encoding": "UTF8",
        "synchronous_commit": "on",
    }
    with embedded.start(data_directory.directory) as server:
        sql = f"select name, setting from pg_settings where name in {tuple(wanted)}"
        assert dict(data_directory.query(server.dsn, sql)) == wanted
        assert data_directory.layout.data.stat().st_mode & 0o777 == 0o700
        assert data_directory.directory.stat().st_mode & 0o777 == 0o700


def test_default_directory(
    build: Callable[[Path], EmbeddedDirectory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an argument it is `.gen_durable` in the working directory, and git does not see it."""
    monkeypatch.chdir(tmp_path)
    data_directory = build(tmp_path / ".gen_durable")
    with embedded.start() as server:
        assert server.directory == data_directory.directory
        assert (data_directory.directory / ".gitignore").read_text() == "*\n"


def test_processes_share_one_server_and_the_last_stops_it(data_directory: EmbeddedDirectory) -> None:
    """A second process gets the same server; it stops when both are gone, and comes back with its rows, fast."""
    with embedded.start(data_directory.directory) as server:
        data_directory.write_rows(server.dsn)
        pid = data_directory.postmaster()
        other = data_directory.user()
        assert other.line() == server.dsn
        assert data_directory.postmaster() == pid
    assert data_directory.is_held()
    assert data_directory.query(server.dsn, data_directory.rows) == [(1000,)]
    other.leave()
    data_directory.until(lambda: not data_directory.alive(pid), "the server stops after its last user")
    data_directory.until_quiet()

    began = time.monotonic()
    with embedded.start(data_directory.directory) as server:
        assert time.monotonic() - began < 2
        assert data_directory.query(server.dsn, data_directory.rows) == [(1000,)]


def test_calls_in_one_process_are_counted(data_directory: EmbeddedDirectory) -> None:
    """Each `start` holds by itself, and a second release of the same one changes nothing."""
    first, second = embedded.start(data_directory.directory), embedded.start(data_directory.directory)
    assert first == second
    assert repr(first) == f"EmbeddedServer(dsn={first.dsn!r}, directory={first.directory!r})"
    first.release()
    first.release()
    assert data_directory.is_held()
    embedded.release(second)
    assert not data_directory.is_held()


def test_a_forked_child_holds_the_server_up(data_directory: EmbeddedDirectory) -> None:
    """A child goes on using the server when its parent has let go and died; the server stops with the child."""
    fork = "import os; pid = os.fork()\nif pid: server.release(); print(pid, flush=True)\n"
    parent = data_directory.user(data_directory.program.replace("sys.stdin", f"{fork}sys.stdin"))
    dsn, child = parent.line(), int(parent.line())
    assert data_directory.is_held()
    parent.process.kill()
    parent.process.wait(20)
    assert data_directory.alive(child)
    assert data_directory.is_held()
    assert data_directory.query(dsn, "select 1") == [(1,)]
    parent.leave()  # closes the standard input of the child too
    data_directory.until(lambda: not data_directory.alive(child), "the child ends")
    data_directory.until_quiet()


def test_killed_postgres_comes_back_with_all_rows(data_directory: EmbeddedDirectory) -> None:
    """kill -9 of Postgres: the same process reconnects, and a fresh one finds the rows as well."""
    with embedded.start(data_directory.directory) as server:
        data_directory.write_rows(server.dsn)
        killed = data_directory.postmaster()
        data_directory.kill_postgres()
        data_directory.rows_are_back(server.dsn)
        assert data_directory.postmaster() != killed
        data_directory.kill_postgres()
        fresh = data_directory.user()
        assert fresh.line() == server.dsn
        data_directory.rows_are_back(server.dsn)


def test_killed_user_disturbs_nobody(data_directory: EmbeddedDirectory) -> None:
    """kill -9 of one user: the other keeps its very connection."""
    with embedded.start(data_directory.directory) as server, psycopg.connect(server.dsn) as connection:
        victim = data_directory.user()
        assert victim.line() == server.dsn
        victim.kill()
        assert connection.execute("select 1").fetchone() == (1,)
        assert len(data_directory.supervisors()) == 1


def test_windows_is_told_to_use_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is created there."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(EmbeddedUnavailable, match="Linux and macOS only"):
        embedded.start(tmp_path / ".gen_durable")
    assert list(tmp_path.iterdir()) == []


def test_server_stops_when_all_users_are_killed(data_directory: EmbeddedDirectory) -> None:
    """kill -9 of every user leaves neither server nor supervisor, and no row is lost."""
    users = [data_directory.user(), data_directory.user()]
    dsn, same = (user.line() for user in users)
    assert dsn == same
    data_directory.write_rows(dsn)
    for user in users:
        user.kill()
    data_directory.until_quiet()
    with embedded.start(data_directory.directory) as server:
        assert data_directory.query(server.dsn, data_directory.rows) == [(1000,)]


@pytest.mark.long
def test_killed_supervisor_is_replaced_by_a_new_user(data_directory: EmbeddedDirectory) -> None:
    """kill -9 of the supervisor: a new process works, on the server that went on running.

    It has no directory, no standard file and no session of its starter: Ctrl-C would reach it there.
    """
    first = data_directory.user()
    first.line()
    pid = data_directory.postmaster()
    (supervisor,) = data_directory.supervisors()
    process = Path(f"/proc/{supervisor}")
    assert (process / "cwd").readlink() == Path("/")
    log = data_directory.layout.log
    assert [(process / "fd" / n).readlink() for n in "012"] == [Path("/dev/null"), log, log]
    assert os.getsid(supervisor) != os.getsid(first.process.pid)
    first.process.send_signal(signal.SIGSTOP)  # so that it is the newcomer who notices
    data_directory.kill_supervisor()
    assert data_directory.user().line().startswith("postgresql://")
    data_directory.until(lambda: len(data_directory.supervisors()) == 2, "a second supervisor")
    assert data_directory.postmaster() == pid


def test_killed_supervisor_is_replaced_by_any_user(data_directory: EmbeddedDirectory) -> None:
    """Nobody new comes, and still: a supervisor is there again, restarts a killed server, and stops it in the end."""
    with embedded.start(data_directory.directory) as server:
        data_directory.write_rows(server.dsn)
        data_directory.kill_supervisor()
        data_directory.until(lambda: len(data_directory.supervisors()) == 2, "a second supervisor")
        data_directory.kill_postgres()
        data_directory.rows_are_back(server.dsn)
    data_directory.until_quiet()


@pytest.mark.long
def test_everything_killed_at_once(data_directory: EmbeddedDirectory) -> None:
    """User, supervisor and Postgres die together, as in a crash of the machine: the next start finds all rows."""
    user = data_directory.user()
    data_directory.write_rows(user.line())
    user.kill()
    data_directory.kill_supervisor()
    data_directory.kill_postgres()
    with embedded.start(data_directory.directory) as server:
        assert data_directory.query(server.dsn, data_directory.rows) == [(1000,)]


def test_eight_first_starts_make_one_cluster(data_directory: EmbeddedDirectory) -> None:
    """Processes that start at the same moment share one initdb, one supervisor and one server."""
    users = [data_directory.user() for _ in range(8)]
    assert len({user.line() for user in users}) == 1
    assert data_directory.log().count("creating a cluster") == 1
    assert data_directory.log().count("starting PostgreSQL") == 1
    assert len(data_directory.supervisors()) == 1


def test_killed_initdb_is_begun_anew(data_directory: EmbeddedDirectory) -> None:
    """A supervisor killed in the midst of initdb leaves no half-made cluster behind."""
    user = data_directory.user()
    data_directory.until(data_directory.layout.initdb_directory.exists, "initdb is at work")
    user.kill()
    data_directory.kill_supervisor()
    with embedded.start(data_directory.directory) as server:
        assert data_directory.query(server.dsn, "select 1") == [(1,)]


@pytest.mark.long
def test_leaving_and_arriving(data_directory: EmbeddedDirectory) -> None:
    """A process that comes while the server is being stopped is kept out until the end of it, and gets a new one."""
    embedded.start(data_directory.directory).release()
    stopping = data_directory.postmaster()
    os.kill(stopping, signal.SIGSTOP)  # so that its stop takes as long as this test wants
    try:
        data_directory.until(
            lambda: "there is no user any more" in data_directory.log(), "the supervisor decides to stop"
        )
        assert data_directory.is_held(), "the supervisor shuts the door before it stops the server"
        newcomer = data_directory.user()
    finally:
        os.kill(stopping, signal.SIGCONT)
    assert data_directory.query(newcomer.line(), "select 1") == [(1,)]
    assert data_directory.postmaster() != stopping


@pytest.mark.long
def test_a_reused_process_id_does_not_block(data_directory: EmbeddedDirectory) -> None:
    """After a crash the number in the lock files may be somebody else's; Postgres alone would refuse to start."""
    with embedded.start(data_directory.directory) as server:
        data_directory.write_rows(server.dsn)
    data_directory.until_quiet()
    owner = data_directory.layout.data.stat()
    options = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    stranger = subprocess.Popen(["sleep", "60"], cwd="/", **options)
    try:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            file = data_directory.layout.data / name
            file.write_text(f"{stranger.pid}\n{data_directory.layout.data}\n1\n5432\n.\n\n  1  1\nready   \n")
            os.chown(file, owner.st_uid, owner.st_gid)
        with embedded.start(data_directory.directory) as server:
            assert data_directory.query(server.dsn, data_directory.rows) == [(1000,)]
        assert "already exists" not in data_directory.log()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_removed_directory_ends_the_server(data_directory: EmbeddedDirectory, tmp_path: Path) -> None:
    """Taking the directory away stops its server, also when the name is at once in use again."""
    with embedded.start(data_directory.directory) as removed:
        data_directory.write_rows(removed.dsn)
        supervisor, pid = data_directory.supervisors()[-1], data_directory.postmaster()
        data_directory.directory.rename(tmp_path / "moved away")
        with embedded.start(data_directory.directory) as server:
            data_directory.until(
                lambda: not data_directory.alive(pid) and not data_directory.alive(supervisor), "the old server is gone"
            )
            assert data_directory.query(server.dsn, "select to_regclass('kept')") == [(None,)]


def test_a_server_that_does_not_start_shows_its_log(
    data_directory: EmbeddedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error carries the tail of the server's log, where the reason is."""
    embedded.start(data_directory.directory).release()
    data_directory.until_quiet()
    with (data_directory.layout.data / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = on\n")
    monkeypatch.setattr("gen_durable.embedded.server_share._START_TIMEOUT", 1.0)
    with pytest.raises(EmbeddedUnavailable, match=r"(?s)did not start within 1 seconds.*no_such_setting"):
        embedded.start(data_directory.directory)
    assert not data_directory.is_held()
    data_directory.until_quiet()


def test_the_guard_thread_ends_with_close(data_directory: EmbeddedDirectory) -> None:
    """No thread goes on to check, and to restart, a server that this process has stopped using."""
    before = set(threading.enumerate())
    with embedded.start(data_directory.directory):
        (guard,) = (t for t in set(threading.enumerate()) - before if t.name == "gen_durable-embedded-guard")
        assert guard.is_alive()
        assert guard.daemon, "a process that does not release the server can end"
    assert not guard.is_alive()
