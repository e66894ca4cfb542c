"""A test fails when a task or a thread in its background dies, although the test itself saw nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import asyncio, gc, threading
import pytest

async def die():
    raise ValueError("unseen")

class Part:
    def start(self):
        self.task = asyncio.get_running_loop().create_task(self.run())
    async def run(self):
        self.me = self
        raise ValueError("unseen")

def test_task():
    async def main():
        task = asyncio.get_running_loop().create_task(die())
        await asyncio.sleep(0.01)
    asyncio.run(main())

def test_task_in_a_cycle():
    async def main():
        Part().start()
        await asyncio.sleep(0.01)
    asyncio.run(main())

def test_callback():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.01)
    asyncio.run(main())

def test_loop_in_a_thread():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.01)
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()

def test_thread():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

def test_finalizer():
    class Fragile:
        def __del__(self):
            raise ValueError("unseen")
    Fragile()

@pytest.mark.background_errors
def test_expected(background_errors):
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.01)
    asyncio.run(main())
    assert "ZeroDivisionError" in background_errors[0]

def test_healthy():
    asyncio.run(asyncio.sleep(0))
"""


def test_each_death_in_the_background_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / "test_deaths.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\nmarkers = background_errors\n")
    plugins = ["-p", "no:cacheprovider", "-p", "tests.support.background_errors"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", *plugins, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    noticed = {name for name in ALL if f"::{name} - " in done.stdout}
    assert noticed == ALL - {"test_expected", "test_healthy"}, done.stdout


ALL = {line.split()[1].partition("(")[0] for line in TESTS.splitlines() if line.startswith("def test_")}
