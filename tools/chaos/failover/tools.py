"""What a cluster is made of: Postgres, etcd and Patroni.

In: a directory that is thrown away. Out: programs that run. Postgres is Debian's, installed with apt-get when it is
missing, which needs root. etcd is only unpacked, and Patroni put into the directory: neither is left behind.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BIN = Path("/usr/lib/postgresql/15/bin")
SERVER_USER = "postgres"
PATRONI = ("patroni[etcd3]==4.1.5", "psycopg[binary]==3.3.8")


@dataclass(frozen=True)
class Tools:
    """The programs, and the account that runs them; `None` is that of this process."""

    python: str
    patroni: Path
    etcd: Path
    postgres: Path
    account: pwd.struct_passwd | None

    def start(self, command: list[str | Path], log: Path, **env: str) -> subprocess.Popen[bytes]:
        """Start a program for good, in a session of its own."""
        with log.open("ab") as out:
            return subprocess.Popen(
                command,
                user=self.account.pw_uid if self.account else None,
                group=self.account.pw_gid if self.account else None,
                extra_groups=[] if self.account else None,
                env={"PATH": f"{self.postgres}:{os.defpath}", "LC_ALL": "C.UTF-8", **env},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def own(self, path: Path) -> None:
        """Give a path to the account."""
        if self.account is not None:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)


def gather(home: Path) -> Tools:
    """Have everything there, or leave with the reason."""
    if not (BIN / "postgres").exists():
        if os.geteuid() != 0:
            sys.exit(f"{BIN}/postgres is missing. Install postgresql-15, or run this as root to have it installed.")
        _apt("update")
        _apt("install", "-y", "--no-install-recommends", "postgresql-15")
    account = pwd.getpwnam(SERVER_USER) if os.geteuid() == 0 else None
    python = _python(account)
    return Tools(python, _patroni(python, home / "patroni"), _etcd(home / "etcd-server"), BIN, account)


def _python(account: pwd.struct_passwd | None) -> str:
    """An interpreter that the account can run: this one may be in a closed home directory."""
    for python in (sys.executable, "/usr/bin/python3"):
        where = Path(python).resolve()
        if account is None or (where.exists() and all(p.stat().st_mode & 0o001 for p in (where, *where.parents))):
            return python
    sys.exit(f"there is no Python that the account {SERVER_USER!r} can run: install python3")


def _patroni(python: str, place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--target", place, *PATRONI], check=False)
    if done.returncode != 0:
        sys.exit("Patroni could not be fetched with pip; its words are above.")
    return place


def _etcd(place: Path) -> Path:
    if (found := shutil.which("etcd")) is not None:
        return Path(found)
    if shutil.which("apt-get") is None:
        sys.exit("there is no etcd, and no apt-get to fetch it with: put etcd on the PATH")
    place.mkdir()
    _apt("download", "etcd-server", cwd=place)
    (package,) = place.glob("*.deb")
    subprocess.run(["dpkg", "-x", package, place], check=True)
    return place / "usr" / "bin" / "etcd"


def _apt(*arguments: str, cwd: Path | None = None) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", "-qq", *arguments], env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stderr.decode()}\napt-get {arguments[0]} failed; its words are above.")
