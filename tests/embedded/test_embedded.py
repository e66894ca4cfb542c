"""The life of the embedded server, with real processes and real kills.

Every test has a directory of its own. `house.user()` is another process that holds the server up; the test process
itself is a user where it calls `embedded.start`. Nothing waits by sleeping: `until` polls, and fails at a deadline.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
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

    from tests.support.embedded import House


def test_starts_and_answers_every_driver(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The DSN works as it stands, whatever PG* variables are about, and the log says where the data is."""
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGDATA", "/nonexistent")
    with caplog.at_level("INFO", "gen_durable.embedded"), embedded.start(house.directory) as server:
        assert caplog.messages == [f"embedded Postgres, data in {house.directory}"] == [server.notice]
        assert house.query(server.dsn, "select 1") == [(1,)]

        async def ask() -> object:
            connection = await asyncpg.connect(server.dsn)
            try:
                return await connection.fetchval("select 2")
            finally:
                await connection.close()

        assert asyncio.run(ask()) == 2
        psql = binaries.find().root / "bin" / "psql"
        said = subprocess.run([psql, server.dsn, "-Atc", "select 3"], check=True, capture_output=True, text=True)
        assert said.stdout.strip() == "3"


def test_settings(house: House) -> None:
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
    with embedded.start(house.directory) as server:
        sql = f"select name, setting from pg_settings where name in {tuple(wanted)}"
        assert dict(house.query(server.dsn, sql)) == wanted
        assert house.layout.data.stat().st_mode & 0o777 == 0o700
        assert house.directory.stat().st_mode & 0o777 == 0o700


