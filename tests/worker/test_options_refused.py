"""Options of a worker that cannot work are refused when it is made, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.engine import seconds

from gen_durable import Context, Done, Durable, Machine, Outcome, Retention, Worker, job, step
from gen_durable.errors import ConfigError, DefinitionError


@job
async def nothing(_: None) -> None:
    """Does nothing."""


class Plain(Machine):
    @step
    async def only(self, state: int, ctx: Context) -> Outcome[None]:
        return Done()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"queues": {"default": 0}}, "concurrency of queue 'default' must be a whole number from 1"),
    ({"queues": {"default": "10"}}, "concurrency"),
    ({"queues": {"default": True}}, "concurrency"),
    ({"queues": {"two words": 1}}, "a queue's name"),
    ({"lease_ttl": "15"}, "lease_ttl must be a timedelta or a number of seconds, got '15'"),
    ({"lease_ttl": seconds(0)}, "lease_ttl must be above zero"),
    ({"heartbeat_interval": seconds(6)}, "heartbeat_interval .* at most a third of lease_ttl"),
    ({"heartbeat_interval": seconds(-1)}, "heartbeat_interval must be above zero"),
    ({"poll_interval": seconds(6)}, "max_poll_interval .* must not be below poll_interval"),
    ({"poll_interval": True}, "poll_interval must be a timedelta"),
    ({"max_poll_interval": seconds(0.5)}, "max_poll_interval .* must not be below"),
    ({"reap_interval": seconds(0)}, "reap_interval must be above zero"),
    ({"gc_interval": float("nan")}, "gc_interval must be at most"),
    ({"gc_retention": "1d"}, "gc_retention must be a timedelta"),
    ({"gc_retention": seconds(-1)}, "gc_retention must not be negative"),
    ({"gc_batch": 0}, "gc_batch must be a whole number from 1"),
    ({"prefetch": -1}, "prefetch must be a whole number from 0"),
    ({"min_demand": 0}, "min_demand must be a whole number from 1"),
    ({"min_demand": 11}, "min_demand .* would never pick"),
    ({"drain_timeout": float("inf")}, "drain_timeout must be at most"),
    ({"max_crashes": 0}, "max_crashes must be a whole number from 1"),
    ({"on_dead_letter": "mail"}, "on_dead_letter must be a function"),
    ({"run_ahead_time": seconds(-1)}, "run_ahead_time must not be negative"),
    ({"run_ahead_steps": 1.5}, "run_ahead_steps must be a whole number"),
    ({"flush_batch": 0}, "flush_batch must be a whole number from 1"),
    ({"threads": 0}, "threads must be a whole number from 1"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_impossible_options(options: dict[str, Any], words: str) -> None:
    """Each is refused by name, saying why."""
    with pytest.raises(ConfigError, match=words):
        Worker(Durable("postgresql://localhost/none"), jobs=[nothing], **options)


def test_retention_is_checked() -> None:
    """Retention takes durations, or None."""
    with pytest.raises(ConfigError, match="retention of failed instances must not be negative"):
        Retention(failed=seconds(-1))
    with pytest.raises(ConfigError, match="retention of done instances must be a timedelta"):
        Retention(done="5")  # type: ignore[arg-type]  # wrong on purpose
    assert Retention(done=5) == Retention(done=seconds(5))
    assert Retention(done=None).done is None


def test_an_unknown_option() -> None:
    """A misspelt option is an error, not ignored."""
    with pytest.raises(ConfigError, match=r"Worker has no option 'lease_time'\. Did you mean 'lease_ttl'\?"):
        Worker(Durable("postgresql://localhost/none"), jobs=[nothing], lease_time=seconds(1))  # type: ignore[call-arg]


@pytest.mark.parametrize("queues", [None, {"default": 1}])
def test_queues_without_anything_to_run(queues: dict[str, int] | None) -> None:
    """A worker that would look for work but can run none is a mistake, whether its queues are given or the default."""
    with pytest.raises(ConfigError, match="needs machines or jobs"):
        Worker(Durable("postgresql://localhost/none"), queues=queues)


def test_what_is_no_machine() -> None:
    """Classes, functions and steps in the wrong place are refused with what to write instead."""
    app = Durable("postgresql://localhost/none")
    given: Any
    for given, words in (
        ([Plain], r"pass Plain\(\), not the class"),
        ([Machine()], "subclass Machine"),
        ([nothing], "takes Machine instances"),
        ([Plain(), Plain()], "two machines or jobs are called 'Plain' version 1"),
    ):
        with pytest.raises(DefinitionError, match=words):
            Worker(app, machines=given)
    with pytest.raises(DefinitionError, match="decorated with @job"):
        Worker(app, jobs=[test_retention_is_checked])  # type: ignore[list-item]  # wrong on purpose
