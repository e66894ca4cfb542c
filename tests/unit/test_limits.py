"""Policies and names of limits: what can be said, and what is refused with the reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable.errors import ConfigError, DefinitionError, InputError, TooLarge
from gen_durable.jobs import job
from gen_durable.limits import MAX_SLOTS, Concurrency, Limit, Rate, check_limit_policies, parse_limit_argument
from gen_durable.starts import Start

DAY = timedelta(days=1)


@job
async def some(n: int) -> int:
    return n


@pytest.mark.parametrize("slots", [0, -1, 1.5, "3", None, True, MAX_SLOTS + 1])
def test_slots_are_a_whole_number(slots: Any) -> None:
    """At least one; no slots at all would be a queue that nobody serves."""
    with pytest.raises(ConfigError, match=r"slots.* must be a whole number from 1 to 1,000,000"):
        Concurrency(slots)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"amount": 0, "per": DAY}, "amount"),
        ({"amount": 1.5, "per": DAY}, "amount"),
        ({"amount": 1, "per": DAY, "burst": 0}, "burst"),
        ({"amount": 1, "per": DAY, "burst": None}, "burst"),
        ({"amount": 1, "per": timedelta(0)}, "per"),
        ({"amount": 1, "per": -DAY}, "per"),
        ({"amount": 1, "per": "60"}, "per"),
    ],
)
def test_rates_are_above_zero(arguments: dict[str, Any], words: str) -> None:
    """So many, in so long, so many at once: each named in its refusal."""
    with pytest.raises(ConfigError, match=rf"Rate\({words}"):
        Rate(**arguments)


def test_the_period_is_from_one_token_to_the_next() -> None:
    assert Rate(100, timedelta(minutes=1)).seconds_per_token == 0.6
    assert Rate(1, DAY).seconds_per_token == 86_400
    assert Rate(100, 60) == Rate(100, timedelta(minutes=1))


def test_a_limit_is_named_in_three_ways() -> None:
    """By its name, with a partition, or with a weight; or by a list of these."""
    assert parse_limit_argument("a", "x") == (Limit("a"),)
    assert parse_limit_argument(("a", "t/1"), "x") == (Limit("a", "t/1"),)
    assert parse_limit_argument(["a", Limit("b", "t", weight=3)], "x") == (Limit("a"), Limit("b", "t", 3))
    assert parse_limit_argument([], "x") == ()
    assert [limit.key for limit in parse_limit_argument(["a", ("a", "t/1")], "x")] == ["a", "a/t/1"]


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, 5, None, ("a",), ("a", 5), ("a", ""), ("a", "b", 3), {"a": 1}])
def test_other_names_are_refused(name: Any) -> None:
    """With the kind of error that the place asks for, and where it was said."""
    with pytest.raises(InputError):
        parse_limit_argument(name, "limit")
    with pytest.raises(DefinitionError, match="the limit of step x"):
        parse_limit_argument(name, "the limit of step x", DefinitionError)
    if name is not None:
        with pytest.raises(InputError):
            Start(some, 1, limit=name)
        with pytest.raises(DefinitionError):
            job(limit=name)(some.fn)


@pytest.mark.parametrize("weight", [0, -1, 1.0, "1", True, MAX_SLOTS + 1])
def test_weights_are_whole_numbers(weight: Any) -> None:
    with pytest.raises(InputError, match="the weight of limit 'a' must be a whole number"):
        Limit("a", weight=weight)


def test_a_partition_is_as_long_as_a_key() -> None:
    assert Limit("a", "x" * 512).key == "a/" + "x" * 512
    with pytest.raises(TooLarge):
        Limit("a", "x" * 513)


def test_what_a_worker_declares() -> None:
    assert check_limit_policies({"a": Concurrency(1)}) == {"a": Concurrency(1)}
    for wrong in ({"a": 3}, {"a/b": Concurrency(1)}, {5: Concurrency(1)}, [Concurrency(1)], {"": Rate(1, DAY)}):
        with pytest.raises(ConfigError):
            check_limit_policies(wrong)  # type: ignore[arg-type]
