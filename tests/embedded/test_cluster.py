"""How the programs of a cluster are started, seen by scripts in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.embedded import EmbeddedDirectory, write_programs

from gen_durable.embedded import file_locks
from gen_durable.embedded.cluster import Cluster
from gen_durable.embedded.layout import Layout
from gen_durable.embedded.postgres_account import PostgresAccount

SEEN = """
echo "$@" > arguments
env > environment
{ umask; id -u; id -g; id -G; } > process
pwd -P > seen.new
mv seen.new seen
exec sleep 60
"""


def launch(cluster: Cluster) -> dict[str, list[str]]:
    """The lines that the script in place of Postgres wrote; it held `server.lock` while it ran."""
    lock = file_locks.try_lock_exclusively(cluster.layout.server_lock)
    assert lock is not None
    child = cluster.start_postmaster(lock)
    try:
        lock.close()
        EmbeddedDirectory.until((cluster.layout.data / "seen").exists, "the script runs")
        assert not file_locks.is_unlocked(cluster.layout.server_lock)
    finally:
        child.kill()
        child.wait()
    EmbeddedDirectory.until(lambda: file_locks.is_unlocked(cluster.layout.server_lock), "the lock is free")
    return {
        name: (cluster.layout.data / name).read_text().splitlines()
        for name in ("arguments", "environment", "process", "seen")
    }


def test_a_server_of_this_account_gets_its_directory_by_name(
    prepared: Layout, open_air: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the few variables that its programs need, none that would configure Postgres, and no secret."""
    for name in (
        "PGDATA",
        "PGPORT",
        "LC_CTYPE",
        "LANG",
        "LANGUAGE",
        "TZ",
        "DATABASE_URL",
        "SECRET_TOKEN",
        "LD_PRELOAD_KEY",
    ):
        monkeypatch.setenv(name, "strange")
    for name in ("HOME", "LD_LIBRARY_PATH", "TMPDIR"):
        monkeypatch.setenv(name, "/kept")
    prepared.data.mkdir()
    seen = launch(Cluster(prepared, write_programs(open_air / "wheel", SEEN), None))
    (arguments,) = seen["arguments"]
    assert arguments.endswith(f" -D {prepared.data}")
    assert "-c listen_addresses= -c logging_collector=off -c port=5432" in arguments
    assert seen["seen"] == [str(prepared.data)]
    assert seen["process"][:3] == ["0077", str(os.geteuid()), str(os.getegid())]
    assert not [line for line in seen["environment"] if line.endswith("=strange")]
    assert {"LC_ALL=C", "HOME=/kept", "LD_LIBRARY_PATH=/kept", "TMPDIR=/kept"} <= set(seen["environment"])
    assert f"PATH={os.environ['PATH']}" in seen["environment"]


@pytest.mark.usefixtures("group_of_root")
def test_a_server_of_another_account_gets_its_directory_without_a_name(
    prepared: Layout, open_air: Path, nobody: PostgresAccount
) -> None:
    """The account may be unable to walk the path. It has none of root's groups."""
    prepared.data.mkdir()
    os.chown(prepared.data, nobody.uid, nobody.gid)
    seen = launch(Cluster(prepared, write_programs(open_air / "wheel", SEEN), nobody))
    assert seen["arguments"][0].endswith(" -D /proc/self/cwd")
    assert seen["process"] == ["0077", str(nobody.uid), str(nobody.gid), str(nobody.gid)]


def test_a_cluster_is_created_in_a_closed_directory(prepared: Layout, open_air: Path, nobody: PostgresAccount) -> None:
    """The account's own, without what a killed attempt left."""
    prepared.initdb_directory.mkdir()
    (prepared.initdb_directory / "leftover").touch()
    cluster = Cluster(prepared, write_programs(open_air / "wheel", ""), nobody)
    lock = file_locks.try_lock_exclusively(prepared.server_lock)
    assert lock is not None
    assert not cluster.exists()
    cluster.create(lock)
    lock.close()
    assert cluster.exists()
    assert [path.name for path in prepared.data.iterdir()] == ["PG_VERSION"]
    assert prepared.data.stat().st_mode & 0o777 == 0o700
    assert prepared.data.stat().st_uid == nobody.uid
    assert not prepared.initdb_directory.exists()


def test_an_initdb_that_fails_makes_no_cluster(prepared: Layout, open_air: Path) -> None:
    """What it has written is not taken for a data directory."""
    cluster = Cluster(prepared, write_programs(open_air / "wheel", "", "touch PG_VERSION; exit 3"), None)
    lock = file_locks.try_lock_exclusively(prepared.server_lock)
    assert lock is not None
    with pytest.raises(ChildProcessError, match="initdb ended with status 3"):
        cluster.create(lock)
    lock.close()
    assert not cluster.exists()
    assert not prepared.data.exists()


def test_the_owner_of_another_file_is_not_changed(
    prepared: Layout, open_air: Path, nobody: PostgresAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a directory above replaces the new data by a symlink in that moment."""
    victim = open_air / "victim"
    victim.touch()
    real = os.chown

    def replace_and_change(path: Path, uid: int, gid: int, **options: bool) -> None:
        path.rmdir()
        path.symlink_to(victim)
        real(path, uid, gid, **options)

    monkeypatch.setattr(os, "chown", replace_and_change)
    lock = file_locks.try_lock_exclusively(prepared.server_lock)
    assert lock is not None
    with pytest.raises(OSError, match=r"victim|pgdata\.new"):
        Cluster(prepared, write_programs(open_air / "wheel", ""), nobody).create(lock)
    lock.close()
    assert victim.stat().st_uid == 0
