"""Another user of the machine gains nothing from the embedded server: a real server, and a real second user."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gen_durable import Durable, embedded
from gen_durable.errors import EmbeddedUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.embedded import EmbeddedDirectory

    from gen_durable.embedded.postgres_account import PostgresAccount

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "canary-1",
    "DATABASE_PASSWORD": "canary-2",
    "PGPASSWORD": "canary-3",
    "PYTHONSECRET": "canary-4",
    "STRIPE_KEY": "canary-5",
}


@pytest.fixture
def shared(open_air: Path) -> Path:
    """A directory like /tmp."""
    path = open_air / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


def run_as(account: PostgresAccount, command: str, directory: Path) -> None:
    subprocess.run(
        ["/bin/sh", "-ec", command], cwd=directory, check=True, user=account.uid, group=account.gid, extra_groups=[]
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "command",
    [
        "mkdir .gen_durable",
        "mkdir -m 777 .gen_durable",
        "mkdir .gen_durable; mkfifo .gen_durable/.gitignore .gen_durable/server.log .gen_durable/users.lock",
        "mkdir own; ln -s own .gen_durable",
        "ln -s ../of_root .gen_durable",
        "ln -s ../missing .gen_durable",
        "mkfifo .gen_durable",
        "touch .gen_durable",
    ],
)
async def test_root_does_not_use_what_another_user_planted(
    shared: Path, nobody: PostgresAccount, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Without a DSN, in a directory that everyone can write: nothing is created, not even behind a symlink."""
    of_root = shared.parent / "of_root"
    of_root.mkdir(mode=0o700)
    run_as(nobody, command, shared)
    before = sorted(shared.parent.rglob("*"))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.chdir(shared)
    with pytest.raises(EmbeddedUnavailable, match=f"{shared / '.gen_durable'}: it belongs to the user with id 65534"):
        async with Durable():
            pytest.fail("it was opened")
    assert sorted(shared.parent.rglob("*")) == before


@pytest.fixture
def listening(shared: Path, nobody: PostgresAccount) -> Iterator[list[bytes]]:
    """What clients say to a server of `nobody`'s, at the place of the real one."""
    data = shared / ".gen_durable" / "pgdata"
    run_as(nobody, "mkdir -p .gen_durable/pgdata && touch .gen_durable/pgdata/PG_VERSION", shared)
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(data / ".s.PGSQL.5432"))
        server.listen()
        server.settimeout(0.1)
        stopped = threading.Event()

        def accept() -> None:
            while not stopped.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    heard.append(connection.recv(4096))
                    connection.sendall(b"R\0\0\0\x08\0\0\0\0")

        thread = threading.Thread(target=accept)
        thread.start()
        yield heard
        stopped.set()
        thread.join()


@pytest.mark.timeout(60)
def test_root_does_not_connect_to_a_planted_server(shared: Path, listening: list[bytes]) -> None:
    """It would send its payloads there."""
    with pytest.raises(EmbeddedUnavailable, match="may have been planted"):
        embedded.start(shared / ".gen_durable")
    assert listening == []


def test_a_directory_of_its_own_in_a_shared_one_is_used(
    build: Callable[[Path], EmbeddedDirectory], shared: Path
) -> None:
    """Only its owner can replace it there."""
    data_directory = build(shared / ".gen_durable")
    with embedded.start(data_directory.directory) as server:
        assert data_directory.query(server.dsn, "select 1") == [(1,)]
        paths = (data_directory.directory, data_directory.layout.data, data_directory.layout.data / ".s.PGSQL.5432")
        assert [path.stat().st_mode & 0o777 for path in paths] == [0o700] * 3


def test_a_directory_that_everyone_can_replace_is_refused(shared: Path) -> None:
    """The same directory without the sticky bit."""
    shared.chmod(0o777)
    with pytest.raises(EmbeddedUnavailable, match=f"everyone can write to {shared} .mode 0777.. Run `chmod o-w"):
        embedded.start(shared / ".gen_durable")
    assert list(shared.iterdir()) == []


def test_the_server_sees_no_secret_of_the_process_that_starts_it(
    data_directory: EmbeddedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither Postgres nor the supervisor, nor what Postgres starts."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    with embedded.start(data_directory.directory) as server:
        data_directory.query(server.dsn, "create table seen (line text)")
        data_directory.query(server.dsn, "copy seen from program 'env'")
        shown = "\n".join(str(line) for (line,) in data_directory.query(server.dsn, "select line from seen"))
        assert f"PATH={os.environ['PATH']}" in shown.splitlines()
        for pid in (data_directory.postmaster(), *data_directory.supervisors()):
            shown += Path(f"/proc/{pid}/environ").read_text()
        found = {name for name, value in SECRETS.items() if name in shown or value in shown}
        assert found == set()
        variables = {line.partition("=")[0] for line in shown.replace("\0", "\n").splitlines()}
        allowed = {"HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "TMPDIR", "TZ"}
        of_the_shell = {"OLDPWD", "PWD", "SHLVL", "_"}
        unexpected = {name for name in variables if not name.startswith(("LC_", "PG"))} - allowed - of_the_shell
        assert unexpected == set(), f"of {sorted(os.environ)}"
