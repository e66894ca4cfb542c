"""Every error of ours, in one tree.

    GenDurableError
    ├── ConfigError            an option, a DSN or a combination of options that cannot work
    ├── DefinitionError        a machine, step, job or signal is written wrongly
    ├── InputError             a value handed to us is refused; nothing was written
    │   ├── EncodeError        a state, result or payload that cannot be stored as JSON
    │   ├── TooLarge           a value over one of the size limits
    │   ├── Duplicate          the unique key is taken by a live instance
    │   └── UnknownLimit       a limit that nobody has declared
    ├── DecodeError            stored JSON does not fit the type that the code expects now
    ├── InvalidOutcome         a step returned something that is not a usable outcome
    ├── StepTimeout            a step ran longer than its timeout
    ├── StepCancelled          a step's own task was cancelled from inside
    ├── OutcomeRejected        the database refused to store an outcome
    ├── LeaseLost              the claim was taken over by another worker
    ├── NoTarget               a signal for an instance that is unknown or has ended
    ├── NotFound               no instance with that id or key
    ├── WrongStatus            the instance is not in a status that allows what was asked
    ├── SchemaError            the database schema does not fit this library
    │   ├── SchemaMissing      not migrated, or migrated only to an older version
    │   └── SchemaTooNew       migrated by a newer library
    ├── DatabaseRefused        the database answered, and would not: a right is missing, the schema was changed
    ├── DatabaseUnavailable    the database could not be reached in the time given
    └── EmbeddedUnavailable    no DSN was given and the embedded server cannot be used

A message says what happened and what to do about it. Messages carry names and ids, never payloads.
"""

from __future__ import annotations


class GenDurableError(Exception):
    """The root: `except GenDurableError` catches all that this library raises on purpose."""


class ConfigError(GenDurableError):
    """An option, a DSN or a combination of options cannot work."""


class DefinitionError(GenDurableError):
    """A machine, step, job or signal is written wrongly."""


class InputError(GenDurableError):
    """A value handed to us is refused. Nothing was written."""


class EncodeError(InputError):
    """A state, result or payload cannot be stored as JSON."""


class TooLarge(InputError):
    """A value is over one of the size limits."""


class Duplicate(InputError):
    """The unique key is taken by a live instance."""

    def __init__(self, message: str, *, key: str | bytes | None = None, existing_id: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.existing_id = existing_id


class UnknownLimit(InputError):
    """A limit that nobody has declared was named."""


class DecodeError(GenDurableError):
    """Stored JSON does not fit the type that the code expects now."""


class InvalidOutcome(GenDurableError):
    """A step returned something that is not a usable outcome."""


class StepTimeout(GenDurableError):
    """A step ran longer than its timeout."""


class StepCancelled(GenDurableError):
    """A step's own task was cancelled from inside the step."""


class OutcomeRejected(GenDurableError):
    """The database refused to store an outcome."""


class LeaseLost(GenDurableError):
    """The claim was taken over by another worker: whatever this execution did must not count."""


class NoTarget(GenDurableError):
    """A signal was sent to an instance that is unknown or has ended."""


class NotFound(GenDurableError):
    """There is no instance with that id or key."""


class WrongStatus(GenDurableError):
    """The instance is not in a status that allows what was asked; nothing was done."""

    def __init__(self, message: str, *, id: int, status: str) -> None:  # noqa: A002  # the instance's id
        super().__init__(message)
        self.id = id
        self.status = status


class SchemaError(GenDurableError):
    """The database schema does not fit this library."""


class SchemaMissing(SchemaError):
    """The schema was never migrated, or only to an older version."""


class SchemaTooNew(SchemaError):
    """The schema was migrated by a newer library."""


class DatabaseRefused(GenDurableError):
    """The database answered, and would not: a right is missing, or the schema was changed."""


class DatabaseUnavailable(GenDurableError):
    """The database could not be reached in the time given."""


class EmbeddedUnavailable(GenDurableError):
    """No DSN was given and the embedded server cannot be used."""
