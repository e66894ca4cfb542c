"""Find or create the operating system account that runs Postgres, if this process is root.

Existing data is run by its owner, so a directory keeps working when a new container numbers its users differently. New
data belongs to a system account `gen_durable`, created on first use, or to `nobody` where accounts cannot be created
(a read-only /etc).
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gen_durable.embedded.environment import make_postgres_environment
from gen_durable.embedded.layout import Layout

_NAME = "gen_durable"


@dataclass(frozen=True, slots=True)
class PostgresAccount:
    """An unprivileged user and its group, by number: the number may have no name on this machine."""

    uid: int
    gid: int

    def can_run_program(self, program: Path) -> bool:
        """Whether the account can reach, load and start the program."""
        try:
            done = subprocess.run(  # noqa: S603  # a program of the wheel
                [program, "--version"],
                env=make_postgres_environment(),
                user=self.uid,
                group=self.gid,
                extra_groups=[],
                capture_output=True,
                check=False,
            )
        except PermissionError:
            return False
        return done.returncode == 0


def find_or_create_account(layout: Layout) -> PostgresAccount | None:
    """The account for the data of `layout`, or None if this process is not root and runs Postgres itself."""
    if os.geteuid() != 0:
        return None
    if layout.data.exists() and (owner := layout.data.lstat()).st_uid != 0:
        return PostgresAccount(owner.st_uid, owner.st_gid)
    return _find_account_by_name(_NAME) or _create_system_account() or _find_account_by_name("nobody")


def _find_account_by_name(name: str) -> PostgresAccount | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return PostgresAccount(entry.pw_uid, entry.pw_gid)


def _create_system_account() -> PostgresAccount | None:
    shell = "/usr/sbin/nologin"
    commands = (
        ["useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", shell, _NAME],
        ["adduser", "-S", "-D", "-H", "-h", "/nonexistent", "-s", shell, _NAME],  # Alpine has no useradd
    )
    for command in commands:
        if shutil.which(command[0]) is not None:
            subprocess.run(command, check=False, capture_output=True)  # noqa: S603  # fixed arguments
            # Look at the result, not the exit code: another supervisor may have created it a moment ago.
            if (account := _find_account_by_name(_NAME)) is not None:
                return account
    return None