def test_default_directory(build: Callable[[Path], House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument it is `.gen_durable` in the working directory, and git does not see it."""
    monkeypatch.chdir(tmp_path)
    house = build(tmp_path / ".gen_durable")
    with embedded.start() as server:
        assert server.directory == house.directory
        assert (house.directory / ".gitignore").read_text() == "*\n"


def test_processes_share_one_server_and_the_last_stops_it(house: House) -> None:
    """A second process gets the same server; it stops when both are gone, and comes back with its rows, fast."""
    with embedded.start(house.directory) as server:
        house.write_rows(server.dsn)
        pid = house.postmaster()
        other = house.user()
        assert other.line() == server.dsn
        assert house.postmaster() == pid
    assert house.is_held()
    assert house.query(server.dsn, house.rows) == [(1000,)]
    other.leave()
    house.until(lambda: not house.alive(pid), "the server stops after its last user")
    house.until_quiet()

    began = time.monotonic()
    with embedded.start(house.directory) as server:
        assert time.monotonic() - began < 2
        assert house.query(server.dsn, house.rows) == [(1000,)]


def test_calls_in_one_process_are_counted(house: House) -> None:
    """Each `start` holds by itself, and a second release of the same one changes nothing."""
    first, second = embedded.start(house.directory), embedded.start(house.directory)
    assert first == second
    first.release()
    first.release()
    assert house.is_held()
    embedded.release(second)
    assert not house.is_held()


def test_a_forked_child_holds_the_server_up(house: House) -> None:
    """A child goes on using the server when its parent has let go and died; the server stops with the child."""
    fork = "import os; pid = os.fork()\nif pid: server.release(); print(pid, flush=True)\n"
    parent = house.user(house.program.replace("sys.stdin", f"{fork}sys.stdin"))
    dsn, child = parent.line(), int(parent.line())
    assert house.is_held()
    parent.process.kill()
    parent.process.wait(20)
    assert house.alive(child)
    assert house.is_held()
    assert house.query(dsn, "select 1") == [(1,)]
    parent.leave()  # closes the standard input of the child too
    house.until(lambda: not house.alive(child), "the child ends")
    house.until_quiet()


def test_killed_postgres_comes_back_with_all_rows(house: House) -> None:
    """kill -9 of Postgres: the same process reconnects, and a fresh one finds the rows as well."""
    with embedded.start(house.directory) as server:
        house.write_rows(server.dsn)
        killed = house.postmaster()
        house.kill_postgres()
        house.rows_are_back(server.dsn)
        assert house.postmaster() != killed
        house.kill_postgres()
        fresh = house.user()
        assert fresh.line() == server.dsn
        house.rows_are_back(server.dsn)


def test_killed_user_disturbs_nobody(house: House) -> None:
    """kill -9 of one user: the other keeps its very connection."""
    with embedded.start(house.directory) as server, psycopg.connect(server.dsn) as connection:
        victim = house.user()
        assert victim.line() == server.dsn
        victim.kill()
        assert connection.execute("select 1").fetchone() == (1,)
        assert len(house.supervisors()) == 1


def test_server_stops_when_all_users_are_killed(house: House) -> None:
    """kill -9 of every user leaves neither server nor supervisor, and no row is lost."""
    users = [house.user(), house.user()]
    dsn, same = (user.line() for user in users)
    assert dsn == same
    house.write_rows(dsn)
    for user in users:
        user.kill()
    house.until_quiet()
    with embedded.start(house.directory) as server:
        assert house.query(server.dsn, house.rows) == [(1000,)]


def test_killed_supervisor_is_replaced_by_a_new_user(house: House) -> None:
    """kill -9 of the supervisor: a new process works, on the server that went on running."""
    first = house.user()
    first.line()
    pid = house.postmaster()
    first.process.send_signal(signal.SIGSTOP)  # so that it is the newcomer who notices
    house.kill_supervisor()
    assert house.user().line().startswith("postgresql://")
    house.until(lambda: len(house.supervisors()) == 2, "a second supervisor")
    assert house.postmaster() == pid


def test_killed_supervisor_is_replaced_by_any_user(house: House) -> None:
    """Nobody new comes, and still: a supervisor is there again, restarts a killed server, and stops it in the end."""
    with embedded.start(house.directory) as server:
        house.write_rows(server.dsn)
        house.kill_supervisor()
        house.until(lambda: len(house.supervisors()) == 2, "a second supervisor")
        house.kill_postgres()
        house.rows_are_back(server.dsn)
    house.until_quiet()


def test_everything_killed_at_once(house: House) -> None:
    """User, supervisor and Postgres die together, as in a crash of the machine: the next start finds all rows."""
    user = house.user()
    house.write_rows(user.line())
    user.kill()
    house.kill_supervisor()
    house.kill_postgres()
    with embedded.start(house.directory) as server:
        assert house.query(server.dsn, house.rows) == [(1000,)]


def test_eight_first_starts_make_one_cluster(house: House) -> None:
    """Processes that start at the same moment share one initdb, one supervisor and one server."""
    users = [house.user() for _ in range(8)]
    assert len({user.line() for user in users}) == 1
    assert house.log().count("creating a cluster") == 1
    assert house.log().count("starting PostgreSQL") == 1
    assert len(house.supervisors()) == 1


def test_killed_initdb_is_begun_anew(house: House) -> None:
    """A supervisor killed in the midst of initdb leaves no half-made cluster behind."""
    user = house.user()
    house.until(house.layout.unfinished.exists, "initdb is at work")
    user.kill()
    house.kill_supervisor()
    with embedded.start(house.directory) as server:
        assert house.query(server.dsn, "select 1") == [(1,)]


def test_leaving_and_arriving(house: House) -> None:
    """A process that comes while the server is being stopped is kept out until the end of it, and gets a new one."""
    embedded.start(house.directory).release()
    stopping = house.postmaster()
    os.kill(stopping, signal.SIGSTOP)  # so that its stop takes as long as this test wants
    try:
        house.until(lambda: "there is no user any more" in house.log(), "the supervisor decides to stop")
        assert house.is_held(), "the supervisor shuts the door before it stops the server"
        newcomer = house.user()
    finally:
        os.kill(stopping, signal.SIGCONT)
    assert house.query(newcomer.line(), "select 1") == [(1,)]
    assert house.postmaster() != stopping


def test_a_reused_process_id_does_not_block(house: House) -> None:
    """After a crash the number in the lock files may be somebody else's; Postgres alone would refuse to start."""
    with embedded.start(house.directory) as server:
        house.write_rows(server.dsn)
    house.until_quiet()
    owner = house.layout.data.stat()
    options = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    stranger = subprocess.Popen(["sleep", "60"], cwd="/", **options)
    try:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            file = house.layout.data / name
            file.write_text(f"{stranger.pid}\n{house.layout.data}\n1\n5432\n.\n\n  1  1\nready   \n")
            os.chown(file, owner.st_uid, owner.st_gid)
        with embedded.start(house.directory) as server:
            assert house.query(server.dsn, house.rows) == [(1000,)]
        assert "already exists" not in house.log()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_removed_directory_ends_the_server(house: House, tmp_path: Path) -> None:
    """Taking the directory away stops its server, also when the name is at once in use again."""
    with embedded.start(house.directory) as removed:
        house.write_rows(removed.dsn)
        supervisor, pid = house.supervisors()[-1], house.postmaster()
        house.directory.rename(tmp_path / "moved away")
        with embedded.start(house.directory) as server:
            house.until(lambda: not house.alive(pid) and not house.alive(supervisor), "the old server is gone")
            assert house.query(server.dsn, "select to_regclass('kept')") == [(None,)]


def test_a_server_that_does_not_start_shows_its_log(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error carries the tail of the server's log, where the reason is."""
    embedded.start(house.directory).release()
    house.until_quiet()
    with (house.layout.data / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = on\n")
    monkeypatch.setattr("gen_durable.embedded.user._START_TIMEOUT", 1.0)
    with pytest.raises(EmbeddedUnavailable, match=r"(?s)did not start within 1 seconds.*no_such_setting"):
        embedded.start(house.directory)
    assert not house.is_held()
    house.until_quiet()
