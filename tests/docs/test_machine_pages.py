"""The tables of "Machines and outcomes", "Children and joins" and "Jobs" are complete, and true of rows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.support.pages import DOCS

from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)  # fmt: skip
from gen_durable.engine.claim_table import USUAL_POSTPONE_DELAY
from gen_durable.machines import ON_ERROR_TIMEOUT
from gen_durable.outcomes import OUTCOMES as ALL_OUTCOMES
from gen_durable.testing import HarnessFactory
from gen_durable.worker_options import WorkerOptions

go, other = Signal("go"), Signal("other")


def rows_of(name: str) -> list[list[str]]:
    """The cells of all rows of the tables of a page."""
    text = (DOCS / "howto" / f"{name}.md").read_text("utf-8")
    return [
        [cell.strip() for cell in re.split(r" \| ", line.strip("| "))] for line in re.findall(r"^\|.*$", text, re.M)
    ]


def names_in_tables(name: str) -> set[str]:
    return {word for cells in rows_of(name) for word in re.findall(r"`(\w+)`", cells[0])}


@pytest.mark.parametrize(
    ("page", "function"),
    [
        ("machines", Machine.__init_subclass__),
        ("machines", step),
        ("machines", Next.__init__),
        ("children", ScheduleChildren.__init__),
        ("jobs", job),
    ],
)
def test_each_option_has_its_line(page: str, function: Callable[..., Any]) -> None:
    """Each keyword of the call is in the first column of a table; `then` and `state` are no options of a join."""
    parameters = inspect.signature(function).parameters.values()
    options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - {"then", "state"}
    assert options
    assert options - names_in_tables(page) == set()


def test_the_defaults_of_the_pages() -> None:
    """The numbers of the pages are those of the code."""
    machines = (DOCS / "howto/machines.md").read_text()
    options = WorkerOptions()
    assert (options.run_ahead_time, options.run_ahead_steps) == (timedelta(milliseconds=100), 32)
    assert "for up to 100 ms and 32 steps" in machines
    assert ["`on_error_timeout`", f"{ON_ERROR_TIMEOUT:g} s"] in [cells[:2] for cells in rows_of("machines")]
    for page, function in (("machines", Machine.__init_subclass__), ("jobs", job)):
        keep = inspect.signature(function).parameters["history_keep"].default
        assert ["`history_keep`", str(keep)] in [cells[:2] for cells in rows_of(page)]
    versions = (DOCS / "howto/versions.md").read_text().replace("\n", " ")
    assert (
        f"again after {USUAL_POSTPONE_DELAY.first:g} seconds, then after pauses that double up to 10 minutes"
        in versions
    )
    assert USUAL_POSTPONE_DELAY.longest == 600


class Outcomes(Machine):
    """Its step `act` is woken by a signal, runs twice, and returns the outcome that its state names."""

    @step
    async def start(self, outcome: str, ctx: Context) -> Outcome[int]:
        return Await(go, then=self.act, state=outcome)

    @step
    async def act(self, outcome: str, ctx: Context) -> Outcome[int]:
        if ctx.attempt == 0:
            return Retry(outcome)
        outcomes: dict[str, Outcome[int]] = {
            "Next(step, state)": Next(self.last, outcome, delay=60),
            "Retry(state)": Retry(outcome, delay=60),
            "Await(signal, then=step, state=state)": Await(other, then=self.last, state=outcome),
            "Await(signal, state=state)": Await(other, state=outcome),
            "ScheduleChildren(children, then=step, state=state)": ScheduleChildren(
                [Start(Outcomes.last, "child", delay=60)], then=self.last, state=outcome
            ),
            "Done(result)": Done(1),
            "Fail(reason)": Fail("why"),
        }
        return outcomes[outcome]

    @step
    async def last(self, outcome: str, ctx: Context) -> Outcome[int]:
        return Done(2)


async def read_row(harness: HarnessFactory, instance: int) -> tuple[str, int, int, str]:
    """Status, attempt, visit and step of a row."""
    connection = await asyncpg.connect(harness.dsn)
    try:
        row = await connection.fetchrow(
            f"select status::text, attempt, visit, step from {harness.schema}.instances where id = $1", instance
        )
    finally:
        await connection.close()
    assert row is not None
    return tuple(row)


OUTCOMES = [cells for cells in rows_of("machines") if cells[0].startswith("`") and len(cells) == 5]


@pytest.mark.parametrize("cells", OUTCOMES, ids=lambda cells: cells[0])
async def test_what_an_outcome_does_to_the_row(durable_harness: HarnessFactory, cells: list[str]) -> None:
    """Each line of the table of outcomes, for a step in its attempt 1 that was handed one signal."""
    outcome, becomes, attempt, visit, signals = cells
    async with durable_harness(machines=[Outcomes()]) as harness:
        handle = await harness.app.insert(Outcomes.start, outcome.strip("`"))
        await handle.signal(go)
        await harness.run_one(handle)
        await harness.run_one(handle)
        _, attempt_before, visit_before, step_before = await read_row(durable_harness, handle.id)
        assert (attempt_before, step_before) == (1, "act")
        await harness.run_one(handle)
        status, attempt_after, visit_after, step_after = await read_row(durable_harness, handle.id)
        inbox = (await harness.snapshot(handle)).inbox
    assert becomes.split("`")[1] == status
    assert ("that step" in becomes) == (step_after == "last")
    assert {"0": 0, "+ 1": 2, "unchanged": 1}[attempt] == attempt_after
    assert visit == ("the same" if visit_after == visit_before else "new")
    assert signals.split(",")[0] == ("kept" if inbox else "consumed")


def test_the_table_has_all_outcomes() -> None:
    assert {re.split(r"\W", cells[0].strip("`"))[0] for cells in OUTCOMES} == {kind.__name__ for kind in ALL_OUTCOMES}
    assert len(OUTCOMES) == 7
