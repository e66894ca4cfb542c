"""Joining a server: the start of a supervisor, the wait until the server is ready, and the guard."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.embedded import Clock, EmbeddedDirectory, open_files

from gen_durable.embedded import file_locks, server_share
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.server_probe import ServerState
from gen_durable.embedded.server_share import SupervisorRestarter, join_server
from gen_durable.embedded.supervisor_starter import start_supervisor_if_missing
from gen_durable.errors import EmbeddedUnavailable

BINARIES = Binaries(Path("/nonexistent"))
LOG_LIMIT = 8 * 1024 * 1024


class Guard(SupervisorRestarter):
    """A guard that runs `actions` in place of its checks, one each time; the last one again and again."""

    def __init__(self, layout: Layout, *actions: Callable[[], None]) -> None:
        super().__init__(layout, BINARIES)
        self.actions = list(actions)
        self.checks = 0

    def restore_supervisor_and_socket_link(self) -> None:
        self.checks += 1
        (self.actions.pop(0) if len(self.actions) > 1 else self.actions[0])()


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture
def guards() -> Callable[[], int]:
    """How many guards this test has started that have not ended."""
    before = set(threading.enumerate())

    def count() -> int:
        return sum(thread.name == "gen_durable-embedded-guard" for thread in set(threading.enumerate()) - before)

    return count


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_share, "_GUARD_INTERVAL", 0.001)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(server_share, "time", clock)
    return clock


@pytest.fixture
def spawned(prepared: Layout, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[float]:
    """The times at which a supervisor was looked after; none is started."""
    times: list[float] = []

    def ensure(layout: Layout, _binaries: Binaries) -> None:
        if layout == prepared:  # another server of this process has a guard, too
            times.append(clock.now)

    monkeypatch.setattr(server_share, "start_supervisor_if_missing", ensure)
    return times


@pytest.mark.usefixtures("_often")
def test_a_stopped_guard_has_ended_its_check(prepared: Layout, guards: Callable[[], int]) -> None:
    """`stop` waits for it: no supervisor is started afterwards."""
    entered, left = threading.Event(), threading.Event()

    def check() -> None:
        entered.set()
        time.sleep(0.05)
        left.set()

    guard = Guard(prepared, check)
    guard.start()
    assert entered.wait(20)
    guard.stop()
    assert left.is_set()
    assert guards() == 0


@pytest.mark.usefixtures("_often")
def test_a_guard_survives_errors_and_reports_them(prepared: Layout, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk passes."""
    again = threading.Event()
    errors = (OSError("no room"), EmbeddedUnavailable("no supervisor"))
    guard = Guard(prepared, *map(raising, errors), again.set)
    guard.start()
    assert again.wait(20)
    guard.stop()
    assert caplog.messages == [f"cannot check the supervisor of the embedded server: {error}" for error in errors]


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("error", [OSError("it is gone"), RuntimeError("cannot start at interpreter shutdown")])
def test_a_guard_ends_with_its_directory_or_the_interpreter(
    prepared: Layout, error: Exception, guards: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing left to guard, and nothing to report."""
    if isinstance(error, OSError):
        shutil.rmtree(prepared.directory)
    guard = Guard(prepared, raising(error))
    guard.start()
    EmbeddedDirectory.until(lambda: guards() == 0, "the guard ends by itself")
    assert guard.checks == 1
    assert caplog.messages == []
    guard.stop()


def test_a_supervisor_is_started_with_the_lock_and_nothing_else_stays_open(
    prepared: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the started program is gone, the lock is free and no descriptor is left."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\npwd -P > {tmp_path}/directory\necho said\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.chdir(tmp_path)
    start_supervisor_if_missing(prepared, BINARIES)
    assert open_files(prepared.directory) == []
    assert file_locks.is_unlocked(prepared.supervisor_lock)
    main = Path(server_share.__file__).with_name("__main__.py")
    assert (tmp_path / "arguments").read_text().startswith(f"-S -P {main} {prepared.directory} /nonexistent ")
    assert (tmp_path / "directory").read_text() == "/\n"
    assert prepared.log.read_text() == "said\n"


def test_a_supervisor_that_fails_leaves_the_lock_free(
    prepared: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt can start one; the error says what the supervisor said."""
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(FileNotFoundError):
        start_supervisor_if_missing(prepared, BINARIES)
    program.write_text("#!/bin/sh\necho no memory >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(EmbeddedUnavailable, match=r"(?s)did not start \(status 3\)\. Its log says:\nno memory$"):
        start_supervisor_if_missing(prepared, BINARIES)
    assert file_locks.is_unlocked(prepared.supervisor_lock)
    assert open_files(prepared.directory) == []


def test_a_directory_is_checked_before_every_supervisor(
    prepared: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been deleted and planted anew since this process joined. Nothing is created in it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "not reached"))
    before = sorted(prepared.directory.iterdir())
    prepared.directory.chmod(0o777)
    guard = SupervisorRestarter(prepared, BINARIES)
    for check in (guard.restore_supervisor_and_socket_link, lambda: start_supervisor_if_missing(prepared, BINARIES)):
        with pytest.raises(EmbeddedUnavailable, match=f"{prepared.directory}: its group or others can write to it"):
            check()
    assert sorted(prepared.directory.iterdir()) == before


def test_a_supervisor_gets_a_few_variables_only(
    prepared: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that an interpreter needs, and those that it passes on to Postgres."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec env > {tmp_path}/environment\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    kept = ("HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONHOME", "TMPDIR", "TZ")
    for name in (*kept, "PGDATA", "DATABASE_URL", "SECRET_TOKEN", "PYTHONPATH", "PYTHONSTARTUP", "LC", "PATH_SECRET"):
        monkeypatch.setenv(name, "canary")
    start_supervisor_if_missing(prepared, BINARIES)
    seen = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines())
    assert {name for name, value in seen.items() if value == "canary"} == set(kept)
    assert seen["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(("size", "is_renamed"), [(None, False), (0, False), (LOG_LIMIT, False), (LOG_LIMIT + 1, True)])
def test_a_large_log_is_begun_anew(
    prepared: Layout, size: int | None, is_renamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond eight megabytes, when a supervisor starts; the old one is kept beside it."""
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    if size is not None:
        prepared.log.touch()
        os.truncate(prepared.log, size)
    start_supervisor_if_missing(prepared, BINARIES)
    old = prepared.directory / "server.log.1"
    assert old.exists() == is_renamed
    if is_renamed:
        assert old.stat().st_size == size
    assert prepared.log.stat().st_size == (0 if is_renamed else size or 0)


def test_a_server_that_does_not_finish_stopping_is_an_error(prepared: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor holds the users' lock for too long."""
    prepared.log.write_text("stopping\n")
    monkeypatch.setattr(server_share, "_START_TIMEOUT", 0.01)
    lock = file_locks.try_lock_exclusively(prepared.users_lock)
    assert lock is not None
    with pytest.raises(EmbeddedUnavailable, match=r"(?s)does not finish stopping. Its log says:\nstopping"):
        join_server(prepared, BINARIES)
    lock.close()


def join_in_states(
    prepared: Layout, monkeypatch: pytest.MonkeyPatch, clock: Clock, states: dict[float, ServerState]
) -> None:
    """Join a server that is in each state from the given time on, in seconds after now."""
    began = clock.now

    def read(_socket: Path) -> ServerState:
        return [state for since, state in states.items() if began + since <= clock.now][-1]

    monkeypatch.setattr(server_share.server_probe, "probe_server_state", read)
    user = join_server(prepared, BINARIES)
    assert not file_locks.is_unlocked(prepared.users_lock)
    user.release()


def test_a_supervisor_is_looked_after_once_a_second(
    prepared: Layout, monkeypatch: pytest.MonkeyPatch, clock: Clock, spawned: list[float]
) -> None:
    """The server is asked more often."""
    join_in_states(prepared, monkeypatch, clock, {0: ServerState.DOWN, 2.5: ServerState.READY})
    assert spawned == [100.0, 101.0, 102.0]
    assert len(clock.slept) == 5
    assert max(clock.slept) < 0.1


@pytest.mark.usefixtures("spawned")
def test_a_server_may_be_down_for_half_a_minute(
    prepared: Layout, monkeypatch: pytest.MonkeyPatch, clock: Clock, guards: Callable[[], int]
) -> None:
    """Counted from the start, and anew from each moment in which it was starting: a recovery takes any time."""
    down, starting, ready = ServerState.DOWN, ServerState.STARTING, ServerState.READY
    join_in_states(prepared, monkeypatch, clock, {0: down, 30.5: ready})
    join_in_states(prepared, monkeypatch, clock, {0: starting, 100: down, 130: ready})
    with pytest.raises(EmbeddedUnavailable, match="did not start within 30 seconds"):
        join_in_states(prepared, monkeypatch, clock, {0: down, 31: ready})
    with pytest.raises(EmbeddedUnavailable, match="did not start within 30 seconds"):
        join_in_states(prepared, monkeypatch, clock, {0: starting, 20: down, 51: ready})
    assert file_locks.is_unlocked(prepared.users_lock)
    assert guards() == 0
