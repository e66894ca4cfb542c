"""The page docs/reference/plans.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tools.plans.dataset import CLAIMED, EXPIRED
from tools.plans.explained_calls import ExplainedCall

_WIDTH: Final = 118


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the plans were made on: the server's version, and the numbers of rows."""

    server: str
    terminal: int
    runnable: int


def render_page(calls: Sequence[ExplainedCall], conditions: Conditions) -> str:
    """The page as Markdown."""
    parts = [_introduction(conditions), _summary(calls)]
    parts += [_section(call) for call in calls]
    return "\n\n".join(parts) + "\n"


def _introduction(conditions: Conditions) -> str:
    paragraphs = (
        "`make plans` writes this page: it fills a table, runs each call once with `auto_explain`, and keeps the plans "
        "of the statements inside the function, with the rows that each node has read. This one was made on "
        f"{conditions.server} with {conditions.terminal:,} ended rows, {conditions.runnable:,} runnable ones in three "
        f"queues, {conditions.runnable // 10:,} that wait for a signal and have received another one, and "
        f"{CLAIMED + EXPIRED:,} claims. Plans are "
        "generic, as in a worker that runs for more than a few seconds. The functions set their planner settings "
        "themselves, so your server makes the same plans.",
        "`actual rows` is what a node has returned, `loops` how often it ran. A call is cheap if the rows that it "
        "reads are in proportion to its batch, whatever the size of the table. Long conditions are cut.",
    )
    wrapped = "\n\n".join(textwrap.fill(text, 100, break_on_hyphens=False) for text in paragraphs)
    return f"# Plans of the hot statements\n\n<!-- Made by `make plans`. Do not edit. -->\n\n{wrapped}"


def _summary(calls: Sequence[ExplainedCall]) -> str:
    rows = [
        f"| `{one.call.function}` | {one.call.description} | {', '.join(f'`{name}`' for name in one.indexes)} |"
        for one in calls
    ]
    return "\n".join(["## Indexes by call", "", "| call | in this run | indexes |", "|---|---|---|", *rows])


def _section(one: ExplainedCall) -> str:
    parts = [f"## {one.call.function}: {one.call.description}"]
    parts += [f"```text\n-- {plan.text}\n{_cut(plan.tree)}\n```" for plan in one.plans]
    return "\n\n".join(parts)


def _cut(tree: str) -> str:
    """Long conditions are cut: they repeat the function's text."""
    return "\n".join(line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in tree.splitlines())
