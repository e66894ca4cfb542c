"""Outcomes that the database rejected, as errors: those of the step, and those that only wait for a limit.

A limit may be declared after the code that names it is deployed. An outcome that names it too early must not fail its
instance: the claim is put back, and the step runs again (tests/worker/test_undeclared_limits.py).
"""

from __future__ import annotations

from typing import Final

from gen_durable.errors import OutcomeRejected
from gen_durable.pg.error_classifier import (
    ConnectionLost,
    SqlError,
    describe_for_log,
    detail_and_hint_of,
    message_of,
    sqlstate_of,
)
from gen_durable.store.types import Commit

UNKNOWN_LIMIT: Final = "GD002"  # keys_of_limits.sql
WEIGHT_NEVER_GRANTED: Final = "GD003"


class UnusableLimit(OutcomeRejected):
    """An outcome names a limit that is not declared yet, or a weight that its policy never grants."""


def to_rejection(commit: Commit, error: Exception) -> OutcomeRejected:
    """The error for an outcome that cannot be committed."""
    if not isinstance(error, SqlError):
        return OutcomeRejected(f"the outcome of instance {commit.id} cannot be committed: {describe_for_log(error)}")
    if sqlstate_of(error) in (UNKNOWN_LIMIT, WEIGHT_NEVER_GRANTED):
        _, hint = detail_and_hint_of(error)
        return UnusableLimit(f"{message_of(error)}. {hint}")
    return OutcomeRejected(f"the database refused the outcome of instance {commit.id}: {describe_fault(error)}")


def describe_fault(error: Exception) -> str:
    """A database error for a log or a message: its code and kind. Never its DETAIL, which may quote a payload."""
    code = sqlstate_of(error)
    if code is not None and code.startswith("GD"):
        return message_of(error)  # a message of gen_durable's own SQL functions
    return str(error) if isinstance(error, ConnectionLost) else f"{type(error).__name__}, SQLSTATE {code}"
