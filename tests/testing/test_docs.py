"""Every snippet of docs/howto/testing.md runs, and what it says is printed is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "testing.md"
RUNS_ASYNC_TESTS = """
import asyncio, inspect, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        names = inspect.signature(pyfuncitem.obj).parameters
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True
"""
A_WRONG_CLAIM = """
async def test_a_wrong_claim(durable_harness):
    async with durable_harness(machines=[Checkout(Stripe())]) as harness:
        handle = await harness.app.insert(Checkout.start, Order(42), unique_key="order:42")
        await harness.drain()
        try:
            await harness.assert_done(handle)
        except AssertionError as error:
            print(f"AssertionError: {error}")
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.direct(reason="starts pytest, which is to import the plugin by itself")
def test_the_page_is_true(tmp_path: Path, gen_durable_dsn: str) -> None:
    (tmp_path / "conftest.py").write_text(RUNS_ASYNC_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    source = "\n\n".join([*blocks("python"), A_WRONG_CLAIM])
    (tmp_path / "test_page.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=os.environ | {"GEN_DURABLE_TEST_DSN": gen_durable_dsn},
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    tests = len(re.findall(r"^ *(?:async )?def test_", source, re.MULTILINE))
    assert tests > 10
    assert f" {tests} passed" in done.stdout, done.stdout + done.stderr
    printed = blocks("text")
    assert len(printed) == 3
    for text in printed:
        assert text in done.stdout
