"""Limits on concurrency and rate, across all workers: the policies, and the references of steps to them.

A policy has a name and is stored in the database; a step names the limits that it runs under. Everything here only
checks arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

from gen_durable.durations import Duration
from gen_durable.errors import ConfigError, GenDurableError, InputError
from gen_durable.validation import check_name, check_positive_duration, check_text_key

MAX_SLOTS: Final = 1_000_000
MAX_REFILL: Final = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `slots` steps under this limit run at a time, on all workers together."""

    slots: int

    def __post_init__(self) -> None:
        _check_positive_count("Concurrency(slots)", self.slots)


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `amount` steps under this limit may begin every `per`, evenly spaced; up to `burst` at once."""

    amount: int
    per: Duration
    burst: int = 1

    def __post_init__(self) -> None:
        _check_positive_count("Rate(amount)", self.amount)
        _check_positive_count("Rate(burst=)", self.burst)
        # As a timedelta, so that Rate(5, 60) and Rate(5, timedelta(minutes=1)) are equal.
        per = timedelta(seconds=check_positive_duration(self.per, "Rate(per=)", ConfigError))
        object.__setattr__(self, "per", per)
        if self.seconds_per_token * self.burst > MAX_REFILL.total_seconds():
            raise ConfigError(f"{self} would take more than {MAX_REFILL.days} days to refill its burst")

    @property
    def seconds_per_token(self) -> float:
        """Seconds from one token to the next."""
        return check_positive_duration(self.per, "Rate(per=)") / self.amount


Policy: TypeAlias = Concurrency | Rate


@dataclass(frozen=True, slots=True)
class Limit:
    """A reference to a limit: its name, the partition, and how many tokens of a rate a step takes."""

    name: str
    partition: str | None = None
    weight: int = 1

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a limit")
        if self.partition is not None:
            check_text_key(self.partition, f"the partition of limit {self.name!r}")
        if not isinstance(self.weight, int) or isinstance(self.weight, bool) or not 1 <= self.weight <= MAX_SLOTS:
            raise InputError(f"the weight of limit {self.name!r} must be a whole number from 1 on, got {self.weight!r}")

    @property
    def key(self) -> str:
        """The limit as it is stored in rows."""
        return self.name if self.partition is None else f"{self.name}/{self.partition}"


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of a limit, or of one of its partitions (`key` is "name/partition").

    `taken`: slots in use, or tokens missing from the bucket. `next_token`: seconds until a token is available.
    """

    name: str
    kind: str
    slots: int | None
    period: float | None
    burst: int | None
    key: str | None
    taken: float
    waiting: int
    next_token: float | None


LimitName: TypeAlias = str | tuple[str, str] | Limit
"""`"stripe"`, `("stripe", tenant)`, or `Limit("stripe", tenant, weight=3)`."""
LimitNames: TypeAlias = LimitName | list[LimitName]
"""One limit, or a list of a concurrency limit and a rate limit."""
StepLimit: TypeAlias = LimitNames | Callable[[Any], LimitNames]
"""The limits of a step, or a function that computes them from its state."""


def parse_limit_argument(names: LimitNames, where: str, error: type[GenDurableError] = InputError) -> tuple[Limit, ...]:
    """The argument `limit=` as `Limit` values. Raises `error` if it is malformed."""
    several = names if isinstance(names, list) else [names]
    return tuple(_parse_limit_reference(name, where, error) for name in several)


def _parse_limit_reference(name: object, where: str, error: type[GenDurableError]) -> Limit:
    try:
        match name:
            case Limit():
                return name
            case str():
                return Limit(name)
            case (str() as first, str() as partition):
                return Limit(first, partition)
            case _:
                pass
    except InputError as refused:
        raise error(f"{where}: {refused}") from None
    raise error(
        f"{where} takes a limit's name, a pair (name, partition), a Limit, or a list of these, got {name!r:.80}"
    )


def check_limit_policies(limits: Mapping[str, Policy]) -> dict[str, Policy]:
    """Check the argument `limits=` of a worker."""
    if not isinstance(limits, Mapping):
        raise ConfigError(f"limits must map names to Concurrency or Rate, got {type(limits).__name__}")
    return {
        check_name(name, "the name of a limit", ConfigError): check_limit_policy(name, policy)
        for name, policy in limits.items()
    }


def check_limit_policy(name: str, policy: object) -> Policy:
    """Check one policy."""
    if not isinstance(policy, Concurrency | Rate):
        raise ConfigError(f"limit {name!r} must be Concurrency(...) or Rate(...), got {type(policy).__name__}")
    return policy


def _check_positive_count(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SLOTS:
        raise ConfigError(f"{what} must be a whole number from 1 to {MAX_SLOTS:,}, got {value!r}")
