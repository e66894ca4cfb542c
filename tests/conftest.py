"""What every test has: a real Postgres, and a schema of its own that the doctor looks at in the end.

GEN_DURABLE_TEST_DSN names a server to use (`make test PG=15` does); without it the embedded one is started. With
GEN_DURABLE_TEST_POOLED (`make test POOLER=1`) the engine reaches it through PgBouncer.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support import type_cache
from tests.support.forks import ForkServer
from tests.support.length import LONG
from tests.support.schemas import Schemas

from gen_durable.pg.migrate import library_schema_version
from gen_durable.store import sql_files
from gen_durable.store.schema import Schema

pytest_plugins = ["tests.support.background_errors"]
type_cache.install()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests to `make test-long`. The longest of the others come first: none should run alone in the end."""
    if not LONG:
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
    items.sort(key=lambda item: ("tools" not in item.path.parts, item.get_closest_marker("slow") is None))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without Python's garbage collector: all tests stay, and to look at them takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner() as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session", autouse=True)
def _pooler() -> None:
    """With a pooler, here and in the processes that tests start: those find it as their `sitecustomize`."""
    if "GEN_DURABLE_TEST_POOLED" not in os.environ:
        return
    from tests.support.pooled import sitecustomize

    path = [str(Path(sitecustomize.__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))


@pytest.fixture(autouse=True)
def _direct(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that are marked `direct` go past the pooler."""
    if request.node.get_closest_marker("direct") is not None:
        monkeypatch.delenv("GEN_DURABLE_TEST_POOLED", raising=False)


@pytest.fixture(scope="session")
def dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server under test."""
    given = os.environ.get("GEN_DURABLE_TEST_DSN")
    if given:
        yield given
        return
    from gen_durable.embedded import release, start

    root: Path = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # one server for all of xdist's processes
    server = start(root / "server")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        # No test takes the machine's power away, so nothing here needs the disk. Tests that kill Postgres have servers
        # of their own.
        connection.execute("alter system set fsync = off")
        connection.execute("select pg_reload_conf()")
    yield server.dsn
    release(server)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One process that forks for the programs of all tests."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def pooled(dsn: str) -> Iterator[str]:
    """A DSN that leads to the server through PgBouncer in transaction mode, over five server connections."""
    script = Path(__file__).parents[1] / "scripts" / "pgbouncer"
    with subprocess.Popen(
        [sys.executable, str(script), dsn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = process.stdout.readline().strip()
        assert found, "scripts/pgbouncer did not start; its words are above"
        yield found
        process.stdin.close()


@pytest.fixture(scope="session")
def schemas(dsn: str) -> Iterator[Schemas]:
    """The migrated schemas of this process."""
    made = Schemas(dsn)
    yield made
    made.close()


@pytest.fixture
def later_version(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Add a migration to the package, as a later release does. Returns its version."""
    if "schema" in request.fixturenames:
        request.getfixturevalue("schema")  # it must be made before, by the present release
    sql = Path(str(sql_files._SQL.joinpath("migrations"))).parent
    shutil.copytree(sql, tmp_path / "sql")
    version = library_schema_version(Schema()) + 1
    (tmp_path / f"sql/migrations/{version:04}_later.sql").write_text("create table @schema.later (id int);\n")
    monkeypatch.setattr(sql_files, "_SQL", tmp_path / "sql")
    return version


@pytest.fixture
def bare_schema(schemas: Schemas) -> Iterator[str]:
    """A schema name that does not exist yet, dropped in the end."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    yield name
    schemas.drop(name)


@pytest.fixture
def schema(schemas: Schemas, request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated schema. The doctor must find it clean in the end, unless the test is marked `dirty`."""
    name = schemas.take()
    yield name
    found = {} if request.node.get_closest_marker("dirty") is not None else schemas.diagnose(name)
    schemas.give_back(name)
    assert not found, f"the doctor found: {found}"
