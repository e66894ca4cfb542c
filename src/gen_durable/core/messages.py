"""Messages between processes: a typed union, with one encoder and one decoder for the payload of NOTIFY.

A payload is `KIND:ARGUMENT`. The kind is read first, so that no queue and no worker can be mistaken for another kind of
message. `sql/functions/notify_workers.sql` builds the same payloads inside a caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from gen_durable.loggers import get_logger
from gen_durable.store.types import FollowUps

log = get_logger("gen_durable.notifier")
QUEUE: Final = "queue"
CANCEL_CHILDREN: Final = "cancel_children"
CHECK_CANCEL_REQUESTS: Final = "check_cancel_requests"


@dataclass(frozen=True, slots=True)
class QueueReady:
    """A queue has runnable rows."""

    queue: str


@dataclass(frozen=True, slots=True)
class CancelChildren:
    """Cancel the descendants of `origin` that are listed in `cascades`; None stands for any origin."""

    origin: int | None


@dataclass(frozen=True, slots=True)
class CheckCancelRequests:
    """`worker` runs an instance with a cancel request."""

    worker: str


Message: TypeAlias = QueueReady | CancelChildren | CheckCancelRequests


def encode(message: Message) -> str:
    """The NOTIFY payload of a message."""
    match message:
        case QueueReady(queue):
            return f"{QUEUE}:{queue}"
        case CancelChildren(origin):
            return f"{CANCEL_CHILDREN}:{'' if origin is None else origin}"
        case CheckCancelRequests(worker):
            return f"{CHECK_CANCEL_REQUESTS}:{worker}"
        case _:
            assert_never(message)


def decode(payload: str) -> Message | None:
    """The message of a NOTIFY payload, or None if a newer version sent a kind that this one does not know."""
    kind, separator, argument = payload.partition(":")
    if separator:
        if kind == QUEUE and argument:
            return QueueReady(argument)
        if kind == CHECK_CANCEL_REQUESTS and argument:
            return CheckCancelRequests(argument)
        if kind == CANCEL_CHILDREN and argument == "":
            return CancelChildren(None)
        if kind == CANCEL_CHILDREN and argument.isascii() and argument.isdecimal():
            return CancelChildren(int(argument))
    log.debug("ignored a notification of unknown kind %.40r", kind)
    return None


def follow_up_messages(follow_ups: FollowUps) -> Iterator[Message]:
    """The messages that follow-ups stand for."""
    for queue in follow_ups.queues:
        yield QueueReady(queue)
    for origin in follow_ups.cascade_origins:
        yield CancelChildren(origin)
    for worker in follow_ups.workers_with_cancel_requests:
        yield CheckCancelRequests(worker)
