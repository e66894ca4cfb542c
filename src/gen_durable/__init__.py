"""Durable state machines on Postgres: an instance is a row, and each outcome is committed before the next step runs.

The names that users type every day. Errors are in `gen_durable.errors`; the types of rarer calls are in their modules
(docs/reference/api.md lists both).
"""

from gen_durable.backoff import backoff
from gen_durable.client import Durable
from gen_durable.context import Child, Context
from gen_durable.durations import Duration
from gen_durable.handles import Handle
from gen_durable.instances import Cancelled, Failed, Finished, Instance, Pending, Status
from gen_durable.jobs import Job, job
from gen_durable.limits import Concurrency, Limit, Rate
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Await, Done, Fail, Next, Outcome, Retry, ScheduleChildren
from gen_durable.retention import Retention
from gen_durable.retry_policy import Abort, RetryPolicy
from gen_durable.signals import Signal
from gen_durable.starts import Start
from gen_durable.sync import SyncDurable
from gen_durable.sync_handles import SyncHandle
from gen_durable.worker import Worker
from gen_durable.worker_options import Queue

__all__ = [
    "Abort",
    "Await",
    "Cancelled",
    "Child",
    "Concurrency",
    "Context",
    "Done",
    "Durable",
    "Duration",
    "Fail",
    "Failed",
    "Finished",
    "Handle",
    "Instance",
    "Job",
    "Limit",
    "Machine",
    "Next",
    "Outcome",
    "Pending",
    "Queue",
    "Rate",
    "Retention",
    "Retry",
    "RetryPolicy",
    "ScheduleChildren",
    "Signal",
    "Start",
    "Status",
    "SyncDurable",
    "SyncHandle",
    "Worker",
    "backoff",
    "job",
    "step",
]
