"""Durable state machines on Postgres: an instance is a row, and each outcome is committed before anything goes on."""

from gen_durable.backoff import backoff
from gen_durable.client import Durable
from gen_durable.config import Queue, Retention
from gen_durable.context import Child, Context
from gen_durable.encryption import PayloadCodec, PayloadContext
from gen_durable.errors import (
    ConfigError,
    DatabaseRefused,
    DatabaseUnavailable,
    DecodeError,
    DefinitionError,
    Duplicate,
    EmbeddedUnavailable,
    EncodeError,
    GenDurableError,
    InputError,
    InvalidOutcome,
    LeaseLost,
    NoTarget,
    NotFound,
    OutcomeRejected,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    StepCancelled,
    StepTimeout,
    TooLarge,
    UnknownLimit,
    WrongStatus,
)
from gen_durable.handles import Handle
from gen_durable.instances import Cancellation, Cancelled, Ending, Failed, Finished, Instance, Pending, Status
from gen_durable.jobs import Abort, Job, job
from gen_durable.journal import Activity, Checkpoint, Progress, Transition
from gen_durable.limits import Concurrency, Limit, LimitState, Rate
from gen_durable.listing import Count, Filters, Page
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Await, Done, Fail, Next, Outcome, Retry, ScheduleChildren, Start
from gen_durable.signals import Received, Signal
from gen_durable.sync import SyncDurable, SyncHandle
from gen_durable.worker import Worker

__all__ = [
    "Abort",
    "Activity",
    "Await",
    "Cancellation",
    "Cancelled",
    "Checkpoint",
    "Child",
    "Concurrency",
    "ConfigError",
    "Context",
    "Count",
    "DatabaseRefused",
    "DatabaseUnavailable",
    "DecodeError",
    "DefinitionError",
    "Done",
    "Duplicate",
    "Durable",
    "EmbeddedUnavailable",
    "EncodeError",
    "Ending",
    "Fail",
    "Failed",
    "Filters",
    "Finished",
    "GenDurableError",
    "Handle",
    "InputError",
    "Instance",
    "InvalidOutcome",
    "Job",
    "LeaseLost",
    "Limit",
    "LimitState",
    "Machine",
    "Next",
    "NoTarget",
    "NotFound",
    "Outcome",
    "OutcomeRejected",
    "Page",
    "PayloadCodec",
    "PayloadContext",
    "Pending",
    "Progress",
    "Queue",
    "Rate",
    "Received",
    "Retention",
    "Retry",
    "ScheduleChildren",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "Signal",
    "Start",
    "Status",
    "StepCancelled",
    "StepTimeout",
    "SyncDurable",
    "SyncHandle",
    "TooLarge",
    "Transition",
    "UnknownLimit",
    "Worker",
    "WrongStatus",
    "backoff",
    "job",
    "step",
]
