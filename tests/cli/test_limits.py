"""`gen-durable limits`: see how full limits are, change them while everything runs, remove them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Concurrency, Durable, Rate, job
from gen_durable.core.services import services_of
from gen_durable.limits import LimitState

Limits = Callable[..., Any]


@job
async def some(n: int) -> int:
    return n


@pytest.fixture
def limits(run: Any, dsn: str, schema: str) -> Limits:
    """Run `gen-durable limits ...` on this test's schema."""
    return lambda *arguments: run("limits", *arguments, "--dsn", dsn, "--schema", schema)


async def states(dsn: str, schema: str) -> list[LimitState]:
    async with Durable(dsn, schema=schema) as app:
        return await app.limits()


def test_without_limits_it_says_how_to_make_one(limits: Limits) -> None:
    shown = limits()
    assert shown.returncode == 0
    assert shown.stdout == ""
    assert "there are no limits" in shown.stderr
    assert json.loads(limits("--json").stdout) == []


async def test_set_makes_and_changes(limits: Limits, dsn: str, schema: str) -> None:
    """It says whether anything changed; a change holds for all from then on."""
    assert limits("set", "stripe", "--concurrency", "10").stderr == "limit stripe: set\n"
    assert limits("set", "stripe", "--concurrency", "10").stderr == "limit stripe: unchanged\n"
    assert limits("set", "stripe", "--concurrency", "3").stderr == "limit stripe: set\n"
    assert limits("set", "mail", "--rate", "100/m", "--burst", "20").returncode == 0
    found = {state.name: (state.kind, state.slots, state.period, state.burst) for state in await states(dsn, schema)}
    assert found == {"mail": ("rate", None, 0.6, 20), "stripe": ("concurrency", 3, None, None)}


@pytest.mark.parametrize(("text", "period"), [("5/30s", 6), ("1/d", 86_400), ("10/500ms", 0.05)])
async def test_spans(limits: Limits, dsn: str, schema: str, text: str, period: float) -> None:
    """A rate is written as a number and a span of time."""
    done = limits("set", "r", "--rate", text)
    assert done.returncode == 0, done.stderr
    (state,) = await states(dsn, schema)
    assert state.period == pytest.approx(period)
    assert state.burst == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give either --concurrency or --rate"),
        (("--concurrency", "1", "--rate", "1/s"), "Give either --concurrency or --rate"),
        (("--concurrency", "0"), "--concurrency"),
        (("--rate", "fast"), "is not of the form N/DURATION"),
        (("--rate", "10/x"), "is not a duration"),
        (("--rate", "0/s"), "Rate(amount)"),
    ],
)
async def test_what_cannot_be_is_exit_code_2(
    limits: Limits, dsn: str, schema: str, arguments: tuple[str, ...], words: str
) -> None:
    """One line, no traceback, and nothing is set."""
    done = limits("set", "l", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert await states(dsn, schema) == []


async def test_shown_as_a_table_and_as_json(limits: Limits, dsn: str, schema: str) -> None:
    """Each partition has a line: what is taken, how many wait, when the next token is there."""
    async with Durable(dsn, schema=schema) as app:
        await app.set_limit("slots", Concurrency(2))
        await app.set_limit("tokens", Rate(1, timedelta(hours=2), burst=2))
        for tenant in ("a", "a", "a", "b"):
            await app.insert(some, 1, limit=("slots", tenant))
        for _ in range(5):
            await app.insert(some, 1, limit="tokens")
        await services_of(app).pool.run(services_of(app).statements.pick("w", {"default": 100}, ["some/1/run"], 600))
    shown = limits()
    assert shown.returncode == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.stdout.splitlines()}
    assert lines["slots/a"] == "2 at a time 2 of 2 1"
    assert lines["slots/b"] == "2 at a time 1 of 2 0"
    assert lines["tokens"] == "one every 2 h, burst 2 2 of 2 3 in 2 h"
    told = {state["key"]: state for state in json.loads(limits("--json").stdout)}
    assert told["slots/a"] == {
        "name": "slots", "kind": "concurrency", "slots": 2, "period": None, "burst": None, "key": "slots/a",
        "taken": 2.0, "waiting": 1, "next_token": None,
    }  # fmt: skip
    assert told["tokens"]["waiting"] == 3
    assert told["tokens"]["next_token"] == pytest.approx(7200, abs=60)


async def test_rm_removes(limits: Limits, dsn: str, schema: str) -> None:
    """One that is not there is exit code 1."""
    limits("set", "l", "--concurrency", "1")
    done = limits("rm", "l")
    assert (done.returncode, done.stderr) == (0, "limit l: removed\n")
    assert await states(dsn, schema) == []
    done = limits("rm", "l")
    assert done.returncode == 1
    assert done.stderr == "gen-durable: There is no limit 'l'. `gen-durable limits` lists them.\n"


async def test_the_other_kind_is_refused(limits: Limits, dsn: str, schema: str) -> None:
    """A limit of concurrency does not become one of rate under the rows that name it."""
    limits("set", "l", "--concurrency", "1")
    done = limits("set", "l", "--rate", "1/s")
    assert done.returncode == 2
    assert "remove it before making it a rate limit" in done.stderr
    assert [state.kind for state in await states(dsn, schema)] == ["concurrency"]


def test_a_database_that_is_not_migrated_is_exit_code_2(run: Any, dsn: str, bare_schema: str) -> None:
    done = run("limits", "--dsn", dsn, "--schema", bare_schema)
    assert done.returncode == 2
    assert "gen-durable migrate" in done.stderr
