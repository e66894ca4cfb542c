"""`Retention`: how long ended instances are kept, as an option of workers, machines and jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from gen_durable.durations import Duration
from gen_durable.errors import ConfigError, GenDurableError
from gen_durable.validation import check_delay

DAY: Final = timedelta(days=1)
MONTH: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended instances are kept, by how they ended. None keeps them for good."""

    done: Duration | None = DAY
    failed: Duration | None = MONTH
    cancelled: Duration | None = MONTH

    def __post_init__(self) -> None:
        for status in ("done", "failed", "cancelled"):
            age = getattr(self, status)
            if age is not None:
                seconds = check_delay(age, f"the retention of {status} instances", ConfigError)
                object.__setattr__(self, status, timedelta(seconds=seconds))

    @property
    def seconds(self) -> tuple[float | None, float | None, float | None]:
        """The three ages in seconds: done, failed, cancelled."""
        return _age_in_seconds(self.done), _age_in_seconds(self.failed), _age_in_seconds(self.cancelled)


MachineRetention: TypeAlias = Duration | Retention | Literal["worker"] | None
"""The retention of a machine or job: a time for all ends, one for each, None for good, or that of the worker."""


def to_retention(
    given: Duration | Retention | None, what: str, error: type[GenDurableError] = ConfigError
) -> Retention:
    """A retention as users write it: one duration or None stands for all three ways of ending."""
    if isinstance(given, Retention):
        return given
    age = None if given is None else timedelta(seconds=check_delay(given, what, error))
    return Retention(age, age, age)


def _age_in_seconds(age: Duration | None) -> float | None:
    return None if age is None else check_delay(age, "a retention", ConfigError)
