"""The hot calls, and the plans of the statements that run inside them.

auto_explain logs each nested statement with its plan and the rows that it has read; the session receives the log. The
plans are generic, as those of a worker that has called a function more than five times.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gen_durable import Context, Done, Machine, Outcome, Start, step
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, OutgoingSignal
from tools.plans.dataset import CLAIMED, FIRST_CLAIM

BATCH: Final = 100
KNOWN: Final = ["checkout/1/start", "checkout/1/collect", "checkout/1/ship"]
_SETTINGS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_level": "notice",
}
_COSTS: Final = re.compile(r"  \(cost=[^)]*\)")
_INDEX: Final = re.compile(r"using (\w+) on .*\(actual rows")  # not "never executed"


class Checkout(Machine, name="checkout"):
    """The machine of the rows; its steps never run."""

    @step
    async def start(self, order: Any, ctx: Context) -> Outcome[int]:
        return Done(1)


@dataclass(frozen=True, slots=True)
class Call:
    """A hot call: its function, what it does in this run, and the statement."""

    function: str
    description: str
    statement: Callable[[StatementBuilder], Statement[Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A statement inside a call: the first words of its text, and its plan."""

    text: str
    tree: str


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """A call with the plans of its statements on tables, and the indexes that they use."""

    call: Call
    plans: tuple[Plan, ...]

    @property
    def indexes(self) -> list[str]:
        return sorted({index for plan in self.plans for index in _INDEX.findall(plan.tree)})


def _commits(kind: str, **more: Any) -> Callable[[StatementBuilder], Statement[Any]]:
    def statement(calls: StatementBuilder) -> Statement[Any]:
        commits = [Commit(FIRST_CLAIM + n, 1, 0, kind, **more) for n in range(1, BATCH + 1)]
        for commit in commits:
            commit.ran_step, commit.began, commit.took = "start", 0.0, 0.0
        return calls.flush(commits, "worker", 0.0)

    return statement


CALLS: Final = (
    Call(
        "pick",
        f"claims {BATCH} rows of one queue",
        lambda calls: calls.pick("worker", {"default": BATCH}, KNOWN, 15),
    ),
    Call("flush", f"commits {BATCH} steps that keep their claims", _commits("continue", value='{"order": 2}')),
    Call("flush", f"commits {BATCH} ends", _commits("done", value="1")),
    Call(
        "insert",
        f"inserts {BATCH} instances with unique keys, all of them taken",
        lambda calls: calls.insert(
            [Start(Checkout.start, {}, unique_key=f"order:{n}") for n in range(1, BATCH + 1)], "existing"
        ),
    ),
    Call(
        "signal",
        "sends a signal to the holder of a key, and wakes it",
        lambda calls: calls.signal([OutgoingSignal(None, b"order:7", "payment", '{"amount": 7}', "evt-7")]),
    ),
    Call(
        "heartbeat",
        f"extends {BATCH} leases",
        lambda calls: calls.heartbeat([(FIRST_CLAIM + n, 1) for n in range(CLAIMED - BATCH + 1, CLAIMED + 1)], 15),
    ),
    Call("reap", f"takes back {BATCH} claims whose lease has expired", lambda calls: calls.reap(BATCH, None)),
    Call(
        "gc",
        f"deletes the {BATCH} oldest of the ended instances, with their history",
        lambda calls: calls.gc(60.0, 60.0, 60.0, BATCH),
    ),
)


async def explain_calls(dsn: str, schema: Schema) -> list[ExplainedCall]:
    """Run each call once, and roll it back. Raises an error on a server without auto_explain."""
    calls = StatementBuilder(schema)
    connection = await asyncpg.connect(dsn)
    heard: list[str] = []
    try:
        await connection.execute("load 'auto_explain'")
        connection.add_log_listener(lambda _, message: heard.append(str(message.message)))
        for name, value in _SETTINGS.items():
            await connection.execute(f"set {name} = {value}")
        found: list[ExplainedCall] = []
        for call in CALLS:
            statement = call.statement(calls)
            transaction = connection.transaction()
            await transaction.start()
            heard.clear()
            await connection.fetch(statement.text, *statement.args)
            found.append(ExplainedCall(call, _read_plans(heard, schema)))
            await transaction.rollback()
        return found
    finally:
        await connection.close()


def _read_plans(messages: list[str], schema: Schema) -> tuple[Plan, ...]:
    """The plans that read or write a table, each once, in the order in which the statements ended."""
    plans: dict[str, Plan] = {}
    for message in messages:
        _, _, body = message.partition("Query Text: ")
        text, tree = _split_plan(body)
        if re.search(
            r"\bon (?:instances|signals|transitions|cascades|step_slots|activities|checkpoints|progress)\b", tree
        ):
            plans.setdefault(tree, Plan(_shorten(text, schema), tree))
    return tuple(plans.values())


def _split_plan(body: str) -> tuple[str, str]:
    """The text of a statement and its plan, which begins at the first line with a cost."""
    lines = body.splitlines()
    first = next((n for n, line in enumerate(lines) if _COSTS.search(line)), len(lines))
    tree = "\n".join(_COSTS.sub("", line).rstrip() for line in lines[first:])
    return "\n".join(lines[:first]), tree


def _shorten(text: str, schema: Schema) -> str:
    """The first words of a statement, without the schema and without comments."""
    words = " ".join(re.sub(r"--[^\n]*", "", text).split()).replace(f'"{schema.name}".', "")
    return words if len(words) <= 76 else words[:73] + "..."
