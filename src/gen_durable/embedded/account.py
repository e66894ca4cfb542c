"""As whom Postgres runs, when we are root.

In: a layout. Out: an `Account`, or None when we are not root and Postgres simply runs as us. Data that exists is run
by whoever owns it, so a directory keeps working when root and its owner take turns, and when a new container numbers
its users differently. New data in a directory of root's belongs to a system account `gen_durable`, which is made on
first use; where accounts cannot be made (a read-only /etc), to `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gen_durable.embedded.layout import Layout

_NAME = "gen_durable"


@dataclass(frozen=True, slots=True)
class Account:
    """An unprivileged user and its group, by number: the number may have no name here."""

    uid: int
    gid: int

    def can_run(self, program: Path) -> bool:
        """Whether the account can reach, load and start the program."""
        try:
            done = subprocess.run(  # noqa: S603  # a program of the wheel
                [program, "--version"], user=self.uid, group=self.gid, extra_groups=[], capture_output=True, check=False
            )
        except PermissionError:
            return False
        return done.returncode == 0


def choose(place: Layout) -> Account | None:
    """The account for the data of `place`."""
    if os.geteuid() != 0:
        return None
    for path in (place.data, place.directory):
        if path.exists() and (owner := path.stat()).st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    return _named(_NAME) or _made() or _named("nobody")


def _named(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_uid, entry.pw_gid)


def _made() -> Account | None:
    shell = "/usr/sbin/nologin"
    commands = (
        ["useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", shell, _NAME],
        ["adduser", "-S", "-D", "-H", "-h", "/nonexistent", "-s", shell, _NAME],  # Alpine has no useradd
    )
    for command in commands:
        if shutil.which(command[0]) is not None:
            subprocess.run(command, check=False, capture_output=True)  # noqa: S603  # fixed arguments
            # Judged by the result, not the exit code: another supervisor may have made it a moment ago.
            if (account := _named(_NAME)) is not None:
                return account
    return None
