"""The decisions of a supervisor, in this process: scripts take the place of Postgres, and time passes by hand."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.embedded import Clock, EmbeddedDirectory, write_programs

from gen_durable.embedded import file_locks, supervisor
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.cluster import Cluster
from gen_durable.embedded.file_locks import FileLock
from gen_durable.embedded.layout import Layout, create_and_check_layout
from gen_durable.embedded.postgres_account import PostgresAccount
from gen_durable.embedded.supervisor import Supervisor

until = EmbeddedDirectory.until
RUNS = "exec sleep 60"
DIES = "exit 3"
IGNORES_SIGNALS = "trap '' INT QUIT\ntouch ready\nexec sleep 60"
STOPS_SLOWLY = "trap 'sleep 0.05; exit 7' TERM\ntouch ready\nwhile :; do sleep 0.01; done"


class Supervised:
    """A supervisor with a user, and the servers that it has launched."""

    def __init__(self, layout: Layout, programs: Path, clock: Clock) -> None:
        self.layout = layout
        self.programs = programs
        self.clock = clock
        self.servers: list[subprocess.Popen[bytes]] = []
        self.on_launch: Callable[[FileLock], None] = lambda _lock: None
        self.user = self.join()
        own = file_locks.try_lock_exclusively(layout.supervisor_lock)
        assert own is not None
        self.own = own
        self.supervisor = Supervisor(layout, Binaries(programs), own)

    def join(self) -> FileLock:
        share = file_locks.wait_for_shared_lock(self.layout.users_lock, 5)
        assert share is not None
        return share

    def launches_at(self, moment: float) -> bool:
        """Whether a check at this time launches a server."""
        self.clock.now = moment
        before = len(self.servers)
        assert self.supervisor.start_server_unless_stopping() is True
        return len(self.servers) > before

    def launch(self, postgres: str) -> subprocess.Popen[bytes]:
        """A server that runs."""
        write_programs(self.programs, postgres)
        assert self.launches_at(self.clock.now)
        if "ready" in postgres:
            until((self.layout.data / "ready").exists, "the server is ready")
        return self.servers[-1]

    def close(self) -> None:
        for server in self.servers:
            if server.poll() is None:
                server.kill()
                server.wait()
        self.user.close()
        self.own.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(supervisor, "time", clock)
    return clock


@pytest.fixture
def supervised(prepared: Layout, open_air: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    made = Supervised(prepared, open_air / "wheel", clock)
    launch = Cluster.start_postmaster

    def record(cluster: Cluster, lock: FileLock) -> subprocess.Popen[bytes]:
        made.servers.append(launch(cluster, lock))
        made.on_launch(lock)
        return made.servers[-1]

    monkeypatch.setattr(Cluster, "start_postmaster", record)
    yield made
    made.close()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch, supervised: Supervised) -> list[float]:
    """The pauses of a supervisor for which time passes by itself."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    return pauses


