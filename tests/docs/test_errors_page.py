"""docs/howto/errors.md: its snippets run, and its numbers are those of the code."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gen_durable import RetryPolicy, backoff
from gen_durable.engine import step_journal
from gen_durable.graph import graph
from gen_durable.machines import ON_ERROR_TIMEOUT
from gen_durable.testing import HarnessFactory
from gen_durable.worker_options import WorkerOptions

PAGE = (Path(__file__).parents[2] / "docs/howto/errors.md").read_text("utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The Python blocks of the page as one module."""
    source = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    path = tmp_path_factory.mktemp("page") / "errors_page.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("errors_page", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["errors_page"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["errors_page"]


def make_bank(page: Any, error: Exception, failures: int = 1000) -> Any:
    """A bank whose first charges fail."""

    class Broken(page.Bank):  # type: ignore[misc]
        def __init__(self) -> None:
            self.charges = 0
            self.refunds: list[int] = []

        async def charge(self, order: int, amount: int) -> str:
            self.charges += 1
            if self.charges <= failures:
                raise error
            return str(await super().charge(order, amount))

        async def refund(self, order: int) -> None:
            self.refunds.append(order)

    return Broken()


LOST = ConnectionError("no line")


@pytest.mark.parametrize(
    ("name", "error", "charges", "ending"),
    [
        ("Plain.pay", LOST, 20, "ConnectionError: no line (attempt 20 of 20)"),
        ("Checkout.pay", LOST, 3, "ConnectionError: no line (attempt 3 of 3)"),
        ("Checkout.pay", ValueError("wrong"), 1, "ValueError: wrong"),
        ("Booking.reserve", LOST, 3, "the hotel did not answer; refunded"),
        ("Careful.pay", LOST, 3, "ConnectionError: no line"),
        ("Careful.pay", ValueError("wrong"), 1, "ValueError: wrong"),
        ("Paying.pay", LOST, 60, "ConnectionError: no line (attempt 20 of 20)"),
    ],
)
async def test_how_the_machines_of_the_page_fail(
    durable_harness: HarnessFactory, page: Any, *, name: str, error: Exception, charges: int, ending: str
) -> None:
    machine, step = name.split(".")
    bank, cls = make_bank(page, error), getattr(page, machine)
    async with durable_harness(machines=[cls(bank)]) as harness:
        handle = await harness.app.insert(getattr(cls, step), page.Order(7, 100))
        await harness.drain()
        await harness.assert_failed(handle, f"^{re.escape(ending)}$")
    assert bank.charges == charges
    assert bank.refunds == ([7] if machine in ("Booking", "Careful") else [])


@pytest.mark.parametrize("machine", ["Plain", "Checkout", "Careful", "Paying"])
async def test_how_the_machines_of_the_page_succeed(durable_harness: HarnessFactory, page: Any, machine: str) -> None:
    bank, cls = make_bank(page, LOST, failures=2), getattr(page, machine)
    async with durable_harness(machines=[cls(bank)]) as harness:
        handle = await harness.app.insert(cls.pay, page.Order(7, 100))
        await harness.drain()
        await harness.assert_done(handle, "receipt 7")


async def test_the_jobs_of_the_page(durable_harness: HarnessFactory, page: Any) -> None:
    async with durable_harness(jobs=[page.charge, page.sync_stock, page.send_once]) as harness:
        nothing = await harness.app.insert(page.charge, page.Order(7, 0))
        something = await harness.app.insert(page.charge, page.Order(7, 5))
        await harness.drain()
        await harness.assert_failed(nothing, "^aborted: there is nothing to charge$")
        await harness.assert_done(something, "charged 5")


def test_the_graph_draws_then(page: Any) -> None:
    assert "error after 3 attempts -> refund" in graph(page.Booking).text()


def test_the_defaults_on_the_page() -> None:
    """The numbers in its sentences and tables are those of the code."""
    policy = RetryPolicy()
    pauses = [backoff(n, jitter=0).total_seconds() for n in range(19)]
    assert (policy.attempts, pauses[0], max(pauses)) == (20, 1, 15 * 60)
    assert "20 attempts in about 2 h 40 min" in PAGE
    assert "2 h 32 min to 2 h 48 min" in PAGE
    assert 152 * 60 <= sum(pauses) <= sum(pauses) * 1.1 <= 168 * 60
    assert abs(sum(pauses) * 1.05 - 160 * 60) < 60
    assert ON_ERROR_TIMEOUT == 60
    assert (step_journal.FIRST_PAUSE.total_seconds(), step_journal.LONGEST_PAUSE.total_seconds()) == (0.1, 30)
    options = WorkerOptions()
    assert (options.cancel_timeout.total_seconds(), options.max_crashes) == (5, None)
    assert (options.lease_ttl.total_seconds(), (options.reap_interval or options.lease_ttl).total_seconds()) == (15, 5)
