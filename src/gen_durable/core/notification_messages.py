"""Messages between processes: a typed union, with one encoder and one decoder for the payload of NOTIFY.

A payload is `KIND:ARGUMENT`. The kind is read first, so that no queue and no worker can be mistaken for another kind of
message. `sql/functions/notify_workers.sql` builds the same payloads inside a caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.store.types import FollowUps

log = get_escaping_logger("gen_durable.notifier")
QUEUE: Final = "queue"
CANCEL_CHILDREN: Final = "cancel_children"
CHECK_CANCEL_REQUESTS: Final = "check_cancel_requests"
MAX_ARGUMENT: Final = 500  # characters: of a queue's or a worker's name, as in notify_workers.sql
MAX_MESSAGE: Final = len(CHECK_CANCEL_REQUESTS) + 1 + MAX_ARGUMENT
MAX_ID: Final = 2**63 - 1


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


def encode_message(message: Message) -> str:
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


def decode_message(payload: str) -> Message | None:
    """The message of a NOTIFY payload, or None if this version does not know it.

    Any login of the database can send payloads (SECURITY.md), so nothing is assumed about them, not even their length.
    """
    message = _decode_known_kind(payload) if len(payload) <= MAX_MESSAGE else None
    if message is None:
        log.debug("ignored a notification of unknown kind %.40r", payload[:40].partition(":")[0])
    return message


def _decode_known_kind(payload: str) -> Message | None:
    kind, _, argument = payload.partition(":")
    if kind == QUEUE and argument:
        return QueueReady(argument)
    if kind == CHECK_CANCEL_REQUESTS and argument:
        return CheckCancelRequests(argument)
    if payload == f"{CANCEL_CHILDREN}:":
        return CancelChildren(None)
    if kind == CANCEL_CHILDREN and len(argument) <= len(str(MAX_ID)) and argument.isascii() and argument.isdecimal():
        origin = int(argument)
        return CancelChildren(origin) if origin <= MAX_ID else None
    return None


def messages_of_follow_ups(follow_ups: FollowUps) -> Iterator[Message]:
    """The messages that follow-ups stand for."""
    for queue in follow_ups.queues:
        yield QueueReady(queue)
    for origin in follow_ups.cascade_origins:
        yield CancelChildren(origin)
    for worker in follow_ups.workers_with_cancel_requests:
        yield CheckCancelRequests(worker)
