"""All errors of the library, in one tree.

    GenDurableError
    ├── ConfigError            an option, a DSN or a combination of options cannot work
    ├── DefinitionError        a machine, step, job or signal is defined wrongly
    ├── InputError             an argument is refused; nothing was written
    │   ├── EncodeError        a state, result or payload cannot be stored as JSON
    │   ├── TooLarge           a value exceeds a size limit
    │   ├── Duplicate          another instance holds the unique key
    │   └── UnknownLimit       the limit is not declared
    ├── DecodeError            stored JSON does not fit the type that the code expects
    │   └── CodecUnavailable   a codec cannot read a payload now
    ├── InvalidOutcome         a step returned an unusable outcome
    ├── StepTimeout            a step ran longer than its timeout
    ├── StepCancelled          a step cancelled its own task
    ├── OutcomeRejected        the database rejected an outcome
    ├── LeaseLost              another worker has taken over the claim
    ├── NoFreeThread           calls that timed out hold the threads of the worker
    ├── UnreadableSignal       `ctx.take`: the payload of a signal does not fit its type
    ├── InstanceFailed         `Handle.result`: the instance has failed
    ├── InstanceCancelled      `Handle.result`: the instance was cancelled
    ├── WaitTimeout            `Handle.result`: the instance has not ended in time (also a `TimeoutError`)
    ├── NoTarget               a signal to an instance that is unknown or has ended
    ├── NotFound               no instance has that id or key
    ├── WrongStatus            the instance's status does not allow the operation
    ├── SchemaError            the database schema does not fit this library
    │   ├── SchemaMissing      not migrated, or only to an older version
    │   ├── SchemaTooNew       migrated by a newer library
    │   ├── SchemaInUse        instances or workers use the schema that would be removed
    │   └── SchemaConflict     holds objects that are not gen_durable's, or the layout of an unreleased version
    ├── DatabaseRefused        the database rejected the call: a missing privilege, a changed schema
    ├── QuotaExceeded          the login has used up a quota: try again later
    ├── DatabaseUnavailable    the database was not reachable in time
    └── EmbeddedUnavailable    no DSN is configured and the embedded server cannot run

A message says what happened and what to do. Messages carry names and ids, never payloads.
"""

from __future__ import annotations

from typing import NamedTuple


class GenDurableError(Exception):
    """The base class of all errors of the library."""


class ConfigError(GenDurableError):
    """An option, a DSN or a combination of options cannot work."""


class DefinitionError(GenDurableError):
    """A machine, step, job or signal is defined wrongly."""


class InputError(GenDurableError):
    """An argument is refused. Nothing was written."""


class EncodeError(InputError):
    """A state, result or payload cannot be stored as JSON."""


class TooLarge(InputError):
    """A value exceeds a size limit."""


