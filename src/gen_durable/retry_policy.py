"""`RetryPolicy`: how often a step, a job or an activity runs again after an exception. `Abort` ends it at once.

A policy is a value. The executor reads it and answers an exception with an ordinary `Retry`; the database counts the
exceptions of a visit and caps nothing (ADR 23).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gen_durable.backoff import backoff as default_backoff
from gen_durable.durations import Duration
from gen_durable.errors import DefinitionError

Backoff: TypeAlias = Callable[[int], Duration]
"""The delay before the next attempt, from the number of earlier errors, counted from 0."""
DEFAULT_ATTEMPTS: Final = 20


class Abort(Exception):
    """Raise it in a job or a step to skip all further attempts.

    The job fails at once. So does the instance of a machine, unless the machine has an `on_error`, which is called.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Run again after an exception: `@step(retry=RetryPolicy(attempts=5))`, also for `@job`, `Machine` and `ctx.run`.

    `attempts` counts executions that raised in this visit, the first one included; None never gives up. A returned
    `Retry` and a crash do not count. `backoff(n)` is the delay after n earlier errors; it must compute, not wait. `on`
    names the exceptions that are retried. When the attempts are used up, the step `then` runs with the state of the
    failed step; without it `on_error` is called, and without that the instance fails.

    The default makes 20 attempts in about 2 h 40 min (2 h 32 min to 2 h 48 min).
    """

    attempts: int | None = DEFAULT_ATTEMPTS
    backoff: Backoff = default_backoff
    on: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    then: Callable[..., Any] | str | None = None

    def __post_init__(self) -> None:
        attempts: object = self.attempts
        if attempts is not None and (not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1):
            raise DefinitionError(f"RetryPolicy(attempts=) must be 1 or more, or None for no end, got {attempts!r}")
        if not callable(self.backoff):
            raise DefinitionError(
                f"RetryPolicy(backoff=) must be a function of the number of errors, got {type(self.backoff).__name__}: "
                "write backoff=lambda n: 5"
            )
        names: tuple[Any, ...] = self.on if isinstance(self.on, tuple) else (self.on,)
        if not names or not all(isinstance(one, type) and issubclass(one, Exception) for one in names):
            raise DefinitionError(
                f"RetryPolicy(on=) must be an exception class or a tuple of them, got {self.on!r}: "
                "classes that do not derive from Exception never reach a policy"
            )
        object.__setattr__(self, "on", names)
        then: object = self.then
        if then is not None and not isinstance(then, str) and not callable(then):
            raise DefinitionError(f"RetryPolicy(then=) must be a step or its name, got {type(then).__name__}")
        if then is not None and attempts is None:
            raise DefinitionError("RetryPolicy(attempts=None, then=...) never gives up, so that step would never run")

    def covers(self, error: Exception) -> bool:
        """Whether `on` names this exception. It never names `Abort`."""
        return isinstance(error, self.on) and not isinstance(error, Abort)

    def is_used_up(self, errors: int) -> bool:
        """Whether no attempt is left after so many errors."""
        return self.attempts is not None and errors >= self.attempts


DEFAULT_POLICY: Final = RetryPolicy()
"""The policy of jobs, and of machines without an `on_error`."""


def check_retry_policy(retry: RetryPolicy | None, what: str) -> RetryPolicy | None:
    """Check a `retry=` argument."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise DefinitionError(
            f"{what} must be a RetryPolicy, got {type(retry).__name__}: write RetryPolicy(attempts=3)"
        )
    return retry
