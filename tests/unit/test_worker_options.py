"""The options of a worker: good defaults, and a sentence for every combination that cannot work."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any, get_args, get_type_hints

import pytest

from gen_durable.errors import ConfigError
from gen_durable.retention import Retention
from gen_durable.worker_options import WorkerKeywordArguments, WorkerOptions


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_the_defaults_are_possible() -> None:
    """A worker without options starts, with three beats in a lease."""
    options = WorkerOptions()
    assert options.queues == {"default": 10}
    assert options.heartbeat_interval * 3 == options.lease_ttl


@pytest.mark.parametrize(
    "options",
    [
        {"queues": {}},
        {"queues": {"a": 1, "b.c:d-e": 1000}},
        {"reap_interval": None, "gc_interval": None},
        {"gc_retention": None},
        {"gc_retention": timedelta(0)},
        {"gc_retention": Retention(done=None, failed=timedelta(days=30))},
        {"lease_ttl": seconds(3), "heartbeat_interval": seconds(1)},
        {"poll_interval": seconds(1), "max_poll_interval": seconds(1)},
        {"drain_timeout": timedelta(0), "run_ahead_time": timedelta(0), "run_ahead_steps": 0},
        {"prefetch": 5, "min_demand": 15},
        {"max_crashes": 3, "threads": 1},
    ],
)
def test_unusual_but_possible_options(options: dict[str, Any]) -> None:
    """Maintenance only, work only, no run-ahead, no waiting: all allowed."""
    assert WorkerOptions(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"heartbeat_interval": seconds(6)},
            "heartbeat_interval .* must be at most a third of lease_ttl .* two missed",
        ),
        ({"lease_ttl": seconds(14)}, "heartbeat_interval .* must be at most a third of lease_ttl"),
        ({"max_poll_interval": seconds(0.5)}, "max_poll_interval .* must not be below poll_interval"),
        ({"poll_interval": seconds(6)}, "max_poll_interval .* must not be below poll_interval"),
        (
            {"queues": {"a": 30_000, "b": 20_001}},
            "can hold 50,001 rows .concurrency . prefetch., a worker at most 50,000",
        ),
        ({"queues": {"a": 1, "b": 1}, "prefetch": 25_000}, "can hold 50,002 rows"),
        ({"min_demand": 11}, "min_demand .11. is above the 10 rows that queue 'default' can hold .* never pick"),
        ({"min_demand": 8, "prefetch": 2, "queues": {"a": 9, "b": 5}}, "is above the 7 rows that queue 'b' can hold"),
        ({"queues": {"default": 0}}, "the concurrency of queue 'default' must be a whole number from 1 on, got 0"),
        ({"queues": {"default": True}}, "the concurrency of queue 'default'"),
        ({"queues": {"default": "10"}}, "the concurrency of queue 'default'"),
        ({"queues": {"a b": 1}}, "a queue's name must be"),
        ({"queues": ["default"]}, "queues must map names to concurrency, .* got list"),
        ({"queues": "default"}, "queues must map names to concurrency, .* got str"),
        ({"gc_retention": seconds(-1)}, "gc_retention must not be negative"),
        ({"gc_retention": "60"}, "gc_retention must be a timedelta or a number of seconds, got '60'"),
    ],
)
def test_impossible_combinations_are_refused(options: dict[str, Any], words: str) -> None:
    """The sentence names the options, their values, and why they cannot work."""
    with pytest.raises(ConfigError, match=words):
        WorkerOptions(**options)


@pytest.mark.parametrize(
    "name", ["lease_ttl", "heartbeat_interval", "poll_interval", "max_poll_interval", "reap_interval", "gc_interval"]
)
@pytest.mark.parametrize("value", [timedelta(0), seconds(-1), 0, -0.5, float("nan"), float("inf"), True, "5s"])
def test_intervals_are_positive_spans(name: str, value: Any) -> None:
    """Zero would poll without a pause."""
    with pytest.raises(ConfigError, match=f"^{name} must be"):
        WorkerOptions(**{name: value})


@pytest.mark.parametrize(
    "name", ["lease_ttl", "heartbeat_interval", "poll_interval", "max_poll_interval", "drain_timeout"]
)
def test_only_reaper_and_gc_can_be_switched_off(name: str) -> None:
    """None means off, and these cannot be off."""
    with pytest.raises(ConfigError, match=f"^{name} must be a timedelta or a number of seconds, got None"):
        WorkerOptions(**{name: None})  # type: ignore[arg-type]  # the refused case


@pytest.mark.parametrize("name", ["drain_timeout", "run_ahead_time"])
@pytest.mark.parametrize("value", [seconds(-1), -5, "5"])
def test_spans_that_may_be_zero(name: str, value: Any) -> None:
    """But not negative, and not text."""
    with pytest.raises(ConfigError, match=f"^{name} must"):
        WorkerOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("gc_batch", v) for v in (0, -1, 1.0, True, None)),
        *(("min_demand", v) for v in (0, "1")),
        *(("flush_batch", v) for v in (0, None)),
        *(("prefetch", v) for v in (-1, 0.5)),
        *(("run_ahead_steps", v) for v in (-1, None)),
        *(("max_crashes", v) for v in (0, 1.5)),
        *(("threads", v) for v in (0, True)),
    ],
)
def test_counts_are_whole_numbers(name: str, value: Any) -> None:
    """Each with its least value."""
    with pytest.raises(ConfigError, match=f"^{name} must be a whole number from [01] on"):
        WorkerOptions(**{name: value})


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
@pytest.mark.parametrize("value", [seconds(-1), "5"])
def test_retention_is_checked_by_status(status: str, value: Any) -> None:
    """A negative retention would delete what has not ended yet."""
    with pytest.raises(ConfigError, match=f"the retention of {status} instances must"):
        Retention(**{status: value})


def test_one_retention_serves_all_statuses() -> None:
    """A span, None, or one for each."""
    day = timedelta(days=1)
    assert WorkerOptions().retention == Retention(day, 30 * day, 30 * day)
    assert WorkerOptions(gc_retention=day).retention == Retention(day, day, day)
    assert WorkerOptions(gc_retention=None).retention == Retention(None, None, None)
    each = Retention(done=seconds(1), failed=None)
    assert WorkerOptions(gc_retention=each).retention is each


def test_the_keyword_arguments_of_a_worker_are_its_options() -> None:
    """The TypedDict has the names and types of the dataclass; where that stores a timedelta, it also takes seconds."""
    settings = get_type_hints(WorkerKeywordArguments)
    options = get_type_hints(WorkerOptions)
    stored = {f.name: options[f.name] for f in fields(WorkerOptions) if f.name != "queues"}
    assert list(settings) == list(stored)
    for name, type_ in stored.items():
        is_duration = timedelta in (type_, *get_args(type_))
        assert settings[name] == (type_ | float if is_duration else type_), name


def test_seconds_and_timedeltas_are_the_same_options() -> None:
    """Numbers of seconds are stored as timedelta."""
    settings: WorkerKeywordArguments = {
        "lease_ttl": 30,
        "heartbeat_interval": 0.5,
        "gc_retention": 60,
        "reap_interval": None,
    }
    options = WorkerOptions.from_keyword_arguments(None, settings)
    assert (options.lease_ttl, options.heartbeat_interval) == (seconds(30), seconds(0.5))
    assert (options.retention.seconds, options.reap_interval) == ((60.0, 60.0, 60.0), None)
    assert Retention(done=60, failed=None).seconds == (60.0, None, 30 * 86_400.0)


def test_max_crashes_leaves_room_to_run_apart() -> None:
    """With fewer than three an instance would fail for a crash of another one."""
    with pytest.raises(ConfigError, match="max_crashes must be at least 3, got 2"):
        WorkerOptions(queues={}, max_crashes=2)
