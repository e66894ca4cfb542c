"""Words of the specification and of other libraries are answered with ours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Retry, ScheduleChildren, Signal, Start, step
from gen_durable.errors import InputError
from gen_durable.unknown_options import SYNONYMS, option_names

NOW = datetime.now(UTC)


class Shop(Machine):
    @step
    async def open(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)


go = Signal("go")
SHOP = Shop()
CALLS: dict[str, Any] = {
    "Start": lambda **options: Start(Shop.open, 1, **options),
    "Next": lambda **options: Next(SHOP.open, 1, **options),
    "Retry": lambda **options: Retry(1, **options),
    "Await": lambda **options: Await(go, state=1, **options),
    "ScheduleChildren": lambda **options: ScheduleChildren([], then=SHOP.open, state=1, **options),
    "Done": lambda **options: Done(1, **options),
}


@pytest.mark.parametrize(
    ("call", "option", "hint"),
    [
        ("Start", "schedule_in", "Did you mean 'delay'? It takes a timedelta or a number of seconds."),
        ("Start", "eligible_at", "Did you mean 'schedule_at'? It takes a timezone-aware datetime."),
        ("Start", "eta", "Did you mean 'schedule_at'?"),
        ("Start", "run_at", "Did you mean 'schedule_at'?"),
        ("Start", "countdown", "Did you mean 'delay'?"),
        ("Start", "dedup_key", "Did you mean 'unique_key'?"),
        ("Start", "idempotency_key", "Did you mean 'unique_key'?"),
        ("Start", "kwargs", "Did you mean 'state'? Pass one value, as the argument after the step."),
        ("Start", "limits", "Did you mean 'limit'?"),
        ("Start", "tags", "Did you mean 'metadata'?"),
        ("Start", "prio", "Did you mean 'priority'?"),
        ("Start", "max_attempts", "Set it where the step or job is defined, at @step or @job."),
        ("Start", "retries", "Set it where the step or job is defined"),
        ("Start", "timeout", "Set it where the step or job is defined"),
        ("Start", "connection", "Pass it to insert or insert_many."),
        ("Next", "schedule_in", "Did you mean 'delay'?"),
        ("Next", "eligible_at", "Did you mean 'delay'? It takes a timedelta or a number of seconds."),
        ("Next", "schedule_at", "Did you mean 'delay'?"),
        ("Retry", "after", "Did you mean 'delay'?"),
        ("Await", "next_step", "Did you mean 'then'?"),
        ("Await", "deadline", "Did you mean 'timeout'?"),
        ("ScheduleChildren", "joins", "Did you mean 'join'?"),
        ("Done", "spawned", "Did you mean 'spawn'?"),
    ],
)
def test_a_foreign_word_is_answered_with_ours(call: str, option: str, hint: str) -> None:
    """The error names the option that was passed and the one that was meant."""
    with pytest.raises(InputError) as caught:
        CALLS[call](**{option: NOW})
    assert f"has no option {option!r}. {hint}" in str(caught.value)


def test_a_word_that_is_like_none() -> None:
    """Then the error names it alone."""
    with pytest.raises(InputError) as caught:
        CALLS["Retry"](zzzz=1)
    assert str(caught.value) == "Retry has no option 'zzzz'."


def test_each_synonym_leads_to_an_option() -> None:
    """A hint never names an option that was renamed."""
    options = {name for call in (Start, Next, Retry, Await, ScheduleChildren, Done) for name in option_names(call)}
    assert {meant for words in SYNONYMS.values() for meant in words} <= options
