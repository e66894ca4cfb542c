"""The process that the lock files of a data directory name, which may be any process by now."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gen_durable.embedded import postmaster_process
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.postgres_account import PostgresAccount

NAMES = ("postmaster.pid", ".s.PGSQL.5432.lock")


@contextlib.contextmanager
def process(directory: Path) -> Iterator[int]:
    """A process that works in `directory`."""
    child = subprocess.Popen(["sleep", "60"], cwd=directory)
    try:
        yield child.pid
        assert child.poll() is None, "the process was only looked at"
    finally:
        child.kill()
        child.wait()


def write_files(layout: Layout, pid: object) -> None:
    layout.data.mkdir(exist_ok=True)
    for name in NAMES:
        (layout.data / name).write_text(f"{pid}\n{layout.data}\n1\n")


def left_files(layout: Layout) -> list[str]:
    postmaster_process.remove_pid_files_of_other_processes(layout)
    return [name for name in NAMES if (layout.data / name).exists()]


def test_a_process_that_works_in_the_data_directory_is_the_postmaster(prepared: Layout) -> None:
    """It is found, and its files stay."""
    prepared.data.mkdir()
    with process(prepared.data) as pid:
        write_files(prepared, pid)
        assert postmaster_process.find_postmaster_pid(prepared) == pid
        assert left_files(prepared) == list(NAMES)


def test_a_process_that_works_elsewhere_is_not_the_postmaster(prepared: Layout, tmp_path: Path) -> None:
    """Its number was reused: the server is not it, and the files are removed."""
    with process(tmp_path) as pid:
        write_files(prepared, pid)
        assert postmaster_process.find_postmaster_pid(prepared) is None
        assert left_files(prepared) == []
        assert left_files(prepared) == []


@pytest.mark.parametrize("content", ["", "not a number", "-1", "0", f"-{os.getpgrp()}", "9" * 30, "9" * 5000])
def test_a_file_without_a_process_id_names_no_postmaster(prepared: Layout, content: str) -> None:
    """A crash can leave an empty file. Postgres deals with it. To `kill`, -1 is every process, and 0 its own group."""
    write_files(prepared, content)
    assert postmaster_process.find_postmaster_pid(prepared) is None
    assert left_files(prepared) == list(NAMES)


def test_the_files_of_a_dead_process_are_left_to_postgres(prepared: Layout) -> None:
    """It removes them itself."""
    child = subprocess.Popen(["true"])
    child.wait()
    write_files(prepared, child.pid)
    assert postmaster_process.find_postmaster_pid(prepared) is None
    assert left_files(prepared) == list(NAMES)


def test_a_zombie_is_not_the_postmaster(prepared: Layout) -> None:
    """A container's first process may never reap it: its number lives, its working directory is gone."""
    prepared.data.mkdir()
    child = subprocess.Popen(["true"], cwd=prepared.data)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    write_files(prepared, child.pid)
    assert postmaster_process.find_postmaster_pid(prepared) is None
    assert left_files(prepared) == []
    child.wait()


def test_a_file_that_vanishes_meanwhile_is_no_error(prepared: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last backend of a dead server may remove it at the same moment."""

    def vanish(_pid: int, data: Path) -> bool:
        for name in NAMES:
            (data / name).unlink(missing_ok=True)
        return False

    with process(prepared.directory) as pid:
        write_files(prepared, pid)
        monkeypatch.setattr(postmaster_process, "_has_working_directory", vanish)
        assert left_files(prepared) == []


def test_without_proc_a_living_process_is_taken_for_the_postmaster(
    prepared: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS does not show where a process works."""
    with process(tmp_path) as pid:
        write_files(prepared, pid)
        monkeypatch.setattr(postmaster_process, "Path", lambda name: tmp_path / "none" / str(name).lstrip("/"))
        assert postmaster_process.find_postmaster_pid(prepared) == pid
        assert left_files(prepared) == list(NAMES)


@pytest.mark.timeout(20)
def test_a_file_that_is_something_else_names_no_postmaster(prepared: Layout) -> None:
    """A FIFO is not waited for, and a symlink is not followed: the account that runs Postgres can put them there."""
    prepared.data.mkdir()
    os.mkfifo(prepared.data / NAMES[0])
    (prepared.data / NAMES[1]).symlink_to(prepared.directory / "elsewhere")
    with process(prepared.directory) as pid:
        (prepared.directory / "elsewhere").write_text(f"{pid}\n")
        assert postmaster_process.find_postmaster_pid(prepared) is None
        postmaster_process.remove_pid_files_of_other_processes(prepared)
        assert (prepared.data / NAMES[1]).is_symlink()


def test_a_file_of_another_user_names_no_postmaster(prepared: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner of the data writes it."""
    prepared.data.mkdir()
    with process(prepared.data) as pid:
        write_files(prepared, pid)
        owners: list[int | None] = []
        real = postmaster_process.open_owned_file

        def open_file(path: Path, flags: int, owner: int | None = None) -> int:
            owners.append(owner)
            return real(path, flags, owner=os.geteuid() + 1)

        monkeypatch.setattr(postmaster_process, "open_owned_file", open_file)
        assert postmaster_process.find_postmaster_pid(prepared) is None
        assert owners == [prepared.data.stat().st_uid]


def test_a_signal_reaches_the_postmaster(prepared: Layout) -> None:
    """And nothing happens if there is none."""
    postmaster_process.signal_postmaster(prepared, signal.SIGTERM)
    prepared.data.mkdir()
    # A shell that starts pytest with `&` makes it and its children ignore SIGINT; a postmaster never does.
    default = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", default], cwd=prepared.data, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        write_files(prepared, child.pid)
        postmaster_process.signal_postmaster(prepared, signal.SIGINT)
        assert child.wait(20) == -signal.SIGINT
    postmaster_process.signal_postmaster(prepared, signal.SIGTERM)


def test_a_signal_of_root_reaches_only_processes_of_the_account(prepared: Layout, nobody: PostgresAccount) -> None:
    """The account wrote the number of a process of root that works in the data directory, say a shell."""
    prepared.data.mkdir()
    with process(prepared.data) as pid:
        write_files(prepared, pid)
        for path in (prepared.data, *(prepared.data / name for name in NAMES)):
            os.chown(path, nobody.uid, nobody.gid)
        assert postmaster_process.find_postmaster_pid(prepared) == pid
        postmaster_process.signal_postmaster(prepared, signal.SIGKILL)
        time.sleep(0.05)  # `process` asserts that it lives
    options = {"user": nobody.uid, "group": nobody.gid, "extra_groups": []}
    child = subprocess.Popen(["sleep", "60"], cwd=prepared.data, **options)  # type: ignore[call-overload]
    (prepared.data / NAMES[0]).write_text(f"{child.pid}\n")
    postmaster_process.signal_postmaster(prepared, signal.SIGTERM)
    assert child.wait(20) == -signal.SIGTERM


def test_a_signal_is_sent_with_the_rights_of_the_owner_of_the_data(
    prepared: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root: the program that sends it would run as that user."""
    prepared.data.mkdir()
    owner, sent = prepared.data.stat(), []
    with process(prepared.data) as pid:
        write_files(prepared, pid)
        monkeypatch.setattr(
            postmaster_process.subprocess, "run", lambda command, **options: sent.append((command, options))
        )
        monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid + 1)
        postmaster_process.signal_postmaster(prepared, signal.SIGINT)
        ((command, options),) = sent
        assert command[-2:] == ["2", str(pid)]
        assert (options["user"], options["group"], options["extra_groups"]) == (owner.st_uid, owner.st_gid, [])