def test_a_server_that_dies_young_is_restarted_after_growing_pauses(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    """At once the first time, and at last every five seconds."""
    write_programs(supervised.programs, DIES)
    assert supervised.launches_at(100.0)
    launched = 100.0
    for pause in (0.1, 0.3, 0.7, 1.5, 3.1, 5.0, 5.0):
        supervised.servers[-1].wait()
        for moment in (launched, launched, launched + pause - 0.01):
            assert not supervised.launches_at(moment)
        launched += pause if pause == 0.1 else pause + 1e-6
        assert supervised.launches_at(launched)
    assert caplog.messages == ["Postgres exited with status 3"] * 7


def test_a_server_that_ran_for_a_while_is_restarted_at_once(supervised: Supervised) -> None:
    """More than five seconds; then the pauses begin anew."""
    write_programs(supervised.programs, DIES)
    for moment, is_launched in (
        (100.0, True),
        (105.0, True),  # it lived for five seconds: the second pause is the longer one
        (105.29, False),
        (105.31, True),
        (110.41, True),  # it lived for more
        (110.46, False),
        (110.52, True),
    ):
        assert supervised.launches_at(moment) == is_launched
        supervised.servers[-1].wait()


def test_a_server_that_runs_is_left_alone(supervised: Supervised, caplog: pytest.LogCaptureFixture) -> None:
    """It holds its lock, and nothing is reported."""
    supervised.launch(RUNS)
    assert not supervised.launches_at(100.5)
    assert not supervised.launches_at(200.0)
    assert not file_locks.is_unlocked(supervised.layout.server_lock)
    assert caplog.messages == []


def test_a_start_that_fails_is_retried_after_growing_pauses(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure is reported; the retry that succeeds starts the server."""
    write_programs(supervised.programs, RUNS, "exit 1")
    tried = 100.0
    for failures, pause in enumerate((0.5, 1.5, 3.5, 5.0, 5.0), 1):
        assert not supervised.launches_at(tried)
        assert caplog.messages == ["cannot start Postgres; retrying"] * failures
        assert not supervised.launches_at(tried + pause - 0.01)
        assert len(caplog.messages) == failures
        tried += pause
    write_programs(supervised.programs, RUNS)
    assert supervised.launches_at(tried)


def test_a_server_is_not_started_in_a_directory_that_others_can_write(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner may have opened it since the start. The log says what to do, and the start is retried."""
    write_programs(supervised.programs, RUNS)
    supervised.layout.directory.chmod(0o777)
    assert not supervised.launches_at(100.0)
    assert not supervised.layout.data.exists()
    assert caplog.messages == ["cannot start Postgres; retrying"]
    assert f"Run `chmod go-w {supervised.layout.directory}`" in caplog.text
    supervised.layout.directory.chmod(0o700)
    assert supervised.launches_at(101.0)


def test_a_server_of_another_account_runs_what_that_account_can_run(
    supervised: Supervised, nobody: PostgresAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of programs that it cannot reach."""
    copy = write_programs(supervised.programs.with_name("copy"), RUNS)
    asked: list[tuple[PostgresAccount, Binaries]] = []

    def make_runnable(owner: PostgresAccount, given: Binaries) -> Binaries:
        asked.append((owner, given))
        return copy

    monkeypatch.setattr(supervisor.postgres_account, "find_or_create_account", lambda _layout: nobody)
    monkeypatch.setattr(supervisor, "find_or_copy_runnable_binaries", make_runnable)
    assert supervised.launches_at(100.0)
    assert asked == [(nobody, Binaries(supervised.programs))]


def test_a_server_without_a_user_is_stopped_after_a_second(supervised: Supervised) -> None:
    """Counted from the moment in which its last user was gone; new users then wait until it has stopped."""
    write_programs(supervised.programs, RUNS)
    supervised.user.close()
    assert supervised.launches_at(100.0)
    user = supervised.join()
    assert not supervised.launches_at(100.5)
    user.close()
    assert not supervised.launches_at(101.25)
    assert not supervised.launches_at(102.0)
    assert file_locks.is_unlocked(supervised.layout.users_lock)
    supervised.clock.now = 102.25
    assert supervised.supervisor.start_server_unless_stopping() is False
    assert not file_locks.is_unlocked(supervised.layout.users_lock)


def test_a_server_whose_directory_is_gone_is_stopped(supervised: Supervised) -> None:
    """Also if only a file of it was deleted so far, and if another directory has its name."""
    supervised.launch(RUNS)
    supervised.layout.users_lock.unlink()
    assert supervised.supervisor.start_server_unless_stopping() is False
    shutil.rmtree(supervised.layout.directory)
    assert supervised.supervisor.start_server_unless_stopping() is False
    create_and_check_layout(supervised.layout.directory)
    supervised.layout.supervisor_lock.touch()
    supervised.layout.users_lock.touch()
    assert supervised.supervisor.start_server_unless_stopping() is False
    assert len(supervised.servers) == 1


def test_a_server_that_ends_on_the_first_signal_gets_no_second(
    supervised: Supervised, slept: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has time to stop in order, and its end is noticed soon."""
    monkeypatch.setattr(supervisor, "_STOPPING", ((signal.SIGTERM, 20.0), (signal.SIGKILL, 0.05)))
    server = supervised.launch(STOPS_SLOWLY)
    supervised.supervisor._stop_server()
    assert server.poll() == 7
    assert file_locks.is_unlocked(supervised.layout.server_lock)
    assert max(slept, default=0) < 0.5
    assert caplog.messages == []


def test_a_server_that_ignores_signals_is_killed(
    supervised: Supervised, slept: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each signal has its time, and the last one ends it."""
    stopping = ((signal.SIGINT, 0.05), (signal.SIGQUIT, 0.05), (signal.SIGKILL, 20.0))
    monkeypatch.setattr(supervisor, "_STOPPING", stopping)
    server = supervised.launch(IGNORES_SIGNALS)
    began = time.monotonic()
    supervised.supervisor._stop_server()
    assert server.poll() == -signal.SIGKILL
    assert time.monotonic() - began >= 0.1
    assert max(slept, default=0) < 0.5
    assert caplog.messages == []


def test_a_server_is_down_when_its_last_process_is(
    supervised: Supervised, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend may outlive the postmaster: it still holds the lock."""
    backends: list[int] = []
    supervised.on_launch = lambda lock: backends.append(os.dup(lock.fd))
    supervised.launch(RUNS)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if supervised.servers[0].poll() is not None and backends:
            os.close(backends.pop())
        time.sleep(seconds)

    monkeypatch.setattr(supervisor, "_STOPPING", ((signal.SIGTERM, 20.0),))
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    supervised.supervisor._stop_server()
    assert backends == []
    assert file_locks.is_unlocked(supervised.layout.server_lock)


def adopt(supervised: Supervised) -> subprocess.Popen[bytes]:
    """A server that another supervisor has launched."""
    supervised.layout.data.mkdir()
    (supervised.layout.data / "PG_VERSION").touch()
    lock = file_locks.try_lock_exclusively(supervised.layout.server_lock)
    assert lock is not None
    server = subprocess.Popen(["sleep", "60"], cwd=supervised.layout.data, pass_fds=[lock.fd])
    lock.close()
    (supervised.layout.data / "postmaster.pid").write_text(f"{server.pid}\n")
    supervised.servers.append(server)
    return server


def test_a_server_of_a_killed_supervisor_is_stopped(
    supervised: Supervised, slept: list[float], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known by its files and its lock."""
    monkeypatch.setattr(supervisor, "_STOPPING", ((signal.SIGTERM, 20.0), (signal.SIGKILL, 0.05)))
    server = adopt(supervised)
    assert not supervised.launches_at(100.0)
    supervised.supervisor._stop_server()
    assert server.wait(20) == -signal.SIGTERM
    assert max(slept, default=0) < 0.5
    assert caplog.messages == []


def test_a_server_of_another_directory_is_not_stopped(
    supervised: Supervised, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory was replaced by one with a supervisor and a server of its own."""
    supervised.layout.supervisor_lock.unlink()
    supervised.layout.supervisor_lock.touch()
    server = adopt(supervised)
    supervised.supervisor._stop_server()
    assert server.poll() is None
    assert clock.slept == []
    assert caplog.messages == []


def test_a_server_without_files_is_down(supervised: Supervised, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """The directory is being deleted: nothing is waited for."""
    supervised.supervisor._stop_server()
    assert not supervised.layout.server_lock.exists()
    assert clock.slept == []
    assert caplog.messages == []


def test_a_server_is_known_to_serve_as_a_child_or_by_its_files(supervised: Supervised) -> None:
    """While there is none, the checks come more often."""
    assert not supervised.supervisor._has_server_process()
    adopted = adopt(supervised)
    assert supervised.supervisor._has_server_process()
    adopted.kill()
    adopted.wait()
    assert not supervised.supervisor._has_server_process()
    supervised.launch(RUNS)
    assert supervised.supervisor._has_server_process()


RUN = """
import signal, sys
from pathlib import Path
from gen_durable.embedded import file_locks, supervisor
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.layout import Layout

class Counting(supervisor.Supervisor):
    checks = 0

    def start_server_unless_stopping(self):
        self.checks += 1
        return super().start_server_unless_stopping()

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
supervisor._CHECK_INTERVAL = 60.0
layout = Layout(Path(sys.argv[1]))
counting = Counting(layout, Binaries(Path(sys.argv[2])), file_locks.try_lock_exclusively(layout.supervisor_lock))
counting.run()
print(file_locks.is_unlocked(layout.supervisor_lock), file_locks.is_unlocked(layout.server_lock), counting.checks)
"""


def test_a_supervisor_reacts_to_signals_at_once(prepared: Layout, open_air: Path, bare: str) -> None:
    """Between two checks, too: the end of the server is one, and so is SIGTERM, even if the starting thread had
    blocked them. It sleeps otherwise.
    """
    programs = write_programs(open_air / "wheel", "echo $$ >> starts\nexec sleep 60")
    user = file_locks.wait_for_shared_lock(prepared.users_lock, 5)
    assert user is not None
    running = subprocess.Popen(
        [sys.executable, "-S", "-c", RUN, prepared.directory, programs.root],
        env={**os.environ, "PYTHONPATH": bare},
        stdout=subprocess.PIPE,
        text=True,
    )

    def starts() -> list[int]:
        file = prepared.data / "starts"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    try:
        until(lambda: len(starts()) == 1, "the server starts")
        os.kill(starts()[0], signal.SIGKILL)
        until(lambda: len(starts()) == 2, "the server is restarted")
        running.terminate()
        said, _ = running.communicate(timeout=20)
    finally:
        with running:
            running.kill()
        user.close()
        for pid in starts():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    is_lock_free, is_server_gone, checks = said.split()
    assert (is_lock_free, is_server_gone, running.returncode) == ("True", "True", 0)
    assert int(checks) < 150
