"""The account that runs Postgres if this process is root."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gen_durable.embedded import postgres_account
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.postgres_account import PostgresAccount

MADE = PostgresAccount(811, 812)
NOBODY = PostgresAccount(65534, 65534)


def write_program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobody: PostgresAccount) -> Path:
    """An empty directory in place of PATH, on a machine whose only account is `nobody`. A program that puts a file
    `made` there has created the account.
    """
    assert nobody == NOBODY
    directory = tmp_path / "commands"
    directory.mkdir()

    def find(name: str) -> SimpleNamespace:
        if name == "nobody":
            return SimpleNamespace(pw_uid=NOBODY.uid, pw_gid=NOBODY.gid)
        if name == "gen_durable" and (directory / "made").exists():
            return SimpleNamespace(pw_uid=MADE.uid, pw_gid=MADE.gid)
        raise KeyError(name)

    monkeypatch.setattr(postgres_account, "pwd", SimpleNamespace(getpwnam=find))
    monkeypatch.setenv("PATH", str(directory))
    return directory


def creating(directory: Path, name: str) -> None:
    """A command that creates the account, talks, and reports a failure as if another process had been faster."""
    write_program(directory / name, f'echo "$@" >> {directory / "made"}\necho created\necho exists >&2\nexit 9')


def test_an_account_that_exists_is_used(prepared: Layout, commands: Path) -> None:
    """Nothing is created a second time."""
    (commands / "made").touch()
    creating(commands, "useradd")
    assert postgres_account.find_or_create_account(prepared) == MADE
    assert (commands / "made").read_text() == ""


@pytest.mark.parametrize("name", ["useradd", "adduser"])
def test_a_missing_account_is_created(
    prepared: Layout, commands: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the command that the system has; what it says does not reach the log, and its exit code does not matter."""
    creating(commands, name)
    assert postgres_account.find_or_create_account(prepared) == MADE
    (said,) = (commands / "made").read_text().splitlines()
    shell = "--shell" if name == "useradd" else "-s"
    assert said.endswith(f"/nonexistent {shell} /usr/sbin/nologin gen_durable")
    assert capfd.readouterr() == ("", "")


def test_an_account_is_created_once(prepared: Layout, commands: Path) -> None:
    """The second command is for systems on which the first does not create it."""
    creating(commands, "useradd")
    creating(commands, "adduser")
    assert postgres_account.find_or_create_account(prepared) == MADE
    assert len((commands / "made").read_text().splitlines()) == 1
    (commands / "made").unlink()
    write_program(commands / "useradd", "exit 1")
    assert postgres_account.find_or_create_account(prepared) == MADE
    assert len((commands / "made").read_text().splitlines()) == 1


def test_nobody_is_used_where_no_account_can_be_created(prepared: Layout, commands: Path) -> None:
    """A read-only /etc, or a system without such commands."""
    assert postgres_account.find_or_create_account(prepared) == NOBODY
    write_program(commands / "useradd", "exit 1")
    assert postgres_account.find_or_create_account(prepared) == NOBODY


def test_data_is_run_by_its_owner(prepared: Layout, commands: Path) -> None:
    """Data of root is run by the account for new data."""
    (commands / "made").touch()
    assert postgres_account.find_or_create_account(prepared) == MADE
    prepared.data.mkdir()
    assert postgres_account.find_or_create_account(prepared) == MADE
    os.chown(prepared.data, 3, 4)
    assert postgres_account.find_or_create_account(prepared) == PostgresAccount(3, 4)


def test_without_root_no_account_is_chosen(prepared: Layout, commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process runs Postgres itself."""
    (commands / "made").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert postgres_account.find_or_create_account(prepared) is None


def test_an_account_can_run_a_program_that_starts(
    open_air: Path, nobody: PostgresAccount, capfd: pytest.CaptureFixture[str]
) -> None:
    """A program that fails, say for want of a library, or is closed to the account, cannot be run."""
    assert nobody.can_run_program(write_program(open_air / "runs", "echo 1.0; echo strange >&2"))
    assert not nobody.can_run_program(write_program(open_air / "fails", "exit 1"))
    assert not nobody.can_run_program(write_program(open_air / "closed", "exit 0", 0o700))
    assert capfd.readouterr() == ("", "")


def test_an_account_has_none_of_the_groups_of_root(open_air: Path, nobody: PostgresAccount, group_of_root: int) -> None:
    """Neither root's own group nor its other ones."""
    for group in (os.getegid(), group_of_root):
        program = write_program(open_air / f"of_{group}", "exit 0", 0o750)
        os.chown(program, 0, group)
        assert not nobody.can_run_program(program)


def test_an_account_sees_none_of_the_secrets_of_root(
    open_air: Path, nobody: PostgresAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes can be inspected by others of the account."""
    monkeypatch.setenv("SECRET_TOKEN", "canary")
    program = write_program(open_air / "looks", '[ -z "$SECRET_TOKEN" ] && [ -n "$PATH" ]')
    assert nobody.can_run_program(program)