class Duplicate(InputError):
    """Another instance holds the unique key: `existing_id`."""

    def __init__(self, message: str, *, key: str | bytes | None = None, existing_id: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.existing_id = existing_id


class UnknownLimit(InputError):
    """The limit is not declared. Declare it with `Worker(limits=...)` or `app.set_limit`."""


class DecodeError(GenDurableError):
    """Stored JSON does not fit the type that the code expects."""


class CodecUnavailable(DecodeError):
    """A codec raises it if it cannot read a payload now, but may later: its key service does not answer.

    The claim is released and tried again. No signal is rejected for it.
    """


class InvalidOutcome(GenDurableError):
    """A step returned an unusable outcome."""


class StepTimeout(GenDurableError):
    """A step ran longer than its timeout."""


class StepCancelled(GenDurableError):
    """A step cancelled its own task."""


class OutcomeRejected(GenDurableError):
    """The database rejected an outcome."""


class LeaseLost(GenDurableError):
    """Another worker has taken over the claim: the outcome of this execution will not be committed.

    Let it propagate out of the step.
    """


class NoFreeThread(GenDurableError):
    """Calls that timed out and have not returned hold too many threads of this worker. The instance is put back.

    Let it propagate out of the step.
    """


class SignalFault(NamedTuple):
    """A signal that cannot be read: its id, its name, and the reason, which never quotes the payload."""

    id: int
    name: str
    reason: str


class UnreadableSignal(GenDurableError):
    """The payloads of signals do not fit the type of their `Signal`: `faults`.

    Let it propagate out of the step: the worker sets these signals aside, and the step waits again or runs with the
    others.
    """

    def __init__(self, faults: tuple[SignalFault, ...]) -> None:
        super().__init__("; ".join(fault.reason for fault in faults))
        self.faults = faults


class InstanceFailed(GenDurableError):
    """`Handle.result` was called for an instance that has failed. `reason` is its last error."""

    def __init__(self, id: int, machine: str | None, reason: str) -> None:  # noqa: A002  # the instance's id
        super().__init__(f"{_describe_instance(id, machine)} has failed: {reason}")
        self.id = id
        self.machine = machine
        self.reason = reason

    def __reduce__(self) -> tuple[type[InstanceFailed], tuple[int, str | None, str]]:
        return type(self), (self.id, self.machine, self.reason)


class InstanceCancelled(GenDurableError):
    """`Handle.result` was called for an instance that was cancelled. `reason` is that of the cancel."""

    def __init__(self, id: int, machine: str | None, reason: str) -> None:  # noqa: A002  # the instance's id
        super().__init__(f"{_describe_instance(id, machine)} was cancelled: {reason}")
        self.id = id
        self.machine = machine
        self.reason = reason

    def __reduce__(self) -> tuple[type[InstanceCancelled], tuple[int, str | None, str]]:
        return type(self), (self.id, self.machine, self.reason)


class WaitTimeout(GenDurableError, TimeoutError):
    """`Handle.result` reached its timeout before the instance ended. The instance continues."""

    def __init__(self, id: int, machine: str | None, reason: str) -> None:  # noqa: A002  # the instance's id
        super().__init__(f"{_describe_instance(id, machine)} {reason}")
        self.id = id
        self.machine = machine
        self.reason = reason

    def __reduce__(self) -> tuple[type[WaitTimeout], tuple[int, str | None, str]]:
        return type(self), (self.id, self.machine, self.reason)


class NoTarget(GenDurableError):
    """A signal was sent to an instance that is unknown or has ended."""


class NotFound(GenDurableError):
    """No instance has that id or key."""


class WrongStatus(GenDurableError):
    """The status of the instance does not allow the operation. Nothing was changed."""

    def __init__(self, message: str, *, id: int, status: str) -> None:  # noqa: A002  # the instance's id
        super().__init__(message)
        self.id = id
        self.status = status


class SchemaError(GenDurableError):
    """The database schema does not fit this library."""


class SchemaMissing(SchemaError):
    """The schema is not migrated, or only to an older version."""


class SchemaTooNew(SchemaError):
    """The schema was migrated by a newer library."""


class SchemaInUse(SchemaError):
    """The schema cannot be removed: it has instances that have not ended, or workers are connected."""


class SchemaConflict(SchemaError):
    """The schema holds objects that are not gen_durable's, or the layout of an unreleased version."""


class DatabaseRefused(GenDurableError):
    """The database rejected the call: a privilege is missing, or the schema was changed."""


class QuotaExceeded(GenDurableError):
    """The login has used up a quota of `gen-durable grant`. Nothing was written: the same call may succeed later.

    `retry_after` is the number of seconds after which a quota of inserts per second allows the call; None if that is
    unknown, because instances must end first, or if the call is larger than the quota.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DatabaseUnavailable(GenDurableError):
    """The database was not reachable in time."""


class EmbeddedUnavailable(GenDurableError):
    """No DSN is configured and the embedded server cannot run."""


def _describe_instance(id: int, machine: str | None) -> str:  # noqa: A002  # the instance's id
    return f"instance {id}" if machine is None else f"instance {id} ({machine})"
