"""Errors for keyword arguments that do not exist: they name the option that the caller means.

The words are those of the original specification and of other job libraries, where they differ from ours.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gen_durable.errors import GenDurableError, InputError

_MOMENT: Final = ("schedule_at", "delay")  # a call without schedule_at takes a delay
_DELAY: Final = ("delay",)
_KEY: Final = ("unique_key",)
SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("eligible_at", "eta", "run_at", "scheduled_at", "start_at", "at", "when"), _MOMENT),
    "schedule_at": _DELAY,
    **dict.fromkeys(("schedule_in", "countdown", "after", "run_in", "start_after", "delay_ms", "wait"), _DELAY),
    **dict.fromkeys(("unique", "dedup_key", "idempotency_key", "job_key", "task_id", "workflow_id"), _KEY),
    **dict.fromkeys(("ordering_key", "message_group", "lock", "queueing_lock", "concurrency_key"), ("partition_key",)),
    **dict.fromkeys(("tags", "meta", "labels"), ("metadata",)),
    **dict.fromkeys(("limits", "throttle", "rate_limit"), ("limit",)),
    **dict.fromkeys(("fair_by", "tenant"), ("group",)),
    **dict.fromkeys(("args", "kwargs", "arguments", "params", "payload", "input", "data"), ("state",)),
    **dict.fromkeys(("deadline", "expires", "ttl"), ("timeout",)),
    **dict.fromkeys(("next", "step", "next_step"), ("then",)),
}
"""Other words for our options, each with the options that it can mean, the first one first."""
_WHERE_DEFINED: Final = frozenset(
    {"max_attempts", "attempts", "retries", "max_retries", "retry", "backoff", "timeout", "expires"}
)
_OF_INSERT: Final = frozenset({"on_conflict", "connection", "notify"})


def unknown_option_error(
    where: str, unknown: Iterable[str], known: Iterable[str], error: type[GenDurableError] = InputError
) -> GenDurableError:
    """The error for the first of `unknown`, which `where` does not take; `known` are the options that it takes."""
    name, options = next(iter(unknown)), tuple(known)
    return error(f"{where} has no option {name!r}.{_suggest_option(name, options)}")


def option_names(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of the arguments of a function or class."""
    return tuple(inspect.signature(function).parameters)


def _suggest_option(name: str, known: tuple[str, ...]) -> str:
    for option in SYNONYMS.get(name, ()):
        if option in known:
            return f" Did you mean {option!r}?{_describe_expected_value(name, option)}"
    if name in _OF_INSERT:
        return " Pass it to insert or insert_many."
    if name in _WHERE_DEFINED:
        return " Set it where the step or job is defined, at @step or @job."
    near = difflib.get_close_matches(name, known, 1, cutoff=0.4)
    return f" Did you mean {near[0]!r}?" if near else ""


def _describe_expected_value(name: str, option: str) -> str:
    """The value that the option takes, where the other word takes something else."""
    match option:
        case "delay":
            return " It takes a timedelta or a number of seconds."
        case "schedule_at" if name != "scheduled_at":
            return " It takes a timezone-aware datetime."
        case "state":
            return " Pass one value, as the argument after the step."
        case _:
            return ""
